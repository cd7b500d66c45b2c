"""Recorded chunks, with a graph that notes the operators of a pass and runs them again: on the GPU CUDA does that."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import spikezip
from spikezip.ops import kernels
from spikezip.ops.grid import choose
from spikezip.ops.neuron import reference
from spikezip.ops.rounding import reference as rounding
from spikezip.simulate import drive, folded, graphs
from spikezip.spiking.unscaled import Late


class Graph:
    """What torch.cuda.CUDAGraph does, for operators on the CPU."""

    recorded = replayed = 0

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def replay(self) -> None:
        Graph.replayed += 1
        for func, args, kwargs, results in self.calls:
            again, _ = tree_flatten(func(*args, **kwargs))
            for old, new in zip(results, again, strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


# What makes the host wait for the GPU, or copies from it: a number of a tensor, a tensor of numbers.
WAITING = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.lift_fresh.default,
)


class Noting(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, Late) for kind in types):
            return NotImplemented  # what it does is noted, operator by operator
        if func in WAITING:
            raise RuntimeError(f"{func} is not permitted while a stream is being captured")
        result = func(*args, **(kwargs or {}))
        self.graph.calls.append((func, args, kwargs or {}, tree_flatten(result)[0]))
        return result


@contextmanager
def recording(graph: Graph) -> Iterator[None]:
    Graph.recorded += 1
    with Noting(graph), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "is_recording", lambda x: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)  # transformers asks for that
        yield


def plain_walk(
    u: torch.Tensor, tracer: torch.Tensor, scale: torch.Tensor, lo: int, hi: int, most: int, samples: int, after: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    assert after is None
    codes = reference.scan(rounding.code(u, scale, lo, hi), tracer.to(u.dtype), most)
    spikes = codes.diff(dim=0, prepend=tracer.to(u.dtype)[None])
    return codes.to(tracer.dtype), spikes.abs().view(len(u), samples, -1).sum(dim=2)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> type[Graph]:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    for module in (folded, drive, choose):  # compiled loops are no operators, and fast ones look at their data
        monkeypatch.setattr(module, "numba_is_here", lambda: False)
    monkeypatch.setattr(folded.neuron, "walk", plain_walk)
    may_record = graphs._may_record

    def on_any_device(engine: Any, inputs: Any) -> bool:
        images = torch.empty(0)
        images.__class__ = type("OnGpu", (torch.Tensor,), {"is_cuda": True})
        return may_record(engine, {"images": images})

    monkeypatch.setattr(graphs, "_may_record", on_any_device)
    Graph.recorded = Graph.replayed = 0
    return Graph


def network() -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**shape, image_size=8, patch_size=4, hidden_act="relu")
    images = torch.randn(8, 3, 8, 8)
    model = transformers.ViTForImageClassification(config)
    return spikezip.convert(spikezip.calibrate(spikezip.quantize(model), images)), images


def same(a: Any, b: Any) -> bool:
    sites = a.spike_counts
    return torch.equal(a.logits_per_step, b.logits_per_step) and all(
        torch.equal(sites[name], b.spike_counts[name]) and torch.equal(a.tracers[name], b.tracers[name])
        for name in sites
    )


def run(snn: Any, images: torch.Tensor, **other: Any) -> Any:
    return spikezip.simulate(snn, images, 12, **{"engine": "folded", "chunk": 3, "stop_early": False, **other})


def test_replayed_chunks_give_the_same_spikes(recorded: type[Graph]) -> None:
    snn, images = network()
    first, second, third = images[:6].chunk(3)
    expected = [spikezip.simulate(snn, x, 12, "spike", stop_early=False) for x in (first, second, third)]
    found = [run(snn, x) for x in (first, second, third)]
    assert recorded.recorded == 1
    assert recorded.replayed == 3 + 4 + 4  # the first chunk of all runs plainly
    assert all(same(a, b) for a, b in zip(expected, found, strict=True))


def test_a_network_that_was_seen_to_rest_gets_other_kernels(
    recorded: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[tuple[bool, bool]] = []
    plainly = folded.FoldedEngine.run

    def noted(self: Any, *args: Any) -> Any:
        passes.append((self.in_place, self.resting))
        return plainly(self, *args)

    monkeypatch.setattr(folded.FoldedEngine, "run", noted)
    snn, images = network()
    expected = spikezip.simulate(snn, images, 12, "spike", stop_early=False)
    monkeypatch.setattr(graphs, "RESTS", 1.1)  # never
    assert same(expected, run(snn, images))
    assert passes == [(False, False), (True, False)]  # plainly, then recorded
    monkeypatch.setattr(graphs, "RESTS", 0.0)  # this run will be found to rest, the next one knows
    assert same(expected, run(snn, images))
    assert len(passes) == 2
    assert same(expected, run(snn, images))
    assert passes[2:] == [(False, True), (True, True)]
    assert recorded.recorded == 2


def test_what_counts_as_rest(recorded: type[Graph]) -> None:
    snn, images = network()
    run(snn, images)
    memory = graphs._memories[snn]
    counts = torch.ones(4, 5, 2)
    graphs.note_rest(snn.network, counts)
    assert not memory.rests
    counts[2:] = 0
    graphs.note_rest(snn.network, counts)
    assert memory.rests
    graphs.note_rest(snn.network, counts[:0])  # of nothing nothing follows
    assert memory.rests


def test_nothing_is_recorded_without_room(recorded: type[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[int] = []

    def full(shapes: Any, taken: int) -> None:
        wanted.append(taken)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(graphs, "_want_room", full)
    monkeypatch.setattr(graphs, "_memory_of", lambda inputs: graphs.Allocated(1000, 3000))
    snn, images = network()
    expected = spikezip.simulate(snn, images, 12, "spike", stop_early=False)
    assert all(same(expected, run(snn, images)) for _ in range(2))
    assert recorded.recorded == 0
    assert wanted == [2000]  # it is tried once, not for every chunk
    monkeypatch.setattr(graphs, "_want_room", lambda shapes, taken: None)
    graphs.forget()
    assert same(expected, run(snn, images))
    assert recorded.recorded == 1


def test_a_run_that_lacks_memory_after_a_replay_goes_back(
    recorded: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    snn, images = network()
    expected = spikezip.simulate(snn, images, 12, "spike", stop_early=False)
    assert same(expected, run(snn, images))
    empty_like, calls = torch.empty_like, {"left": 2}

    def full(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls["left"] -= 1
        if calls["left"] == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty_like(*args, **kwargs)

    monkeypatch.setattr(torch, "empty_like", full)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with pytest.warns(UserWarning, match="3 steps at once do not fit"):
        found = run(snn, images)
    assert same(expected, found)


def test_a_recorded_pass_has_no_other_masks(recorded: type[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[Any] = []

    def attend(self: Any, owner: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float) -> None:
        masks.append(mask)

    monkeypatch.setattr(folded.FoldedEngine, "attend", attend)
    snn, images = network()
    run(snn, images)
    assert recorded.recorded == 1
    assert masks == [None, None]  # of the plain pass and of the recorded one


def test_runs_that_take_turns_keep_their_tracers(recorded: type[Graph]) -> None:
    snn, images = network()
    run(snn, images[:2])
    engines = [drive.start(snn, images[i : i + 2], "folded") for i in (0, 2)]
    for _ in range(3):
        for prepared, engine in engines:
            with drive.executing(engine):
                engine.advance(snn.network, prepared.inputs, 3)
    assert recorded.replayed == 3 + 6
    for i, (_, engine) in zip((0, 2), engines, strict=True):
        expected = spikezip.simulate(snn, images[i : i + 2], 9, "spike", stop_early=False).tracers
        assert all(torch.equal(expected[name], tracer.float()) for name, tracer in engine.tracers.items())


def test_samples_that_leave_the_batch(recorded: type[Graph]) -> None:
    snn, images = network()
    run(snn, images)
    prepared, engine = drive.start(snn, images, "folded")
    kept = torch.tensor([4, 1])
    with drive.executing(engine):
        engine.advance(snn.network, prepared.inputs, 3)
        engine.select(kept)
        for _ in range(3):  # of another shape: plainly, then recorded
            engine.advance(snn.network, {"pixel_values": images[kept]}, 3)
    expected = spikezip.simulate(snn, images[kept], 12, "spike", stop_early=False).tracers
    assert recorded.recorded == 2
    assert all(torch.equal(expected[name], tracer.float()) for name, tracer in engine.tracers.items())


def test_changed_weights_are_recorded_anew(recorded: type[Graph]) -> None:
    snn, images = network()
    run(snn, images)
    with torch.no_grad():
        snn.classifier.bias.add_(1.0)
    expected = spikezip.simulate(snn, images, 12, "spike", stop_early=False)
    assert same(expected, run(snn, images))
    assert recorded.recorded == 2


def test_inference_mode_has_its_own_graphs(recorded: type[Graph]) -> None:
    snn, images = network()
    expected = spikezip.simulate(snn, images, 12, "spike", stop_early=False)
    with torch.inference_mode():
        assert same(expected, run(snn, images))
    assert same(expected, run(snn, images))
    assert recorded.recorded == 2


def test_few_graphs_are_kept(recorded: type[Graph]) -> None:
    snn, images = network()
    for size in range(1, graphs.MOST + 2):
        run(snn, images[:size])
    memory = graphs._memories[snn]
    assert len(memory.recordings) == graphs.MOST
    graphs.forget()
    assert not memory.recordings


def test_an_input_too_large_is_told(recorded: type[Graph]) -> None:
    snn, images = network()
    run(snn, images)
    with pytest.raises(spikezip.SpikezipError, match=r"is it normalised\?"):
        run(snn, images * 1e12)
    assert recorded.recorded == 1


def test_what_cannot_be_recorded_runs_plainly(recorded: type[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    snn, images = network()

    @contextmanager
    def refused(graph: Graph) -> Iterator[None]:
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refused)
    expected = spikezip.simulate(snn, images, 12, "spike", stop_early=False)
    assert same(expected, run(snn, images))
    assert recorded.replayed == 0


@pytest.mark.parametrize(
    "setting", [{"coding": "rate"}, {"stagger": 0.5}, {"count_neurons": True}, {"record": ["layers.0.attention.p"]}]
)
def test_runs_whose_steps_differ_are_not_recorded(recorded: type[Graph], setting: Any) -> None:
    snn, images = network()
    run(snn, images, **setting)
    run(snn, images, **setting)
    assert recorded.recorded == 0


def test_the_size_of_layers_is_known_from_an_earlier_run(recorded: type[Graph]) -> None:
    snn, images = network()
    _, engine = drive.start(snn, images, "folded")
    assert drive.known_size(engine, snn, {"pixel_values": images}) is None
    run(snn, images)
    largest = max(neuron.numel() for neuron in run(snn, images).tracers.values())
    assert drive.known_size(engine, snn, {"pixel_values": images}) == largest
    assert list(_sizes(engine, 40, largest, stop_early=True)) == [14, 14, 12]
    assert list(_sizes(engine, 64, largest, stop_early=False)) == [32, 32]
    assert list(_sizes(engine, 64, 10**9, stop_early=False))[:2] == [2, 2]
    assert next(_sizes(engine, 20, None, stop_early=True)) == 1


def _sizes(engine: Any, limit: int, known: int | None, stop_early: bool) -> Iterator[int]:
    engine.done = 0
    for n in drive.chunks(limit, None, engine, known, stop_early):
        yield n
        engine.done += n


MODELS: dict[str, Any] = {
    "bert": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**TINY, vocab_size=30)),
    "roberta": lambda: transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**TINY, vocab_size=30)),
    "swin": lambda: transformers.SwinForImageClassification(
        transformers.SwinConfig(
            image_size=8, patch_size=2, embed_dim=8, depths=[2], num_heads=[2], window_size=2, hidden_act="relu"
        )
    ),
    "deit": lambda: transformers.DeiTForImageClassification(
        transformers.DeiTConfig(**TINY, image_size=8, patch_size=4)
    ),
}
TINY = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "hidden_act": "relu",
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_no_pass_waits_for_the_gpu(recorded: type[Graph], name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    batch: Any = {"pixel_values": torch.randn(2, 3, 8, 8)}
    if name in ("bert", "roberta"):
        mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
        batch = {"input_ids": torch.randint(3, 30, (2, 4)), "attention_mask": mask}
    snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model), batch))
    expected = spikezip.simulate(snn, batch, 12, "spike", stop_early=False)
    assert all(same(expected, run(snn, batch)) for _ in range(2))
    assert recorded.replayed == 3 + 4
    assert not graphs._memories[snn].refused
