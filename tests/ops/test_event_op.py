"""Steps of compiled layers and products from events: equal to the equations, odd shapes and near-ties included."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spikezip.errors import SpikezipError
from spikezip.ops import grid, neuron, rounding
from spikezip.ops.event import Events, Layer, Source, add_linear, add_matmul, linear_into, reference

pytest.importorskip("numba")


def int8(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high + 1, shape, dtype=torch.int8)


def spikes_at(codes: Tensor, share: float, most: int) -> tuple[Events, Tensor]:
    """Random events, and the codes after them."""
    spikes = torch.randint(-most, most + 1, codes.shape) * (torch.rand(codes.shape) < share)
    after = (codes + spikes).clamp(-128, 127).to(torch.int8)
    spikes = (after.int() - codes.int()).flatten()
    at = spikes.nonzero().flatten()
    return Events(at.numpy(), spikes[at].to(torch.int16).numpy()), after


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 64), (2, 300)])
@pytest.mark.parametrize("outputs", [1, 5, 33])
@pytest.mark.parametrize(("share", "most"), [(0.0, 1), (0.1, 1), (1.0, 1), (0.5, 40), (1.0, 255)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.float64])
def test_linear(shape: tuple[int, int], outputs: int, share: float, most: int, dtype: torch.dtype) -> None:
    weight = int8(-128, 127, outputs, shape[1])
    before = int8(-128, 127, *shape)
    events, now = spikes_at(before, share, most)
    start = grid.reference.linear(before, weight, torch.float64)
    expected = reference.linear(start, before.double(), now.double(), weight)
    assert torch.equal(expected, grid.reference.linear(now, weight, torch.float64))
    sums = start.to(dtype)
    add_linear(sums, events, weight, most)
    assert torch.equal(sums.double(), expected)


def test_weights_that_have_changed() -> None:
    weight, before = int8(-50, 50, 5, 7), int8(-50, 50, 3, 7)
    events, now = spikes_at(before, 0.5, 1)
    for _ in range(2):
        sums = grid.reference.linear(before, weight, torch.float64)
        add_linear(sums, events, weight, 1)
        assert torch.equal(sums, grid.reference.linear(now, weight, torch.float64))
        weight.neg_().add_(1)


@pytest.mark.parametrize("shape", [(1, 2), (3, 7), (64, 33), (2, 5, 64)])
@pytest.mark.parametrize("outputs", [1, 5, 64])
def test_a_product_into_memory_that_is_there(shape: tuple[int, ...], outputs: int) -> None:
    """Codes are so small that pairs of products fit into 16 bits, which some CPUs add them up in.

    There are two inputs at least: with one, torch's int8 product on the CPU writes nothing, and does not say so.
    """
    room = torch.full((*shape[:-1], outputs), -1, dtype=torch.int32)
    for codes in (int8(-100, 100, *shape), int8(-100, 100, *shape).mT.contiguous().mT, int8(0, 0, *shape)):
        weight, at = int8(-127, 127, outputs, shape[-1]), room.data_ptr()
        linear_into(room, codes, weight)
        assert room.data_ptr() == at
        assert torch.equal(room.double(), grid.reference.linear(codes, weight, torch.float64))


@pytest.mark.parametrize("heads", [(1,), (2, 3)])
@pytest.mark.parametrize("size", [(1, 1, 1), (5, 3, 4), (9, 16, 9)])
@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("shares", [(0.0, 0.0), (0.2, 0.0), (0.0, 0.2), (1.0, 0.3), (0.3, 1.0)])
def test_matmul(heads: tuple[int, ...], size: tuple[int, int, int], flipped: bool, shares: tuple[float, float]) -> None:
    rows, inner, columns = size
    a = int8(-30, 30, *heads, rows, inner)
    b = int8(-30, 30, *heads, columns, inner) if flipped else int8(-30, 30, *heads, inner, columns)
    of_a, a_now = spikes_at(a, shares[0], 3)
    of_b, b_now = spikes_at(b, shares[1], 3)
    if flipped:
        b, b_now = b.mT, b_now.mT
    sums = a.float() @ b.float()
    expected = reference.matmul(sums, a.float(), a_now.float(), b.float(), b_now.float())
    assert torch.equal(expected, a_now.float() @ b_now.float())
    add_matmul(sums, of_a, of_b, a, b_now)
    assert torch.equal(sums, expected)


def near_ties(shape: tuple[int, ...], scale: Tensor, lo: int, hi: int) -> Tensor:
    """Inputs of all sizes; a third of them next to a boundary between two codes."""
    u = torch.randn(shape) * scale * (hi - lo) / 2
    ties = (torch.randint(lo - 1, hi + 2, shape) + 0.5) * scale
    ties = torch.where(torch.rand(shape) < 0.5, torch.nextafter(ties, torch.tensor(torch.inf)), ties)
    return torch.where(torch.rand(shape) < 0.3, ties, u)


def expected_step(u: Tensor, before: Tensor, scale: Tensor, lo: int, hi: int, most: int) -> tuple[Tensor, Tensor]:
    code = rounding.reference.code(u, scale, lo, hi)
    return neuron.scan(code[None], before.to(u.dtype), most)[0], code


@pytest.mark.parametrize("shape", [(1, 1), (2, 3, 5), (4, 65), (2, 3, 40, 24)])
@pytest.mark.parametrize("limits", [(-8, 7, 1), (0, 15, 3), (-128, 127, 1), (-128, 127, 300), (0, 1, 1)])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_step_from_running_inputs(shape: tuple[int, ...], limits: tuple[int, int, int], per_channel: bool) -> None:
    lo, hi, most = limits
    scale = torch.rand(shape[-1]) + 0.1 if per_channel else torch.tensor(0.37)
    u, before = near_ties(shape, scale, lo, hi), int8(lo, hi, *shape)
    assert Layer.suits(Source.plain(u), scale, lo, hi)
    layer = Layer(Source.plain(u), scale, lo, hi, most)
    layer.list_events(share=1.0)
    check(layer, u, u, before, scale, lo, hi, most)


def check(layer: Layer, sums: Tensor, u: Tensor, before: Tensor, scale: Tensor, lo: int, hi: int, most: int) -> None:
    codes, target = expected_step(u, before, scale, lo, hi, most)
    spikes = codes - before.to(codes.dtype)
    counts = np.zeros(u.shape[0], np.int64)
    fired = layer.fire(sums, before, counts, wants_values=True)
    assert fired.values is not None
    assert torch.equal(fired.codes.to(codes.dtype), codes)
    assert torch.equal(fired.values, codes * scale)
    assert torch.equal(torch.from_numpy(counts), spikes.abs().flatten(1).sum(dim=1).long())
    assert fired.spikes == counts.sum()
    assert fired.behind == bool((codes != target).any())
    if fired.events is None:
        assert fired.spikes > len(layer.room.at)
    else:
        places = spikes.flatten().nonzero().flatten()
        assert fired.events.at.tolist() == places.tolist()
        assert fired.events.by.tolist() == spikes.flatten()[places].tolist()


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("held", [0, 3])
@pytest.mark.parametrize("first", [0, -1])
def test_steps_at_once(samples: int, held: int, first: int) -> None:
    """As steps one by one. A layer may be at rest at the start, and until its sums change."""
    scale, lo, hi = torch.tensor(0.37), -8, 7
    u = near_ties((3, samples, 7, 24), scale, lo, hi)
    at = [first, first, first + 1, first + 2, first + 2, first + 2]
    layer = Layer(Source.plain(u[0]), scale, lo, hi, 1)
    before = int8(lo, hi, samples, 7, 24)
    found = layer.fire_steps(u.view(3, -1), at, before, samples, held=held, awake=first == 0, wants_values=True)
    assert found.values is not None
    codes, behind, last = before, first == 0, -1
    for step, number in enumerate(at):
        counts, behind, last = np.zeros(samples, np.int64), behind or number != last, number
        if behind and step >= held:
            fired = layer.fire(u[number], codes, counts, wants_values=True)
            assert fired.values is not None
            codes, behind = fired.codes, fired.behind
            assert not fired.spikes or torch.equal(found.values[step], fired.values)
        assert torch.equal(found.codes[step], codes)
        assert found.counts[step].tolist() == counts.tolist()
    assert found.behind == behind


def test_no_code_for_no_number_in_some_step() -> None:
    u = torch.zeros(2, 40)
    u[1, 20] = torch.nan
    layer = Layer(Source.plain(u[0]), torch.tensor(1.0), -8, 7, 1)
    with pytest.raises(SpikezipError, match="not a number"):
        layer.fire_steps(u, [0, 1], torch.zeros(40, dtype=torch.int8), samples=1)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_a_step_from_sums_of_a_product(with_bias: bool, dtype: torch.dtype) -> None:
    """Heads apart, as attention wants them: the sums stay where they are."""
    batch, tokens, heads, size = 2, 7, 3, 8
    total = torch.randint(-3000, 3000, (batch, tokens, heads * size))
    factor = torch.rand(heads * size) / 100
    bias = torch.randn(heads * size) if with_bias else None
    u = total.float() * factor if bias is None else total.float() * factor + bias
    u = u.view(batch, tokens, heads, size).transpose(1, 2)
    sums, scale, before = total.to(dtype), torch.tensor(0.5), int8(-8, 7, batch, heads, tokens, size)
    read = sums.view(batch, tokens, heads, size).transpose(1, 2)
    source = Source(sums, read, factor, bias)
    assert Layer.suits(source, scale, -8, 7)
    layer = Layer(source, scale, -8, 7, 1)
    layer.list_events(share=0.3)  # not all that happen here
    check(layer, sums, u, before, scale, -8, 7, 1)
    part = read[:, 1:, 2:]  # sums that are seen in part
    layer = Layer(Source(sums, part, factor, bias), scale, -8, 7, 1)
    check(layer, sums, u[:, 1:, 2:], before[:, 1:, 2:].contiguous(), scale, -8, 7, 1)


def test_what_does_not_suit() -> None:
    sums, one = torch.zeros(2, 6, 4), torch.tensor(1.0)
    per_channel = torch.ones(4)
    assert Layer.suits(Source(sums, sums, per_channel), one, -8, 7)
    assert not Layer.suits(Source(sums, sums.transpose(1, 2)), one, -8, 7)  # neighbours that are none in memory
    assert not Layer.suits(Source(sums, sums), one, 0, 255)  # codes beyond int8
    assert not Layer.suits(Source(sums, sums), torch.tensor(2.0**-130), -8, 7)  # no inverse
    assert not Layer.suits(Source(sums, sums, torch.ones(6)), one, -8, 7)  # channels across runs
    assert not Layer.suits(Source(sums, sums.view(2, 6, 2, 2), per_channel), torch.ones(2), -8, 7)  # of two kinds
    assert not Layer.suits(Source(sums[:0], sums[:0]), one, -8, 7)


@pytest.mark.parametrize("place", [0, 70])
def test_no_code_for_no_number(place: int) -> None:
    u: Any = torch.zeros(2, 40)
    u.view(-1)[place] = torch.nan
    layer = Layer(Source.plain(u), torch.tensor(1.0), -8, 7, 1)
    with pytest.raises(SpikezipError, match="not a number"):
        layer.fire(u, torch.zeros(2, 40, dtype=torch.int8), np.zeros(2, np.int64))
