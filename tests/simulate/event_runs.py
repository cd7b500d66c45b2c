"""Networks for the event engine, and its runs compared with those of the spike engine, spike by spike."""

from typing import Any

import pytest
import tiny_models
import torch
from torch import Tensor

import spikezip
from spikezip.ops.compiled import numba_is_here
from spikezip.simulate import Run
from spikezip.simulate import event as event_engine
from spikezip.simulate.event import EventEngine

compiled = pytest.mark.skipif(not numba_is_here(), reason="events are listed by compiled loops: numba")


def networks(name: str, levels: int = 16, bits: int | None = 8, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)
    config = spikezip.QuantConfig(levels=levels, weight_bits=bits, **options)
    return spikezip.convert(spikezip.calibrate(spikezip.quantize(model, config), [batch])), batch


def assert_equal(found: Run, expected: Run) -> None:
    assert torch.equal(found.logits_per_step, expected.logits_per_step)
    assert (found.t_eq, found.steps) == (expected.t_eq, expected.steps)
    for name in ("spike_counts", "tracers", "trains", "neuron_spikes"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert list(ours) == list(theirs)
        for site in theirs:
            assert ours[site].dtype == theirs[site].dtype
            assert torch.equal(ours[site], theirs[site]), (name, site)


def compare(snn: Any, batch: Any, steps: Any = 20, **settings: Any) -> Run:
    """A run of the event engine, after comparing it with the spike engine's in every spike."""
    settings = {"record": list(snn.neurons), "count_neurons": True, **settings}
    expected = spikezip.simulate(snn, batch, steps, "spike", **{**settings, "chunk": None})
    found = spikezip.simulate(snn, batch, steps, "event", **settings)
    assert_equal(found, expected)
    assert found.engine == "event"
    return found


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """What is called with this name from now on."""
    calls: list[Any] = []
    function = getattr(owner, name)

    def count(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, count)
    return calls


def engines_made(monkeypatch: pytest.MonkeyPatch) -> list[EventEngine]:
    """The event engines that are made from now on."""
    made: list[EventEngine] = []
    init = EventEngine.__init__

    def watched(self: EventEngine, *args: Any) -> None:
        init(self, *args)
        made.append(self)

    monkeypatch.setattr(EventEngine, "__init__", watched)
    return made


def recorders_made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The recorders that are made from now on: one for each pass that is written down."""
    made: list[Any] = []

    class Watched(event_engine.Recorder):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(event_engine, "Recorder", Watched)
    return made


def other(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A batch of the same shape: samples in another order, and each of them shifted, its mask too."""
    return {name: values.flip(0).roll(1, -1) for name, values in batch.items()}
