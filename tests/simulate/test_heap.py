"""Memory of earlier runs on a CPU goes back to the system, once it is much."""

import sys
from typing import Any

import pytest
import torch
from event_runs import networks

import spikezip
from spikezip.simulate import heap


class Process:
    """A process that grows as it is told, and can give back what is above 5 GiB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size, self.asked = 6 << 30, 0
        monkeypatch.setattr(heap, "_least", None)
        monkeypatch.setattr(heap, "_resident", lambda: self.size)
        monkeypatch.setattr(heap, "_trim", lambda: self.trim)

    def trim(self, pad: int) -> int:
        assert pad == 0
        self.asked, self.size = self.asked + 1, 5 << 30
        return 1


def test_only_a_process_that_has_grown_a_lot_is_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    assert not heap.give_back()  # where it begins
    process.size += heap.SLACK - 1
    assert not heap.give_back()
    process.size += 1
    assert heap.give_back()
    assert (process.asked, process.size) == (1, 5 << 30)
    process.size += heap.SLACK - 1
    assert not heap.give_back()
    process.size = 3 << 30  # somebody else has given back
    assert not heap.give_back()
    process.size += heap.SLACK
    assert heap.give_back()
    assert process.asked == 2


@pytest.mark.parametrize("missing", ["_resident", "_trim"])
def test_elsewhere_nothing_happens(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    monkeypatch.setattr(heap, missing, lambda: None)
    for _ in range(2):
        assert not heap.give_back()
        process.size *= 2
    assert process.asked == 0


@pytest.mark.skipif(sys.platform != "linux", reason="sizes of processes are read as Linux gives them")
def test_what_was_freed_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "SLACK", 1 << 26)
    monkeypatch.setattr(heap, "_least", None)
    if heap._trim() is None:
        pytest.skip("this C library has no malloc_trim")
    before = heap._resident()
    assert before is not None
    heap.give_back()
    # Blocks too small for maps of their own, and one behind them that stays: freed, they are kept by the library.
    held: list[Any] = [torch.ones(1 << 14) for _ in range(3000)]
    held = held[-1:]
    held.append(held)  # only the collector finds this one
    del held
    grown = heap._resident()
    assert grown is not None
    if grown - before < heap.SLACK:
        pytest.skip("this C library has given them back by itself")
    assert heap.give_back()
    after = heap._resident()
    assert after is not None
    assert after - before < (grown - before) / 2


def test_a_run_looks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(heap, "give_back", lambda: asked.append(1))
    snn, batch = networks("ViTForImageClassification")
    spikezip.simulate(snn, batch, steps=2)
    assert asked == [1]
