"""SESA: the product of two spike trains, gathered from three products per step, is the product of the tracers."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spikezip.ops import sesa

sizes = st.integers(1, 9)
batches = st.sampled_from([(), (2,), (2, 3)])
SETTINGS = settings(max_examples=60, deadline=None)


def train(shape: tuple[int, ...], steps: int, max_spike: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-max_spike, max_spike + 1, (steps, *shape), generator=generator).float()


def check_every_step(a_spikes: Tensor, b_spikes: Tensor) -> None:
    """The gathered product must be right after every step, not only at the end."""
    a_tracers, b_tracers = a_spikes.cumsum(0), b_spikes.cumsum(0)
    total = torch.zeros(())
    for a, b, a_tracer, b_tracer in zip(a_spikes, b_spikes, a_tracers, b_tracers, strict=True):
        total = total + sesa.step(a, b, a_tracer, b_tracer)
        assert torch.equal(total, a_tracer @ b_tracer)


@SETTINGS
@given(batches, sizes, sizes, sizes, st.integers(1, 20), st.sampled_from([1, 1, 3, 127]), st.integers(0, 2**32))
def test_scores(
    batch: tuple[int, ...], queries: int, keys: int, width: int, steps: int, max_spike: int, seed: int
) -> None:
    q = train((*batch, queries, width), steps, max_spike, seed)
    k = train((*batch, keys, width), steps, max_spike, seed + 1)
    check_every_step(q, k.transpose(-1, -2))  # a transposed view, as attention passes it


@SETTINGS
@given(batches, sizes, sizes, sizes, st.integers(1, 20), st.sampled_from([1, 1, 3, 127]), st.integers(0, 2**32))
def test_mix(
    batch: tuple[int, ...], queries: int, keys: int, width: int, steps: int, max_spike: int, seed: int
) -> None:
    p = train((*batch, queries, keys), steps, max_spike, seed)
    v = train((*batch, keys, width), steps, max_spike, seed + 1)
    check_every_step(p, v)


def test_silence_adds_nothing() -> None:
    a, b = train((3, 4), 6, 1, seed=1).sum(0), train((4, 5), 6, 1, seed=2).sum(0)
    assert torch.equal(sesa.step(torch.zeros(3, 4), torch.zeros(4, 5), a, b), torch.zeros(3, 5))


def test_each_product_counts() -> None:
    """When only one operand fires, its spikes meet the other's tracer."""
    a, b = train((3, 4), 6, 1, seed=3).sum(0), train((4, 5), 6, 1, seed=4).sum(0)
    spike_a, spike_b = train((3, 4), 1, 1, seed=5)[0], train((4, 5), 1, 1, seed=6)[0]
    assert torch.equal(sesa.step(spike_a, torch.zeros(4, 5), a, b), spike_a @ b)
    assert torch.equal(sesa.step(torch.zeros(3, 4), spike_b, a, b), a @ spike_b)
