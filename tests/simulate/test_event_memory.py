"""The event engine makes sums in memory that stays: no spike may depend on it, and nothing that was returned."""

from typing import Any

import pytest
import torch
from event_runs import assert_equal, compiled, counted, engines_made, networks
from torch import Tensor

import spikezip
from spikezip.execution import executing
from spikezip.ops.grid import fast as grid
from spikezip.simulate import nodes
from spikezip.simulate.drive import start
from spikezip.simulate.event import EventEngine

pytestmark = compiled


@pytest.fixture(autouse=True)
def _int8_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 16 levels two products of int8 fit into 16 bits, so that they are exact on every CPU."""
    monkeypatch.setattr(grid, "int8_products_pay", lambda: True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[EventEngine]:
    return engines_made(monkeypatch)


def many(name: str) -> tuple[Any, dict[str, Tensor]]:
    """A network, and so many samples that products go to the int8 units."""
    snn, batch = networks(name)
    images = torch.randn(6, *batch["pixel_values"].shape[1:])
    return snn, {"pixel_values": images}


def rooms(engine: EventEngine) -> list[Tensor]:
    assert engine.tape is not None
    found = [node for group in engine.tape.groups for node in group.nodes if isinstance(node, nodes.Linear)]
    return [node.room for node in found if node.room is not None]


@pytest.mark.parametrize("share", [0, 0.05, 100])
@pytest.mark.parametrize("name", ["ViTForImageClassification", "SwinForImageClassification"])
def test_spikes_are_those_of_the_spike_engine(
    name: str, share: float, engines: list[EventEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums are made anew in every step, now and then, or never after the first: it is the same memory."""
    monkeypatch.setattr(nodes.Linear, "share", share)
    monkeypatch.setattr(nodes.Matmul, "share", share)
    made = counted(monkeypatch, nodes.event, "linear_into")
    snn, batch = many(name)
    settings: dict[str, Any] = {"record": list(snn.neurons), "count_neurons": True}
    expected = spikezip.simulate(snn, batch, 24, "spike", **settings)
    assert_equal(spikezip.simulate(snn, batch, 24, "event", chunk=7, **settings), expected)
    kept = rooms(engines[-1])
    assert len(kept) >= 6
    assert len({room.data_ptr() for room in kept}) == len(kept)
    assert {sums.data_ptr() for sums, *_ in made} == {room.data_ptr() for room in kept}
    assert len(made) > len(kept) if share < 100 else len(made) == len(kept)


def tensors(x: Any) -> list[Tensor]:
    """All tensors of outputs and records."""
    if isinstance(x, Tensor):
        return [x]
    return [y for part in (x.values() if isinstance(x, dict) else x) for y in tensors(part)]


@pytest.mark.parametrize("first", [1, 5])
def test_what_was_returned_does_not_change_when_the_engine_goes_on(first: int) -> None:
    """Logits, hidden states, codes, counts and trains, after more steps and after a run on other images."""
    snn, batch = many("ViTForImageClassification")
    _, engine = start(snn, batch, "event", record=list(snn.neurons))
    assert isinstance(engine, EventEngine)
    wanted = {**batch, "output_hidden_states": True}
    with torch.no_grad(), executing(engine):
        if first == 5:
            engine.advance(snn.network, wanted, 2)  # what follows is played from the tape
        output = engine.advance(snn.network, wanted, first)
        # Of neurons that are counted one by one the engine adds up in place: these are no part of what it returned.
        records = [dict(engine.tracers), {k: list(v) for k, v in engine.spike_counts.items()}, dict(engine.injected)]
        records.append({k: list(v) for k, v in engine.trains.items()})
        returned = tensors([dict(output), *records])
        before = [x.clone() for x in returned]
        assert rooms(engine)
        engine.advance(snn.network, wanted, 6)
        engine.injected.clear()
        engine.advance(snn.network, {**wanted, "pixel_values": batch["pixel_values"].flip(0)}, 6)
    assert len(returned) > 3 * len(snn.neurons)
    assert all(torch.equal(x, was) for x, was in zip(returned, before, strict=True))


def test_runs_do_not_change_one_another() -> None:
    """Each has memory of its own, so that a second run leaves the first as it was, and repeats it."""
    snn, batch = many("ViTForImageClassification")
    other = {"pixel_values": batch["pixel_values"].flip(0)}
    settings: dict[str, Any] = {"record": list(snn.neurons), "count_neurons": True}
    first = spikezip.simulate(snn, batch, 12, "event", **settings)
    records = (first.trains, first.tracers, first.spike_counts, first.neuron_spikes)
    returned = tensors([first.logits_per_step, *records])
    before = [x.clone() for x in returned]
    second = spikezip.simulate(snn, other, 12, "event", **settings)
    assert not torch.equal(first.logits, second.logits)
    assert all(torch.equal(x, was) for x, was in zip(returned, before, strict=True))
    assert_equal(spikezip.simulate(snn, batch, 12, "event", **settings), first)


@pytest.mark.parametrize("max_spike", [1, 3])
@pytest.mark.parametrize("name", ["ViTForImageClassification", "BertForSequenceClassification"])
def test_neurons_are_counted_without_their_trains(name: str, max_spike: int, engines: list[EventEngine]) -> None:
    snn, batch = networks(name)
    first = list(snn.neurons)[:1]  # this one's train is wanted as well
    settings: dict[str, Any] = {"max_spike": max_spike, "record": first, "count_neurons": True, "stagger": 0.5}
    expected = spikezip.simulate(snn, batch, 20, "spike", **settings)
    found = spikezip.simulate(snn, batch, 20, "event", **settings)
    assert_equal(found, expected)
    assert found.neuron_spikes.keys() == snn.neurons.keys()
    assert all(engine.spikes.keys() <= set(first) for engine in engines)
