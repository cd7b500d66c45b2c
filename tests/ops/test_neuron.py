"""Lemma 1 of the paper (a settled neuron holds its quantizer's code), and three forms of one neuron."""

import math
from fractions import Fraction
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spikezip.ops import neuron, rounding

UNIT = 64  # inputs are multiples of 1/64 below 2^17: their sums are exact in float32, in any order

signed = st.integers(2, 128).map(lambda half: (-half, half - 1))
unsigned = st.integers(2, 256).map(lambda levels: (0, levels - 1))
spike_limits = st.sampled_from([1, 1, 2, 3, 7, 255]) | st.integers(1, 10**6)


class Case(NamedTuple):
    inputs: list[float]  # what arrives step by step, before the silence
    scale: Tensor
    lo: int
    hi: int
    max_spike: int
    target: int  # the code of the total, in exact arithmetic

    @property
    def total(self) -> Tensor:
        return torch.tensor([sum(self.inputs)])

    def with_silence(self) -> list[float]:
        """The tracer needs at most this many steps from one end of its range to the other; five more are silent."""
        return self.inputs + [0.0] * (math.ceil((self.hi - self.lo) / self.max_spike) + 5)


@st.composite
def cases(draw: st.DrawFn, where: str) -> Case:
    lo, hi = draw(signed | unsigned)
    # Scales of 1/16 … 16 keep membranes within 53 bits of the inputs' unit: the paper's delta form is exact too.
    s = draw(st.floats(min_value=1 / 16, max_value=16, width=32))
    lowest = math.ceil(Fraction(s) * (lo - Fraction(1, 2)) * UNIT)  # smallest total whose unclamped code is ≥ lo
    past = math.ceil(Fraction(s) * (hi + Fraction(1, 2)) * UNIT)  # smallest total whose unclamped code is > hi
    reach = 10**5
    bounds = {"below": (lowest - reach, lowest - 1), "within": (lowest, past - 1), "above": (past, past + reach)}
    total = draw(st.integers(*bounds[where]))
    before = draw(st.lists(st.integers(-(10**5), 10**5), max_size=12))
    parts = [*before, total - sum(before)]
    code = math.floor(Fraction(total, UNIT) / Fraction(s) + Fraction(1, 2))
    target = {"below": lo, "within": code, "above": hi}[where]
    return Case([p / UNIT for p in parts], torch.tensor(s), lo, hi, draw(spike_limits), target)


def run_step(case: Case) -> tuple[Tensor, Tensor]:
    """Spikes and tracers `[T, 1]` of the paper's form: it sees only this step's input."""
    state = neuron.initial_state(torch.zeros(1), case.scale)
    spikes, tracers = [], []
    for x in case.with_silence():
        spike, state = neuron.step(torch.tensor([x]), state, case.scale, case.lo, case.hi, case.max_spike)
        spikes.append(spike)
        tracers.append(state.tracer)
    return torch.stack(spikes), torch.stack(tracers)


def run_membrane(totals: Tensor, scale: Tensor, lo: int, hi: int, max_spike: int) -> Tensor:
    """Tracers of the form that a network uses: membrane from the running sum, then fire."""
    tracer, tracers = torch.zeros_like(totals[0], dtype=torch.float64), []
    for total in totals:
        tracer = tracer + neuron.fire(neuron.membrane(total, tracer, scale), tracer, scale.double(), lo, hi, max_spike)
        tracers.append(tracer)
    return torch.stack(tracers)


@pytest.mark.parametrize("where", ["below", "within", "above"])
def test_lemma_1_and_all_forms_agree(where: str) -> None:
    @settings(max_examples=80, deadline=None)
    @given(cases(where))
    def check(case: Case) -> None:
        spikes, tracers = run_step(case)
        assert int(tracers[-1]) == case.target == int(rounding.code(case.total, case.scale, case.lo, case.hi))
        assert int(spikes.abs().max()) <= case.max_spike
        assert tracers.min() >= case.lo
        assert tracers.max() <= case.hi
        assert not spikes[-5:].any()  # settled: nothing fires any more
        assert torch.equal(spikes.cumsum(0), tracers)
        totals = torch.tensor(case.with_silence()).cumsum(0)[:, None]
        assert torch.equal(run_membrane(totals, case.scale, case.lo, case.hi, case.max_spike), tracers)
        codes = rounding.code(totals, case.scale, case.lo, case.hi)
        assert torch.equal(neuron.scan(codes, torch.zeros(1), case.max_spike), tracers.float())

    check()


@st.composite
def running_sums(draw: st.DrawFn, scale: float, lo: int, hi: int) -> Tensor:
    """Any float32 running sums `[T, 3]`, many of them next to a boundary, where a careless form decides otherwise."""
    tie = st.integers(lo - 1, hi + 1).map(lambda k: torch.tensor(scale * (k + 0.5)).item())
    neighbour = st.tuples(tie, st.sampled_from([-math.inf, math.inf])).map(
        lambda pair: torch.nextafter(torch.tensor(pair[0]), torch.tensor(pair[1])).item()
    )
    any_float = st.floats(width=32, allow_nan=False, allow_infinity=False)
    near = st.floats(lo - 2, hi + 2).map(lambda quotient: quotient * scale)
    row = st.tuples(*[tie | neighbour | near | any_float] * 3)
    return torch.tensor(draw(st.lists(row, min_size=1, max_size=30)))


@settings(max_examples=150, deadline=None)
@given(st.data(), signed | unsigned, st.floats(2.0**-20, 2.0**20, width=32), spike_limits)
def test_closed_form_equals_membrane_form(
    data: st.DataObject, limits: tuple[int, int], s: float, max_spike: int
) -> None:
    lo, hi = limits
    totals, scale = data.draw(running_sums(s, lo, hi)), torch.tensor(s)
    closed = neuron.scan(rounding.code(totals, scale, lo, hi), torch.zeros(3), max_spike)
    assert torch.equal(closed.double(), run_membrane(totals, scale, lo, hi, max_spike))
    spikes = closed.diff(dim=0, prepend=torch.zeros(1, 3))
    assert spikes.abs().max() <= max_spike


@settings(max_examples=100, deadline=None)
@given(signed | unsigned, st.floats(2.0**-20, 2.0**20, width=32), st.lists(st.floats(-400, 400), max_size=20))
def test_fire_is_the_three_way_rule_of_the_paper(limits: tuple[int, int], s: float, quotients: list[float]) -> None:
    lo, hi = limits
    threshold = torch.tensor(s, dtype=torch.float64)
    edges = torch.stack([threshold, torch.zeros_like(threshold)])
    smaller = torch.nextafter(threshold, -threshold).view(1)
    membrane = torch.cat([edges, smaller, -threshold.view(1) * 2.0**-60, torch.tensor(quotients).double() * threshold])
    tracer = torch.arange(lo, hi + 1).double()[:, None].expand(-1, membrane.numel())
    membrane = membrane.expand_as(tracer)
    rule = torch.zeros_like(tracer)
    rule[(membrane >= threshold) & (tracer < hi)] = 1
    rule[(membrane < 0) & (tracer > lo)] = -1
    assert torch.equal(neuron.fire(membrane, tracer, threshold, lo, hi, max_spike=1), rule)


def test_scan_carries_the_tracer_between_chunks() -> None:
    codes = torch.randint(-8, 8, (40, 5), generator=torch.Generator().manual_seed(0)).float()
    whole = neuron.scan(codes, torch.zeros(5), 2)
    first = neuron.scan(codes[:13], torch.zeros(5), 2)
    assert torch.equal(torch.cat([first, neuron.scan(codes[13:], first[-1], 2)]), whole)


@pytest.mark.parametrize("each", [1, 7, 50_000, 70_000])  # neurons per sample: many samples in a block, or many blocks
@pytest.mark.parametrize("max_spike", [1, 3])
def test_walk_equals_scan(each: int, max_spike: int) -> None:
    samples, scale, generator = 3, torch.tensor(0.0371), torch.Generator().manual_seed(each)
    boundaries = torch.randint(-10, 10, (6, samples * each), generator=generator) + 0.5
    totals = (boundaries * scale).float()  # all of them near-ties
    start = torch.randint(-8, 8, (samples * each,), generator=generator).float()
    tracers, counts = neuron.walk(totals, neuron.Neurons(start, scale, -8, 7, max_spike, samples))
    expected = neuron.scan(rounding.reference.code(totals, scale, -8, 7), start, max_spike)
    assert torch.equal(tracers, expected)
    spikes = expected.diff(dim=0, prepend=start[None])
    assert torch.equal(counts, spikes.abs().view(6, samples, each).sum(2))
