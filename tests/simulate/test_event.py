"""The event engine: the spikes of the others, whatever the network and its settings."""

from typing import Any

import pytest
import tiny_models
import torch
from event_runs import assert_equal, compare, engines_made, networks
from torch import Tensor, nn

import spikezip
from spikezip.errors import ConfigError, SpikezipError
from spikezip.execution import executing
from spikezip.simulate import event as event_engine
from spikezip.simulate import nodes, shelf
from spikezip.simulate.drive import chosen, start
from spikezip.simulate.event import EventEngine


@pytest.fixture(scope="module")
def vit() -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    return networks("ViTForImageClassification")


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[EventEngine]:
    return engines_made(monkeypatch)


# One row per test: (levels, weight_bits, coding, max_spike, stagger, chunk); models go round them.
SETTINGS = [
    (16, 8, "analog", 1, 0, None),
    (4, 16, "rate", 3, 0.5, 5),
    (256, 8, "analog", 40, 0, 7),
    (32, 16, "rate", 1, 0.29, 1),
    (16, None, "analog", 1, 1, 6),
    (32, 8, "analog", 2, 2.5, 20),
]
CASES = [(name, SETTINGS[i % len(SETTINGS)]) for i, name in enumerate(tiny_models.ALL)]
CASES += [(name, SETTINGS[(i + 3) % len(SETTINGS)]) for i, name in enumerate(tiny_models.HEADS)]


@pytest.mark.parametrize(("name", "setting"), CASES, ids=[f"{n}-{'-'.join(map(str, s))}" for n, s in CASES])
def test_spikes_are_those_of_the_spike_engine(
    name: str, setting: tuple[Any, ...], engines: list[EventEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    if setting[-1] != 7:  # in most cases products are made from events, however many
        monkeypatch.setattr(nodes.Linear, "share", 100)
        monkeypatch.setattr(nodes.Matmul, "share", 100)
    levels, bits, coding, max_spike, stagger, chunk = setting
    snn, batch = networks(name, levels, bits)
    compare(snn, batch, 16, coding=coding, max_spike=max_spike, stagger=stagger, chunk=chunk)
    assert engines[-1].refused is None
    assert engines[-1].tape is not None


def test_a_scale_for_each_channel() -> None:
    for name, sites in (("BertForSequenceClassification", "*.LayerNorm"), ("ViTForImageClassification", "*layernorm*")):
        snn, batch = networks(name, sites={sites: spikezip.SiteConfig(per_channel=True)})
        assert any(neuron.per_channel for neuron in snn.neurons.values())
        compare(snn, batch)


def test_double_precision(vit: Any) -> None:
    snn, batch = networks("ViTForImageClassification")
    compare(snn.double(), {"pixel_values": batch["pixel_values"].double()})


def test_without_numba(vit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_engine, "numba_is_here", lambda: False)
    shelf.forget()
    compare(*vit)
    shelf.forget()
    compare(*networks("BertForSequenceClassification"), stagger=0.5, coding="rate")


def test_in_inference_mode(vit: Any) -> None:
    snn, batch = vit
    with torch.inference_mode():
        compare(snn, {name: values.clone() for name, values in batch.items()})


def test_on_several_threads(vit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    compare(*vit, "equilibrium")


# --- other inputs, fewer samples, errors


def test_another_input_is_another_pass(vit: Any) -> None:
    snn, batch = vit
    other = {"pixel_values": batch["pixel_values"].flip(0)}
    ended: dict[str, list[Tensor]] = {"event": [], "spike": []}
    for name, outputs in ended.items():
        _, driver = start(snn, batch, name)
        with torch.no_grad(), executing(driver):
            for inputs in (batch, other, batch):
                driver.injected.clear()
                outputs.append(driver.advance(snn.network, inputs, 5).logits)
    assert not torch.equal(ended["spike"][0], ended["spike"][1])
    for ours, theirs in zip(ended["event"], ended["spike"], strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("bits", [8, None])
def test_samples_that_leave(bits: int | None) -> None:
    snn, batch = networks("BertForSequenceClassification", bits=bits)
    results = []
    for name in ("event", "spike"):
        prepared, engine = start(snn, batch, name, count_neurons=True)
        with torch.no_grad(), executing(engine):
            outputs = [engine.advance(snn.network, prepared.inputs, 5).logits]
            engine.select(torch.tensor([0, 2]))
            fewer = {key: values[[0, 2]] for key, values in prepared.inputs.items()}
            outputs.append(engine.advance(snn.network, fewer, 7).logits)
        results.append((outputs, engine))
    (ours, engine), (theirs, judge) = results
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    for site, codes in judge.tracers.items():
        assert torch.equal(engine.tracers[site].to(codes.dtype), codes)
        assert torch.equal(engine.neuron_spikes[site], judge.neuron_spikes[site])
        assert torch.equal(torch.cat(engine.spike_counts[site]), torch.cat(judge.spike_counts[site]).long())


def test_hidden_states_of_every_step(vit: Any) -> None:
    snn, batch = vit
    outputs = []
    for name in ("event", "spike"):
        prepared, engine = start(snn, batch, name)
        with torch.no_grad(), executing(engine):
            outputs.append(engine.advance(snn.network, {**prepared.inputs, "output_hidden_states": True}, 6))
    assert len(outputs[0].hidden_states) == len(outputs[1].hidden_states) > 2
    for ours, theirs in zip(outputs[0].hidden_states, outputs[1].hidden_states, strict=True):
        assert torch.equal(ours, theirs)


def test_no_number(vit: Any) -> None:
    snn, batch = vit
    dark = {"pixel_values": torch.full_like(batch["pixel_values"], torch.nan)}
    with pytest.raises(SpikezipError):
        spikezip.simulate(snn, dark, 4, "event")


# --- which engine


def test_auto_takes_events_where_they_are_compiled(vit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from spikezip.simulate import drive

    snn, batch = vit
    best = "event" if drive.numba_is_here() else "folded"
    run = spikezip.simulate(snn, batch, 5)
    assert run.engine == best
    assert_equal(run, spikezip.simulate(snn, batch, 5, "spike"))
    assert chosen(snn, "spike") == "spike"
    assert chosen(networks("ViTForImageClassification", bits=None)[0], "auto") == "folded"
    assert chosen(networks("ViTForImageClassification")[0].double(), "auto") == "folded"
    monkeypatch.setattr(drive, "numba_is_here", lambda: False)
    assert spikezip.simulate(snn, batch, 5).engine == "folded"


def test_not_on_a_gpu(vit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    snn, batch = vit
    monkeypatch.setattr(type(snn), "device", torch.device("cuda", 0))
    with pytest.raises(ConfigError, match=r"computes on the CPU, and the network is on cuda:0.*engine='folded'"):
        spikezip.simulate(snn, batch, 5, "event")
    assert chosen(snn, "auto") == "folded"
    with pytest.raises(ConfigError, match="folded, spike, event, auto"):
        spikezip.simulate(snn, batch, 5, "fast")
    stranger: Any = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=r"takes what spikezip\.convert returns"):
        spikezip.simulate(stranger, batch, 5, "auto")
