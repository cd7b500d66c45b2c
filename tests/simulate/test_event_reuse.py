"""Tapes that are kept for further inputs: every run has the spikes of the spike engine, whoever played them before."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from event_runs import assert_equal, compare, networks, other, recorders_made
from torch import Tensor

import spikezip
from spikezip.errors import SpikezipError
from spikezip.execution import executing
from spikezip.measure import ExitRule, simulate_until_confident
from spikezip.simulate import event as event_engine
from spikezip.simulate import shelf
from spikezip.simulate.drive import start
from spikezip.simulate.event import EventEngine


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return recorders_made(monkeypatch)


NAMES = (
    "ViTForImageClassification",
    "SwinForImageClassification",
    "BertForSequenceClassification",
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bits", [8, None])
def test_another_input_of_the_same_shape(name: str, bits: int | None, recorded: list[Any]) -> None:
    snn, batch = networks(name, bits=bits)
    for each in (batch, other(batch), batch):
        compare(snn, each)
    assert len(recorded) == 1


def test_another_drive_of_the_same_tape(recorded: list[Any]) -> None:
    """Coding, staggering and what is recorded belong to the engine; the largest spike is built into the tape."""
    snn, batch = networks("ViTForImageClassification")
    compare(snn, batch)
    for drive in ({"coding": "rate"}, {"stagger": 0.5}, {"record": (), "count_neurons": False}, {"chunk": 3}, {}):
        compare(snn, other(batch), 24, **drive)
    assert len(recorded) == 1
    compare(snn, batch, max_spike=3)
    assert len(recorded) == 2


def test_another_shape_is_another_tape(recorded: list[Any]) -> None:
    snn, batch = networks("BertForSequenceClassification")
    shorter = {name: values[:, :5].contiguous() for name, values in batch.items()}
    for each in (batch, shorter, batch, other(shorter)):
        compare(snn, each)
    assert len(recorded) == 2


def test_inputs_that_are_one_tensor(recorded: list[Any]) -> None:
    snn, batch = networks("BertForSequenceClassification")
    ids = batch["input_ids"] % 2
    compare(snn, {"input_ids": ids, "token_type_ids": ids})
    compare(snn, {"input_ids": batch["input_ids"], "token_type_ids": ids})
    assert len(recorded) == 2


def test_what_was_returned_stays(recorded: list[Any]) -> None:
    snn, batch = networks("ViTForImageClassification")
    compare(snn, batch)
    first = compare(snn, batch)
    held = [first.logits_per_step, first.logits]
    for records in (first.trains, first.tracers, first.spike_counts, first.neuron_spikes):
        held += records.values()
    before = [x.clone() for x in held]
    compare(snn, other(batch))
    assert all(torch.equal(x, was) for x, was in zip(held, before, strict=True))
    assert len(recorded) == 1


# --- networks that change


def scaled_site(snn: Any) -> None:
    next(iter(snn.neurons.values())).scale.mul_(1.25)


def turned_weights(snn: Any) -> None:
    weights = snn.state_dict()
    snn.load_state_dict({name: -x if name.endswith("fc1.codes") else x for name, x in weights.items()})


def narrower_site(snn: Any) -> None:
    list(snn.neurons.values())[3].hi -= 2


def other_forward(snn: Any) -> None:
    norm = snn.vit.layers[1].layernorm_before
    forward = norm.forward
    norm.forward = lambda x: forward(-x)


@pytest.mark.parametrize("change", [scaled_site, turned_weights, narrower_site, other_forward])
def test_a_network_that_has_changed(change: Callable[[Any], None], recorded: list[Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(event_engine.Linear, "share", 100)  # products from events, and so from columns of the weights
    snn, batch = networks("ViTForImageClassification")
    before = compare(snn, batch)
    with torch.no_grad():
        change(snn)
    after = compare(snn, batch)
    assert len(recorded) == 2
    assert any(not torch.equal(train, after.trains[site]) for site, train in before.trains.items())


def test_a_configuration_that_has_changed(recorded: list[Any]) -> None:
    snn, batch = networks("ViTForImageClassification")
    compare(snn, batch)
    snn.config.output_hidden_states = True
    prepared, engine = start(snn, batch, "event")
    with torch.no_grad(), executing(engine):
        output = engine.advance(snn.network, prepared.inputs, 3)
    assert output.hidden_states is not None
    assert len(recorded) == 2


def test_a_hook_that_came_later(recorded: list[Any]) -> None:
    snn, batch = networks("ViTForImageClassification")
    compare(snn, batch)
    seen: list[Any] = []
    snn.vit.layers[0].mlp.register_forward_hook(lambda module, args, output: seen.append(output))
    spikezip.simulate(snn, batch, 6, "event", stop_early=False)
    assert len(seen) == 6


# --- several engines


def test_engines_that_take_turns(recorded: list[Any]) -> None:
    """Each has a tape of its own as long as it lives."""
    snn, batch = networks("ViTForImageClassification")
    compare(snn, batch)
    batches = [batch, other(batch), batch]
    expected = [spikezip.simulate(snn, each, 12, "spike").logits_per_step for each in batches]
    engines = [start(snn, each, "event")[1] for each in batches]
    outputs: list[list[Tensor]] = [[], [], []]
    with torch.no_grad():
        for n in (1, 3, 5, 3):
            for engine, each, found in zip(engines, batches, outputs, strict=True):
                with executing(engine):
                    found.append(engine.advance(snn.network, each, n).logits)
    for found, logits in zip(outputs, expected, strict=True):
        assert torch.equal(torch.cat(found), logits)
    tapes = {id(engine.tape) for engine in engines if isinstance(engine, EventEngine)}
    assert len(tapes) == len(recorded) == 3
    compare(snn, batch)
    del engine, engines
    compare(snn, batch)
    assert len(recorded) == 4


def test_threads_at_once(recorded: list[Any]) -> None:
    snn, batch = networks("ViTForImageClassification")
    batches = [batch, other(batch), other(other(batch))]
    expected = [spikezip.simulate(snn, each, 16, "spike") for each in batches]
    together, errors = threading.Barrier(3), []

    def work(number: int) -> None:
        try:
            for turn in range(6):
                together.wait()
                which = (number + turn) % 3
                assert_equal(spikezip.simulate(snn, batches[which], 16, "event"), expected[which])
        except BaseException as error:
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(recorded) == 3  # no two of them had one tape; from the second turn on there was one for each


def test_a_batch_that_is_split(recorded: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    snn, batch = networks("BertForSequenceClassification")
    pairs = {name: torch.cat([values[:2], values[:2].roll(1, -1)]) for name, values in batch.items()}
    for each in (pairs, other(pairs), pairs):
        compare(snn, each)
    assert len(recorded) == 2


def test_samples_that_leave(recorded: list[Any]) -> None:
    for name, bits in (("ViTForImageClassification", 8), ("BertForSequenceClassification", None)):
        snn, batch = networks(name, bits=bits)
        recorded.clear()
        for _ in range(2):
            for kept in ([0, 2], [2, 1]):
                found = []
                for engine_name in ("event", "spike"):
                    prepared, engine = start(snn, batch, engine_name, count_neurons=True)
                    with torch.no_grad(), executing(engine):
                        outputs = [engine.advance(snn.network, prepared.inputs, 4).logits]
                        engine.select(torch.tensor(kept))
                        fewer = {key: values[kept] for key, values in prepared.inputs.items()}
                        outputs.append(engine.advance(snn.network, fewer, 9).logits)
                    found.append((outputs, engine))
                (ours, engine), (theirs, judge) = found
                assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
                for site, codes in judge.tracers.items():
                    assert torch.equal(engine.tracers[site].to(codes.dtype), codes)
                    assert torch.equal(engine.neuron_spikes[site], judge.neuron_spikes[site])
        assert len(recorded) == 2


def test_confidence_exits_find_tapes(recorded: list[Any]) -> None:
    snn, batch = networks("ViTForImageClassification")
    rule = ExitRule("margin", 0.02, patience=2)
    expected = simulate_until_confident(snn, batch, rule, "spike", chunk=4)
    for _ in range(3):
        found = simulate_until_confident(snn, batch, rule, "event", chunk=4)
        assert torch.equal(found.logits, expected.logits)
        assert torch.equal(found.steps, expected.steps)
        for site, counts in expected.spike_counts.items():
            assert torch.equal(found.spike_counts[site], counts)
    first = len(recorded)
    simulate_until_confident(snn, batch, rule, "event", chunk=4)
    assert len(recorded) == first


def test_after_an_error(recorded: list[Any]) -> None:
    snn, batch = networks("ViTForImageClassification")
    compare(snn, batch)
    huge = {"pixel_values": batch["pixel_values"] * 1e30}
    prepared, engine = start(snn, huge, "event")
    with torch.no_grad(), executing(engine), pytest.raises(SpikezipError, match="the input of"):
        engine.advance(snn.network, prepared.inputs, 4)
    assert not engine.injected
    compare(snn, other(batch))  # though that engine is still there
    assert len(recorded) == 1


# --- what the pass looks at


def looking(do: Callable[[Tensor], Tensor]) -> tuple[Any, Tensor]:
    """A network that does something with its input first."""
    snn, batch = networks("ViTForImageClassification")
    patches = snn.vit.embeddings.patch_embeddings
    forward = patches.forward
    patches.forward = lambda x, *args, **kwargs: forward(do(x), *args, **kwargs)
    return snn, batch["pixel_values"].abs()


def changed_in_place(x: Tensor) -> Tensor:
    both = x.unbind(0)
    both[0].mul_(2)
    return torch.stack(both)


def into_memory(x: Tensor) -> Tensor:
    memory = torch.zeros(x.shape)
    memory[:, :1] = x[:, :1]
    return memory + x


ONCE: list[tuple[Any, str | None]] = [
    (lambda x: x - x.mean(), None),
    (lambda x: x / x.amax() if bool(x.amin() < 0) else x * 2, None),
    (lambda x: x * 2 if len(x[x > 0]) == x.numel() else x, None),
    (lambda x: (x * 2).add_(x.mean()), None),
    (into_memory, "changes what others have seen of the input"),
    (lambda x: changed_in_place(x.clone()), "changes what others have seen of the input"),
    (lambda x: x * (2 if x.sum(dim=(1, 2, 3)).tolist()[0] > 0 else 1), "tolist takes numbers out of torch"),
    (lambda x: x + float(x.numpy().mean()), "numpy takes numbers out of torch"),
]


@pytest.mark.parametrize(("do", "why"), ONCE)
def test_only_where_the_tape_covers_the_input(do: Any, why: str | None, recorded: list[Any]) -> None:
    snn, images = looking(do)
    for each in (images, -images, images * 0.5, -images.flip(0), images):
        compare(snn, {"pixel_values": each}, 10)
    assert all(str(why) in str(recorder.entry.once) for recorder in recorded)
    assert len(recorded) == 5 if why else len(recorded) <= 2


def test_looks_that_differ_every_time(recorded: list[Any]) -> None:
    """A tape that is never of use goes, so that there are not more and more of them to try."""
    snn, images = looking(lambda x: x / float(x.mean()))
    for number in range(8):
        compare(snn, {"pixel_values": images + number}, 4)
    assert len(recorded) == 8
    assert len(shelf._shelves[snn].tapes) <= shelf._MISSES
