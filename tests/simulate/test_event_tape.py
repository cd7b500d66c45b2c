"""The tape of the event engine: no work where nothing happens, and no tape of what cannot be written down."""

from typing import Any

import pytest
import torch
from event_runs import assert_equal, compare, compiled, counted, engines_made, networks
from torch import Tensor

import spikezip
from spikezip.execution import executing
from spikezip.simulate import nodes, shelf
from spikezip.simulate.drive import start
from spikezip.simulate.event import EventEngine
from spikezip.simulate.recorder import Recorder
from spikezip.simulate.tape import Operator


@pytest.fixture(scope="module")
def vit() -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    return networks("ViTForImageClassification")


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[EventEngine]:
    return engines_made(monkeypatch)


# --- silence


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
        looked[self.site.name] = self.seat.engine.step
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
        shelf.forget()
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
    (node,) = (node for group in tape.groups for node in group.nodes)
    assert isinstance(node, Operator)
    assert len(node.steps) == 3
    tape.forget()
    tape.cells[0] = torch.ones(3)
    node.run(tape.cells)
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
