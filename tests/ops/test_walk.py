"""Products and their neurons through many steps at once: equal to the equations, step by step."""

import pytest
import torch
from torch import Tensor

from spikezip.errors import SpikezipError
from spikezip.ops import grid, neuron, rounding
from spikezip.ops.neuron import Layer, Source, Track, Walk

pytest.importorskip("numba")


def moving(steps: int, rows: int, width: int, share: float, most: int = 1) -> Tensor:
    """Codes of which a share changes from step to step, by so much at most, `[1 + steps, rows, width]`."""
    spikes = torch.randint(-most, most + 1, (steps, rows, width)) * (torch.rand(steps, rows, width) < share)
    return torch.cat([torch.randint(-8, 8, (1, rows, width)), spikes]).cumsum(dim=0).to(torch.int8)


def check(
    track: Track, inputs: Tensor, changed: list[bool], weight: Tensor, source: Source, limits: tuple[int, int, int],
    held: int, late: bool,
) -> None:  # fmt: skip
    """Codes after each step, spikes, and whether some neuron is behind at the end, with a scale of 1."""
    assert source.factor is not None
    assert source.bias is not None
    lo, hi, most = limits
    sums = grid.reference.linear(inputs[torch.tensor(changed).cumsum(dim=0)], weight, torch.float64).float()
    code = rounding.reference.code(sums * source.factor + source.bias, torch.tensor(1.0), lo, hi)
    found = track.codes.float().view(1 + len(changed), *code[0].shape)
    assert torch.equal(found[1 : 1 + held], found[:1].expand_as(code[:held]))
    assert torch.equal(found[1 + held :], neuron.scan(code[held:], found[0], most))
    spikes = found.diff(dim=0).abs().view(len(changed), source.shape[0], -1).sum(dim=2)
    assert torch.equal(torch.from_numpy(track.counts), spikes.long())
    assert late == bool((found[-1] != code[-1]).any())


@pytest.mark.parametrize("shape", [(1, 8, 1), (3, 16, 5), (5, 64, 33), (65, 256, 64)])
@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 1.0])
@pytest.mark.parametrize("held", [0, 2])
@pytest.mark.parametrize("limits", [(-8, 7, 1), (-8, 7, 3), (0, 1, 3)])
def test_steps_are_those_of_the_equations(
    shape: tuple[int, int, int],
    share: float,
    held: int,
    limits: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A factor of 2^−k makes ties, and all of a row must be decided by the rule then.

    Neurons may have fewer levels than a spike of their inputs is large.
    """
    monkeypatch.setattr("spikezip.ops.compiled.LEAST", 1)
    (rows, width, outputs), (lo, hi, most) = shape, limits
    weight = torch.randint(-128, 128, (outputs, width), dtype=torch.int8)
    changed = [True, True, False, True, False, True]
    inputs = moving(sum(changed), rows, width, share, most)
    factor = torch.where(torch.rand(outputs) < 0.1, 2.0**-7, 0.001 + torch.rand(outputs) / 1000)
    source = Source((rows, 1, outputs), factor, torch.randn(outputs).round() / 2)
    before = torch.randint(lo, hi + 1, (rows, outputs), dtype=torch.int8)
    sums = grid.reference.linear(inputs[0], weight, torch.float64).to(torch.int32)
    layer = Layer(source, torch.tensor(1.0), lo, hi, most)
    assert Walk.suits(layer, weight)
    walk, track = Walk(layer, weight), Track(6, before, rows)
    late = walk.follow(track, 0, inputs, changed, sums, held, True)
    check(track, inputs, changed, weight, source, limits, held, late)
    assert torch.equal(sums.double(), grid.reference.linear(inputs[-1], weight, torch.float64))
    # From here on, and with a sample of all rows: those that rest are not looked at.
    further, changed, source = inputs[-1:].repeat(9, 1, 1), [False, True] * 8, source._replace(shape=(1, rows, outputs))
    track = Track(16, track.codes[-1], 1)
    late = walk.follow(track, 0, further, changed, sums, 0, late)
    check(track, further, changed, weight, source, limits, 0, late)
    assert not late


def test_several_rows_to_a_sample() -> None:
    """Steps that a track has before are left alone, and so are their spikes."""
    samples, tokens, outputs, width = 2, 7, 24, 32
    weight = torch.randint(-128, 128, (outputs, width), dtype=torch.int8)
    inputs = moving(4, samples * tokens, width, 0.3)
    source = Source((samples, tokens, outputs), torch.rand(outputs) / 500, torch.randn(outputs))
    before = torch.randint(-8, 8, (samples * tokens, outputs), dtype=torch.int8)
    sums = grid.reference.linear(inputs[0], weight, torch.float64).to(torch.int32)
    walk = Walk(Layer(source, torch.tensor(1.0), -8, 7, 1), weight)
    track, late = Track(4, before, samples), True
    for first in (0, 2):
        late = walk.follow(track, first, inputs[first : first + 3], [True, True], sums, 0, late)
    check(track, inputs, [True] * 4, weight, source, (-8, 7, 1), 0, late)


@pytest.mark.parametrize("spike", [1, -1, 0, 100, -100])
@pytest.mark.parametrize("width", [120, 248, 1024])
def test_no_sum_is_too_large(spike: int, width: int) -> None:
    """Every input changes, and weights are as large as int8 allows; 0: inputs rise and fall, and weights go along."""
    sign = torch.tensor([1, -1]).repeat(width // 2) if spike == 0 else torch.full((width,), spike)
    weight = torch.where(sign > 0, 127, -128).to(torch.int8).repeat(3, 1)
    inputs = torch.stack([torch.zeros(2, width), sign.expand(2, width)]).to(torch.int8)
    sums, track = torch.zeros(2, 3, dtype=torch.int32), Track(1, torch.zeros(2, 3), samples=2)
    layer = Layer(Source((2, 1, 3), torch.ones(3)), torch.tensor(1.0), -8, 7, max(abs(spike), 1))
    Walk(layer, weight).follow(track, 0, inputs, [True], sums, 0, True)
    assert torch.equal(sums.double(), grid.reference.linear(inputs[1], weight, torch.float64))


def test_what_does_not_suit() -> None:
    weight = torch.ones(4, 8, dtype=torch.int8)

    def suits(weight: Tensor, factor: Tensor) -> bool:
        return Walk.suits(Layer(Source((2, 6, 4), factor), torch.tensor(1.0), -8, 7, 1), weight)

    assert suits(weight, torch.ones(4))
    assert not suits(weight.repeat(1, 2)[:, :12], torch.ones(4))  # a word and a half
    assert not suits(weight.float(), torch.ones(4))
    assert not suits(weight, torch.ones(1))  # runs of several rows


def test_no_code_for_no_number() -> None:
    sums, weight = torch.zeros(2, 3, dtype=torch.int32), torch.ones(3, 8, dtype=torch.int8)
    source = Source((2, 1, 3), torch.tensor([1.0, torch.nan, 1.0]))
    walk = Walk(Layer(source, torch.tensor(1.0), -8, 7, 1), weight)
    with pytest.raises(SpikezipError, match="not a number"):
        walk.follow(Track(1, sums, 2), 0, torch.zeros(1, 2, 8, dtype=torch.int8), [False], sums, 0, True)
