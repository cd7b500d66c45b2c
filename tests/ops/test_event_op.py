"""Steps of compiled layers: equal to the equations, odd shapes and near-ties included."""

import math

import pytest
import torch
from torch import Tensor

from spikezip.errors import SpikezipError
from spikezip.ops import neuron, rounding
from spikezip.ops.neuron import Layer, Source, Track

pytest.importorskip("numba")


def int8(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high + 1, shape, dtype=torch.int8)


def near_ties(shape: tuple[int, ...], scale: Tensor, lo: int, hi: int) -> Tensor:
    """Inputs of all sizes; a third of them next to a boundary between two codes."""
    u = torch.randn(shape) * scale * (hi - lo) / 2
    ties = (torch.randint(lo - 1, hi + 2, shape) + 0.5) * scale
    ties = torch.where(torch.rand(shape) < 0.5, torch.nextafter(ties, torch.tensor(math.inf)), ties)
    return torch.where(torch.rand(shape) < 0.3, ties, u)


def check(
    layer: Layer, sums: Tensor, u: Tensor, scale: Tensor, limits: tuple[int, int, int], at: list[int], held: int = 0
) -> None:
    """Inputs `[n, samples, rows, channels]`, number `at[t]` in step t; with −1 the layer is at rest."""
    lo, hi, most = limits
    resting, before = at.count(-1), int8(lo, hi, *u[0].shape)
    track = Track(len(at), before, len(u[0]))
    late = layer.follow(track, 0, sums.view(len(u), -1), at, held, not resting)
    found = track.codes.view(-1, *u[0].shape).float()
    code = rounding.reference.code(u[at], scale, lo, hi)
    still = max(held, resting)
    codes = torch.cat([before.float().expand(still, *before.shape), neuron.scan(code[still:], before.float(), most)])
    assert torch.equal(found[1:], codes)
    spikes = found.diff(dim=0).abs().flatten(2).sum(dim=2).long()
    assert torch.equal(torch.from_numpy(track.counts), spikes)
    assert late == bool((codes[-1] != code[-1]).any())


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 5), (4, 1, 65), (2, 120, 24), (1, 2, 3000)])
@pytest.mark.parametrize("limits", [(-8, 7, 1), (0, 15, 3), (-128, 127, 1), (-128, 127, 300), (0, 1, 1), (0, 1, 5)])
@pytest.mark.parametrize("per_channel", [False, True])
def test_steps_from_running_inputs(
    shape: tuple[int, int, int], limits: tuple[int, int, int], per_channel: bool
) -> None:
    scale = torch.rand(shape[-1]) + 0.1 if per_channel else torch.tensor(0.37)
    u = near_ties((3, *shape), scale, *limits[:2])
    assert Layer.suits(Source(shape), scale, *limits[:2])
    check(Layer(Source(shape), scale, *limits), u, u, scale, limits, [0, 1, 2, 2])


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("held", [0, 3])
@pytest.mark.parametrize("first", [0, -1])
def test_what_rests_is_not_looked_at(samples: int, held: int, first: int) -> None:
    """A layer may be at rest at the start, until its sums change; and after it has reached its codes."""
    scale, limits = torch.tensor(0.37), (-8, 7, 1)
    u = near_ties((3, samples, 7, 24), scale, *limits[:2])
    at = [first, first, 1, 2, 2, 2, *[2] * 15]
    check(Layer(Source((samples, 7, 24)), scale, *limits), u, u, scale, limits, at, held)


def test_steps_one_after_another_are_those_taken_together() -> None:
    scale, u = torch.tensor(0.37), near_ties((3, 2 * 5 * 8), torch.tensor(0.37), -8, 7)
    layer, before = Layer(Source((2, 5, 8)), scale, -8, 7, 1), int8(-8, 7, 2, 5, 8)
    at, whole, pieces = [0, 0, 1, 2, 2, 2], Track(6, before, 2), Track(6, before, 2)
    layer.follow(whole, 0, u, at, held=0, awake=True)
    awake = True
    for step, number in enumerate(at):
        awake = layer.follow(pieces, step, u, [number], held=0, awake=awake)
    assert torch.equal(pieces.codes, whole.codes)
    assert pieces.counts.tolist() == whole.counts.tolist()


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_steps_from_sums_of_a_product(with_bias: bool, per_channel: bool, dtype: torch.dtype) -> None:
    shape, scale = (2, 7, 24), torch.tensor(0.5)
    sums = torch.randint(-3000, 3000, (3, *shape)).to(dtype)
    factor = torch.rand(24 if per_channel else 1) / 100
    bias = torch.randn(len(factor)) if with_bias else None
    u = sums.float() * factor if bias is None else sums.float() * factor + bias
    source = Source(shape, factor, bias)
    assert Layer.suits(source, scale, -8, 7)
    check(Layer(source, scale, -8, 7, 1), sums, u, scale, (-8, 7, 1), [0, 1, 1, 2])


def test_what_does_not_suit() -> None:
    shape, one, per_channel = (2, 6, 4), torch.tensor(1.0), torch.ones(4)
    assert Layer.suits(Source(shape, per_channel, per_channel), per_channel, -8, 7)
    assert not Layer.suits(Source(shape), one, 0, 255)  # codes beyond int8
    assert not Layer.suits(Source(shape), torch.tensor(2.0**-130), -8, 7)  # no inverse
    assert not Layer.suits(Source(shape, torch.ones(6)), one, -8, 7)  # of other channels
    assert not Layer.suits(Source(shape, per_channel), torch.ones(2), -8, 7)
    assert not Layer.suits(Source((0, 6, 4)), one, -8, 7)


@pytest.mark.parametrize("place", [0, 70])
def test_no_code_for_no_number(place: int) -> None:
    u = torch.zeros(2, 80)
    u[1, place] = torch.nan
    layer, track = Layer(Source((2, 1, 40)), torch.tensor(1.0), -8, 7, 1), Track(2, int8(0, 0, 80), 2)
    with pytest.raises(SpikezipError, match="not a number"):
        layer.follow(track, 0, u, [0, 1], held=0, awake=True)
