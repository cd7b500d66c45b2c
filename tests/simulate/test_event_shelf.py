"""The shelf of tapes: what lies there goes with its network, holds no engine, and takes only so much memory."""

import gc
import weakref
from typing import Any

import pytest
import torch
from event_runs import compare, networks, other, recorders_made

from spikezip.execution import executing
from spikezip.simulate import shelf
from spikezip.simulate.drive import start


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return recorders_made(monkeypatch)


def test_tapes_go_with_their_network() -> None:
    snn, batch = networks("ViTForImageClassification")
    compare(snn, batch)
    (kept,) = shelf._shelves[snn].tapes
    network, tape = weakref.ref(snn), weakref.ref(kept.tape)
    del snn, kept
    gc.collect()
    assert network() is None
    assert tape() is None


def test_an_engine_is_not_kept() -> None:
    """Without the collector's help: another run is to find its tape at once."""
    snn, batch = networks("ViTForImageClassification")
    prepared, engine = start(snn, batch, "event")
    with torch.no_grad(), executing(engine):
        engine.advance(snn.network, prepared.inputs, 3)
    gone = weakref.ref(engine)
    gc.disable()
    try:
        del engine
        assert gone() is None
    finally:
        gc.enable()


def test_only_so_much_memory(recorded: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    snn, batch = networks("BertForSequenceClassification")
    lengths = [{name: values[:, :n].contiguous() for name, values in batch.items()} for n in (4, 5, 6)]
    compare(snn, lengths[0])
    (kept,) = shelf._shelves[snn].tapes
    assert kept.size > shelf._OBJECTS + sum(kept.tape.groups[0].head.codes.shape)
    monkeypatch.setattr(shelf, "MOST_BYTES", int(2.5 * kept.size))
    for each in (*lengths[1:], lengths[2], lengths[1]):
        compare(snn, each)
    assert len(recorded) == 3
    compare(snn, lengths[0])  # was the oldest
    assert len(recorded) == 4
    monkeypatch.setattr(shelf, "MOST_BYTES", 1)
    compare(snn, other(lengths[0]))  # what is there stays until another one comes
    shelf.forget()
    compare(snn, lengths[0])
    compare(snn, lengths[0])
    assert len(recorded) == 6
    assert not shelf._shelves[snn].tapes


def test_weights_without_versions(recorded: list[Any]) -> None:
    """Nobody could tell whether they have changed."""
    with torch.inference_mode():
        snn, batch = networks("ViTForImageClassification")
    batch = {name: values.clone() for name, values in batch.items()}
    for each in (batch, other(batch)):
        compare(snn, each)
    assert len(recorded) == 2
    assert not shelf._shelves[snn].tapes


def test_inference_mode_in_between(recorded: list[Any]) -> None:
    snn, batch = networks("ViTForImageClassification")
    compare(snn, batch)
    with torch.inference_mode():
        compare(snn, {name: values.clone() for name, values in batch.items()})
    there = len(recorded)
    compare(snn, other(batch))
    assert len(recorded) == there
