"""The event engine: the spikes of the others, and no work where nothing happens."""

from typing import Any

import pytest
import tiny_models
import torch
from torch import Tensor, nn

import spikezip
from spikezip.errors import ConfigError, SpikezipError
from spikezip.execution import executing
from spikezip.simulate import Run, nodes
from spikezip.simulate import event as event_engine
from spikezip.simulate.drive import chosen, start
from spikezip.simulate.event import EventEngine
from spikezip.simulate.recorder import Recorder

compiled = pytest.mark.skipif(not event_engine.numba_is_here(), reason="events are listed by compiled loops: numba")


def networks(name: str, levels: int = 16, bits: int | None = 8, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)
    config = spikezip.QuantConfig(levels=levels, weight_bits=bits, **options)
    return spikezip.convert(spikezip.calibrate(spikezip.quantize(model, config), [batch])), batch


@pytest.fixture(scope="module")
def vit() -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    return networks("ViTForImageClassification")


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[EventEngine]:
    """The event engines that are made."""
    made: list[EventEngine] = []
    init = EventEngine.__init__

    def watched(self: EventEngine, *args: Any) -> None:
        init(self, *args)
        made.append(self)

    monkeypatch.setattr(EventEngine, "__init__", watched)
    return made


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
    compare(*vit)
    compare(*networks("BertForSequenceClassification"), stagger=0.5, coding="rate")


def test_in_inference_mode(vit: Any) -> None:
    snn, batch = vit
    with torch.inference_mode():
        compare(snn, {name: values.clone() for name, values in batch.items()})


def test_on_several_threads(vit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    compare(*vit, "equilibrium")


# --- silence


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """What is called with this name from now on."""
    calls: list[Any] = []
    function = getattr(owner, name)

    def count(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, count)
    return calls


@compiled
def test_what_rests_costs_nothing(vit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    snn, batch = vit
    one = {name: values[:1] for name, values in batch.items()}
    rest = spikezip.simulate(snn, one, "equilibrium").t_eq[0]
    assert rest is not None
    prepared, engine = start(snn, one, "event")
    assert isinstance(engine, EventEngine)
    with torch.no_grad(), executing(engine):
        engine.advance(snn.network, prepared.inputs, rest)
        assert engine.tape is not None
        fired = counted(monkeypatch, nodes.Population, "fire")
        multiplied = counted(monkeypatch, nodes.Product, "run")
        passed = counted(monkeypatch, engine, "_pass")
        output = engine.advance(snn.network, prepared.inputs, 10)
    assert len(fired) <= len(snn.neurons)
    still = len(fired)
    with torch.no_grad(), executing(engine):
        engine.advance(snn.network, prepared.inputs, 30)
    assert (len(fired), len(passed)) == (still, 0)
    assert len(multiplied) <= still
    assert torch.equal(output.logits[0], spikezip.simulate(snn, one, 60, "spike").logits)


@compiled
def test_silence_spreads_from_the_input(vit: Any, engines: list[EventEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites that have come to rest are not looked at while others still fire."""
    snn, batch = vit
    looked: dict[str, int] = {}
    fire = nodes.Population.fire

    def watched(self: nodes.Population, x: Tensor) -> None:
        looked[self.site.name] = self.engine.step
        fire(self, x)

    monkeypatch.setattr(nodes.Population, "fire", watched)
    run = spikezip.simulate(snn, {name: values[:1] for name, values in batch.items()}, 40, "event")
    last = {site: steps[0] for site, steps in run.site_t_eq.items()}
    first = next(iter(last))
    assert looked[first] <= last[first] + 1 < run.t_eq[0]
    # Afterwards a site is looked at only because something on its way has fired.
    assert max(looked.values()) <= run.t_eq[0] + 1


@compiled
def test_few_events_are_added_and_many_are_not(vit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    snn, batch = vit
    expected = spikezip.simulate(snn, batch, 40, "spike")
    by_share = {}
    for share in (0, 0.05, 100):
        monkeypatch.setattr(nodes.Linear, "share", share)
        monkeypatch.setattr(nodes.Matmul, "share", share)
        added = [counted(monkeypatch, nodes.event, name) for name in ("add_linear", "add_matmul")]
        assert_equal(spikezip.simulate(snn, batch, 40, "event"), expected)
        by_share[share] = [len(calls) for calls in added]
    assert by_share[0] == [0, 0]
    assert all(0 < some < many for some, many in zip(by_share[0.05], by_share[100], strict=True))


# --- passes that cannot be written down


def with_numpy(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out.numpy()[:] = x.numpy()
    return out


LEFT_OUT = "computes something without operators of torch"
CHANGES: list[tuple[Any, int, str | None]] = [
    (lambda x: x.add_(0.0), 0, "changes what others have seen"),
    (lambda x: x.add_(0.0), 1, None),
    (lambda x: torch.mul(x, 1.0, out=torch.empty_like(x)), 1, "changes what others have seen"),
    (lambda x: x + 0 * torch.rand_like(x), 1, "draws random numbers"),
    (lambda x: x + 0 * torch.rand(1), 1, "draws random numbers"),
    (lambda x: x if x.isnan().any() else x + 0, 1, "looks at the numbers"),
    (with_numpy, 1, LEFT_OUT),
    (lambda x: torch.from_numpy(x.numpy().copy()), 1, LEFT_OUT),
    (lambda x: torch.cat([x[:, :1], x[:, 1:]], dim=1), 1, None),
    (lambda x: torch.stack(x.unbind(0)), 0, None),
]


@pytest.mark.parametrize(("do", "layer", "why"), CHANGES)
def test_what_cannot_be_written_down(do: Any, layer: int, why: str | None, engines: list[EventEngine]) -> None:
    """A LayerNorm does something with its input first."""
    snn, batch = networks("ViTForImageClassification")
    norm = snn.vit.layers[layer].layernorm_before
    forward = norm.forward
    norm.forward = lambda x: forward(do(x))
    compare(snn, batch, chunk=4)
    if why is None:
        assert engines[-1].tape is not None
        assert engines[-1].refused is None
    else:
        assert engines[-1].tape is None
        assert why in str(engines[-1].refused)


def test_hooks_see_every_step(vit: Any, engines: list[EventEngine]) -> None:
    snn, batch = vit
    seen: list[Tensor] = []
    hook = snn.vit.layers[0].mlp.register_forward_hook(lambda module, args, output: seen.append(output))
    try:
        compare(snn, batch, 6, stop_early=False)
    finally:
        hook.remove()
    assert len(seen) == 2 * 6
    assert "hook on" in str(engines[-1].refused)


def test_in_place_on_what_nobody_else_has_seen() -> None:
    given = torch.arange(3.0)
    with Recorder([given]) as recorder:
        recorder.inputs([given])
        twice = (given * 2).add_(1).mul_(given)
    tape = recorder.tape(twice)
    assert tape is not None
    assert [len(node.steps) for group in tape.groups for node in group.nodes] == [3]  # type: ignore[attr-defined]
    tape.forget()
    tape.cells[0] = torch.ones(3)
    tape.groups[0].nodes[0].run(tape.cells)
    assert tape.cells[tape.groups[0].head.writes[0]].tolist() == [3.0, 3.0, 3.0]


def test_what_may_change_as_a_keyword() -> None:
    given = torch.arange(3.0)
    with Recorder([given]) as recorder:
        recorder.inputs([given])
        result = torch.searchsorted(torch.arange(3.0), torch.ones(1), sorter=given.long())
    assert recorder.tape(result) is None
    assert "as a keyword" in str(recorder.refused)


def test_a_constant_that_changes() -> None:
    constant = torch.ones(3)
    given = torch.arange(3.0)
    with Recorder([given, constant]) as recorder:
        recorder.inputs([given])
        result = given * constant
        constant.add_(1)
    assert recorder.tape(result) is None
    assert recorder.refused == "a constant has changed"


# --- other inputs, fewer samples, errors


def test_another_input_is_another_pass(vit: Any) -> None:
    snn, batch = vit
    other = {"pixel_values": batch["pixel_values"].flip(0)}
    _, engine = start(snn, batch, "event")
    _, judge = start(snn, batch, "spike")
    for driver in (engine, judge):
        driver.ended = []  # type: ignore[attr-defined]
        with torch.no_grad(), executing(driver):
            for inputs in (batch, other, batch):
                driver.injected.clear()
                driver.ended.append(driver.advance(snn.network, inputs, 5).logits)  # type: ignore[attr-defined]
    for ours, theirs in zip(engine.ended, judge.ended, strict=True):  # type: ignore[attr-defined]
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
    run = spikezip.simulate(snn, batch, 5, "auto")
    assert run.engine == best
    assert_equal(run, spikezip.simulate(snn, batch, 5, "spike"))
    assert chosen(snn, "spike") == "spike"
    assert chosen(networks("ViTForImageClassification", bits=None)[0], "auto") == "folded"
    assert chosen(networks("ViTForImageClassification")[0].double(), "auto") == "folded"
    monkeypatch.setattr(drive, "numba_is_here", lambda: False)
    assert spikezip.simulate(snn, batch, 5, "auto").engine == "folded"


def test_not_on_a_gpu(vit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    snn, batch = vit
    monkeypatch.setattr(type(snn), "device", torch.device("cuda", 0))
    with pytest.raises(ConfigError, match=r"computes on the CPU, and the network is on cuda:0.*engine='folded'"):
        spikezip.simulate(snn, batch, 5, "event")
    assert chosen(snn, "auto") == "folded"
    with pytest.raises(ConfigError, match="folded, spike, event, auto"):
        spikezip.simulate(snn, batch, 5, "fast")
    with pytest.raises(ConfigError, match=r"takes what spikezip\.convert returns"):
        spikezip.simulate(nn.Linear(1, 1), batch, 5, "auto")  # type: ignore[arg-type]
