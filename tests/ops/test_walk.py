"""Products and their neurons through many steps at once: equal to the equations, step by step."""

import pytest
import torch
from torch import Tensor

from spikezip.errors import SpikezipError
from spikezip.ops import grid, neuron, rounding
from spikezip.ops.event import Layer, Source, Walk

pytest.importorskip("numba")


def moving(steps: int, rows: int, width: int, share: float) -> Tensor:
    """Codes that change by one at most from step to step, `[1 + steps, rows, width]`."""
    spikes = torch.randint(-1, 2, (steps, rows, width)) * (torch.rand(steps, rows, width) < share)
    return torch.cat([torch.randint(-8, 8, (1, rows, width)), spikes]).cumsum(dim=0).to(torch.int8)


def expected(
    inputs: Tensor, changed: list[bool], weight: Tensor, factor: Tensor, bias: Tensor, held: int, before: Tensor
) -> tuple[Tensor, Tensor]:
    """Codes after each step, and the code of the last one, with a scale of 1 and codes from −8 to 7."""
    at = torch.tensor(changed).cumsum(dim=0)
    sums = grid.reference.linear(inputs[at], weight, torch.float64).float()
    code = rounding.reference.code(sums * factor + bias, torch.tensor(1.0), -8, 7)
    free = neuron.scan(code[held:], before.float(), 1)
    return torch.cat([before.float().expand(min(held, len(at)), *before.shape), free]), code[-1]


@pytest.mark.parametrize("shape", [(1, 8, 1), (3, 16, 5), (5, 64, 33), (65, 256, 64)])
@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 1.0])
@pytest.mark.parametrize(("held", "threads"), [(0, 1), (2, 3)])
def test_steps_are_those_of_the_equations(
    shape: tuple[int, int, int], share: float, held: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A factor of 2^−k makes ties, and all of a row must be decided by the rule then."""
    monkeypatch.setattr("spikezip.ops.compiled.LEAST", 1)
    rows, width, outputs = shape
    weight = torch.randint(-128, 128, (outputs, width), dtype=torch.int8)
    changed = [True, True, False, True, False, True]
    inputs = moving(sum(changed), rows, width, share)
    factor = torch.where(torch.rand(outputs) < 0.1, 2.0**-7, 0.001 + torch.rand(outputs) / 1000)
    bias = torch.randn(outputs).round() / 2
    before = torch.randint(-8, 8, (rows, outputs), dtype=torch.int8)
    sums = grid.reference.linear(inputs[0], weight, torch.float64).to(torch.int32)
    layer = Layer(Source(sums, sums, factor, bias), torch.tensor(1.0), -8, 7, 1)
    assert Walk.suits(layer, weight, rows, rows)
    walk = Walk(layer, weight, rows)
    found = walk.go(inputs, changed, sums, before, held=held, wants_values=True, threads=threads)
    codes, target = expected(inputs, changed, weight, factor, bias, held, before)
    assert torch.equal(found.codes.float(), codes)
    assert found.values is not None
    assert torch.equal(found.values, codes)
    spikes = codes - torch.cat([before.float()[None], codes[:-1]])
    assert torch.equal(torch.from_numpy(found.counts), spikes.abs().sum(dim=2).long())
    assert found.behind == bool((codes[-1] != target).any())
    assert torch.equal(sums.double(), grid.reference.linear(inputs[-1], weight, torch.float64))
    # From here on, and with a sample of all rows: those that rest are not looked at.
    further = inputs[-1:].repeat(9, 1, 1)
    more = Walk(layer, weight, 1).go(further, [False, True] * 8, sums, found.codes[-1], awake=found.behind)
    codes, target = expected(further, [False, True] * 8, weight, factor, bias, 0, found.codes[-1])
    assert torch.equal(more.codes.float(), codes)
    assert torch.equal(codes[-1], target)
    assert not more.behind


@pytest.mark.parametrize("spike", [1, -1, 0])
@pytest.mark.parametrize("width", [120, 248, 1024])
def test_no_sum_is_too_large(spike: int, width: int) -> None:
    """Every input changes, and weights are as large as int8 allows; 0: inputs rise and fall, and weights go along."""
    sign = torch.tensor([1, -1]).repeat(width // 2) if spike == 0 else torch.full((width,), spike)
    weight = torch.where(sign > 0, 127, -128).to(torch.int8).repeat(3, 1)
    inputs = torch.stack([torch.zeros(2, width), sign.expand(2, width)]).to(torch.int8)
    sums, before = torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, 3, dtype=torch.int8)
    layer = Layer(Source(sums, sums, torch.ones(3)), torch.tensor(1.0), -8, 7, 1)
    Walk(layer, weight, 2).go(inputs, [True], sums, before)
    assert torch.equal(sums.double(), grid.reference.linear(inputs[1], weight, torch.float64))


def test_heads_apart() -> None:
    """Neurons in the order that attention wants, two samples; each row of the sums has its neurons in three places."""
    batch, tokens, heads, size, width = 2, 7, 3, 8, 32
    weight = torch.randint(-128, 128, (heads * size, width), dtype=torch.int8)
    inputs, changed = moving(4, batch * tokens, width, 0.3), [True] * 4
    factor, bias = torch.rand(heads * size) / 500, torch.randn(heads * size)
    before = torch.randint(-8, 8, (batch, heads, tokens, size), dtype=torch.int8)
    sums = grid.reference.linear(inputs[0], weight, torch.float64).to(torch.int32).view(batch, tokens, -1)
    read = sums.view(batch, tokens, heads, size).transpose(1, 2)
    layer = Layer(Source(sums, read, factor, bias), torch.tensor(1.0), -8, 7, 1)
    assert Walk.suits(layer, weight, batch * tokens, batch)
    found = Walk(layer, weight, batch).go(inputs, changed, sums, before)
    in_order = before.transpose(1, 2).reshape(batch * tokens, -1)
    codes, _ = expected(inputs, changed, weight, factor, bias, 0, in_order)
    apart = codes.view(4, batch, tokens, heads, size).transpose(2, 3)
    assert torch.equal(found.codes.float(), apart)
    spikes = apart - torch.cat([before.float()[None], apart[:-1]])
    assert torch.equal(torch.from_numpy(found.counts), spikes.abs().flatten(2).sum(dim=2).long())


def test_what_does_not_suit() -> None:
    sums, one, weight = torch.zeros(2, 6, 4), torch.tensor(1.0), torch.ones(4, 8, dtype=torch.int8)
    factor = torch.ones(4)

    def suits(read: Tensor, weight: Tensor = weight, rows: int = 12, samples: int = 2) -> bool:
        return Walk.suits(Layer(Source(sums, read, factor), one, -8, 7, 1), weight, rows, samples)

    assert suits(sums)
    assert not suits(sums, weight=torch.ones(4, 12, dtype=torch.int8))
    assert not suits(sums, weight=weight.float())
    assert not suits(sums[:, 1:])
    assert not suits(sums[:1])
    assert not suits(sums[:1].expand(2, 6, 4))
    assert not suits(sums.transpose(0, 1).unflatten(2, (2, 2)).transpose(1, 2), samples=4)


def test_no_code_for_no_number() -> None:
    sums, weight = torch.zeros(2, 3, dtype=torch.int32), torch.ones(3, 8, dtype=torch.int8)
    factor = torch.tensor([1.0, torch.nan, 1.0])
    walk = Walk(Layer(Source(sums, sums, factor), torch.tensor(1.0), -8, 7, 1), weight, 2)
    with pytest.raises(SpikezipError, match="not a number"):
        walk.go(torch.zeros(1, 2, 8, dtype=torch.int8), [False], sums, sums.to(torch.int8))
