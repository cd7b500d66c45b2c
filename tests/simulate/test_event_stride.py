"""The event engine where products and neurons go through all steps at once: the spikes are the same."""

from typing import Any

import pytest
import tiny_models
import torch
from event_runs import assert_equal, compare, compiled, counted, engines_made, networks

import spikezip
from spikezip.execution import executing
from spikezip.ops.event import Walk, walk
from spikezip.simulate import nodes, shelf
from spikezip.simulate.drive import start
from spikezip.simulate.event import EventEngine
from spikezip.simulate.stride import FoldedStride, LinearStride, OperatorStride

pytestmark = compiled


@pytest.fixture(autouse=True)
def _float_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU without int8 units, for layers of any size, and on several threads."""
    monkeypatch.setattr(walk, "walks_pay", lambda: True)
    monkeypatch.setattr(walk, "LEAST", 0)
    monkeypatch.setattr("spikezip.ops.compiled.LEAST", 1)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[EventEngine]:
    return engines_made(monkeypatch)


def strides(engine: EventEngine) -> list[type]:
    assert engine.tape is not None
    return [type(group.stride) for group in engine.tape.groups if group.stride is not None]


# One row per test: (levels, weight_bits, coding, stagger, chunk); models go round them.
SETTINGS = [
    (16, 8, "analog", 0, None),
    (4, 16, "rate", 0.5, 5),
    (256, 8, "analog", 0, 7),
    (32, 16, "rate", 0.29, 1),
    (16, None, "analog", 1, 6),
]
CASES = [(name, SETTINGS[i % len(SETTINGS)]) for i, name in enumerate(tiny_models.ALL)]
CASES += [(name, SETTINGS[0]) for name in ("SwinForImageClassification", "BertModel")]


@pytest.mark.parametrize(("name", "setting"), CASES, ids=[f"{n}-{'-'.join(map(str, s))}" for n, s in CASES])
def test_spikes_are_those_of_the_spike_engine(name: str, setting: tuple[Any, ...]) -> None:
    levels, bits, coding, stagger, chunk = setting
    snn, batch = networks(name, levels, bits)
    for _ in range(2):  # again on a tape that was kept
        compare(snn, batch, 20, coding=coding, stagger=stagger, chunk=chunk)


@pytest.mark.parametrize("chunk", [1, 7, None])
def test_all_groups_of_a_vit(chunk: int | None, engines: list[EventEngine]) -> None:
    snn, batch = networks("ViTForImageClassification")
    compare(snn, batch, 24, chunk=chunk)
    kinds = strides(engines[-1])
    assert all(kinds.count(kind) >= 3 for kind in (LinearStride, FoldedStride, OperatorStride))


@pytest.mark.parametrize(
    "settings",
    [
        {"coding": "rate"},
        {"stagger": 0.7},
        {"stagger": 3, "chunk": 2},
        {"max_spike": 3},
        {"coding": "rate", "chunk": 3},
    ],
)
def test_other_drives(settings: dict[str, Any], engines: list[EventEngine]) -> None:
    snn, batch = networks("ViTForImageClassification")
    compare(snn, batch, 40, **settings)
    assert strides(engines[-1])


def test_one_sample_on_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators have one thread meanwhile, and theirs again afterwards."""
    snn, batch = networks("ViTForImageClassification")
    one = {name: values[:1] for name, values in batch.items()}
    expected = spikezip.simulate(snn, one, 30, "spike")
    shared = counted(monkeypatch, walk, "share")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert_equal(spikezip.simulate(snn, one, 30, "event"), expected)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert shared
    assert all(threads == 2 for *_, threads in shared)


def test_what_rests_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    snn, batch = networks("ViTForImageClassification")
    rest = max(spikezip.simulate(snn, batch, "equilibrium").t_eq, key=lambda t: t or 0)
    assert rest is not None
    prepared, engine = start(snn, batch, "event")
    with torch.no_grad(), executing(engine):
        engine.advance(snn.network, prepared.inputs, rest)
        engine.advance(snn.network, prepared.inputs, 20)
        walked = counted(monkeypatch, Walk, "go")
        fired = counted(monkeypatch, nodes.Population, "fire")
        engine.advance(snn.network, prepared.inputs, 20)
    assert not walked
    assert not fired


def test_samples_that_leave(engines: list[EventEngine]) -> None:
    """Those that stay go on from their codes, which are no spikes, on a tape of another shape."""
    snn, batch = networks("ViTForImageClassification")
    images = torch.randn(3, *batch["pixel_values"].shape[1:])
    expected = spikezip.simulate(snn, images[[0, 2]], 12, "spike")
    prepared, engine = start(snn, images, "event")
    stay = torch.tensor([0, 2])
    with torch.no_grad(), executing(engine):
        engine.advance(snn.network, prepared.inputs, 5)
        engine.select(stay)
        rest = {name: x[stay] for name, x in prepared.inputs.items()}
        for _ in range(2):
            output = engine.advance(snn.network, rest, 1)
        output = engine.advance(snn.network, rest, 5)
    assert torch.equal(output.logits[-1], expected.logits)
    assert all(torch.equal(engine.tracers[site], expected.tracers[site]) for site in expected.tracers)


def test_what_is_kept_does_not_keep_all_steps(engines: list[EventEngine]) -> None:
    snn, batch = networks("ViTForImageClassification")
    spikezip.simulate(snn, batch, 24, "event", chunk=8)
    for engine in engines:
        for tracer in engine.tracers.values():
            assert tracer.untyped_storage().nbytes() == tracer.numel()
        assert engine.tape is not None
        for x in engine.tape.cells:
            assert x is None or x.untyped_storage().nbytes() <= 8 * x.numel()


def test_not_where_int8_units_are_faster(monkeypatch: pytest.MonkeyPatch, engines: list[EventEngine]) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("spikezip.ops.grid.fast.int8_products_pay", lambda: True)
    monkeypatch.setattr(walk, "LEAST", 0)
    assert not walk.walks_pay()
    engines = engines_made(monkeypatch)
    snn, batch = networks("ViTForImageClassification")
    shelf.forget()
    compare(snn, batch, 12)
    assert not strides(engines[-1])
