"""The folded engine on its GPU kernels, whole networks: the same spikes as the spike engine, in few launches.

On the GPU where there is one, else under Triton's interpreter, in a process of its own. Chunks that are recorded, and
chunks that do not fit into the memory, are tried on the CPU, with a graph that notes operators and runs them again.
"""

import copy
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import interpreted
import pytest
import torch
import transformers
from captured import frozen
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from spikezip.engines import graphs
from spikezip.engines.engine import Drive
from spikezip.engines.folded import FoldedEngine
from spikezip.engines.fuse import Attention, Norm, Products, Step, Sum, fuse
from spikezip.engines.loop import run
from spikezip.ops import elementary, neuron, norm, softmax, sums
from spikezip.ops.grid import fast as fast_grid
from spikezip.ops.neuron import fast, reference
from spikezip.ops.rounding import reference as rounding
from spikezip.program.freeze import Frozen
from spikezip.quant.config import QuantConfig

HERE = Path(__file__).parent
START = f"""
import sys
sys.path[:0] = [{str(HERE.parent)!r}, {str(HERE)!r}]
import torch, transformers, spikezip
from kernel_runs import *
from spikezip.engines import folded, graphs
from spikezip.quant.config import QuantConfig, SiteConfig

torch.set_num_threads(1)
torch.manual_seed(0)
believe()
folded.RESTS = 2.0  # never, unless a case asks for it
PRODUCT, NORM, WALK = "neuron.triton_product._product_kernel", "norm.triton._walk_kernel", "neuron.triton._walk_kernel"
ATTENTION, HALVES = "sesa.triton._attention_kernel", "sesa.triton._halves_kernel"
EPILOGUE = "grid.triton._epilogue_kernel"
ADD, SOFTMAX = "grid.triton._add_kernel", "softmax.triton._softmax_kernel"
LAYER = {{PRODUCT: 4, ATTENTION: 1, HALVES: 1, NORM: 2}}  # eight launches
"""

CASES = {
    "vit": """
net = network(vit(num_hidden_layers=2), images(8))
check(net, {PRODUCT: 8, ATTENTION: 2, HALVES: 2, NORM: 5, WALK: 1, EPILOGUE: 1})
launches, operators = second_chunk(*net)
before, others = first_edition("vit")
assert all(times <= before[kernel] for kernel, times in launches.items())
assert sum(operators.values()) <= 0.6 * others, operators
""",
    "vit-drives": """
net = network(vit(), images(8))
everything = {**LAYER, NORM: 3, WALK: 1, EPILOGUE: 1}
check(net, everything, max_spike=2)
check(net, stagger=0.7, max_spike=2)  # layers are held back in steps of their own
check(net, everything, coding="rate")
name = "layers.0.attention.p"
check(net, record=(name,), count_neurons=True)  # attention in pieces: the kernel keeps no probabilities
""",
    "vit-channels-gelu": """
net = network(vit(), images(8), sites={"*layernorm*": SiteConfig(per_channel=True)})
check(net, {**LAYER, NORM: 3, WALK: 1, EPILOGUE: 1})
# A GELU lies between the product and its neurons: both alone.
check(network(vit(hidden_act="gelu"), images(8)), {**LAYER, PRODUCT: 3, NORM: 3, WALK: 2, EPILOGUE: 2})
""",
    "rest": """
# Through equilibrium and past it: layers come to rest one after another, samples at steps of their own.
folded.RESTS = -1.0  # from the second chunk on
batch = {"pixel_values": images(8)["pixel_values"] * torch.tensor([1.0, 3.0]).view(2, 1, 1, 1)}
net = network(vit(), batch, levels=8)
from spikezip.ops.neuron import triton_product
walk, told = triton_product.walk_products, []
triton_product.walk_products = lambda *args: told.append(args[-1] is not None) or walk(*args)
for drive in ({}, {"stagger": 0.3, "max_spike": 2}):
    check(net, steps=14, **drive)
    assert any(told) and not all(told)  # the first chunk is told nothing
    settled = run(*net, Drive(engine="spike", steps="equilibrium", **drive)).t_eq
    assert all(4 < step < 12 for step in settled), settled  # neither in the first chunk nor in the last
""",
    "in-place": """
# What a recorded chunk does: tracers are changed where they lie.
for net in (network(vit(), images(8)), network(bert(), texts())):
    judge = run(*net, Drive(engine="spike", steps=8, stop_early=False))
    engine = FoldedEngine(net[0], net[0].program.layout, net[1], Drive(engine="folded"))
    engine.use_graphs = False
    with torch.no_grad():
        engine.advance(3)
        shapes = graphs.Shapes(engine.state.tracers, 0, 3)
        _, tracers = shapes.make(engine.network.device)
        for name, tracer in tracers.items():
            tracer.copy_(engine.state.tracers[name])
        engine.state.tracers, engine.in_place = dict(tracers), True
        for _ in range(2):
            with counting() as (launches, operators):
                engine.advance(2)
            assert operators["stack"] == 1  # of counts; q, k and v lie one after another
        engine.advance(1)
    for name, tracer in tracers.items():
        assert engine.state.tracers[name] is tracer, name
        assert torch.equal(engine.tracer(name), judge.tracers[name]), name
""",
    "roberta": """
net = network(bert("Roberta", num_hidden_layers=2), texts())
check(net, {PRODUCT: 8, ATTENTION: 2, HALVES: 2, NORM: 4, WALK: 2, EPILOGUE: 2})
launches, operators = second_chunk(*net)
before, others = first_edition("roberta")
assert all(times <= before[kernel] for kernel, times in launches.items())
assert sum(operators.values()) <= 0.6 * others, operators
""",
    "bert": """
net = network(bert(), texts(), levels=32)
check(net, {**LAYER, WALK: 2, EPILOGUE: 2})
# Nothing is padded: the mask is zero, and left out.
whole = {**net[1], "attention_mask": torch.ones_like(net[1]["attention_mask"])}
engine = FoldedEngine(net[0], net[0].program.layout, whole, Drive(engine="folded"))
engine.advance(2)
assert [mask for fits, mask in engine.masks.values() if fits] == [None]
check((net[0], whole), {**LAYER, WALK: 2, EPILOGUE: 2})
""",
    "swin": """
# Windows, and windows that are shifted. Masks that differ from head to head are no task of the kernel.
config = dict(image_size=8, patch_size=2, depths=[2], window_size=2, hidden_act="relu", attn_implementation="eager")
one_head = transformers.SwinConfig(embed_dim=32, num_heads=[1], **config)
two_layers = {PRODUCT: 8, ATTENTION: 2, HALVES: 2, NORM: 5, WALK: 2, EPILOGUE: 1}
check(network(transformers.SwinForImageClassification(one_head), images(8)), two_layers, steps=4)
heads = transformers.SwinConfig(embed_dim=64, num_heads=[2], **config)
in_pieces = {PRODUCT: 8, SOFTMAX: 2, NORM: 5, WALK: 6, EPILOGUE: 1}
check(network(transformers.SwinForImageClassification(heads), images(8)), in_pieces, steps=4)
""",
    "llama": """
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 128}
config = transformers.LlamaConfig(**{**SHAPE, **heads}, vocab_size=50)
net = network(transformers.LlamaForCausalLM(config), texts())
check(net, {PRODUCT: 3, ATTENTION: 1, HALVES: 1, ADD: 2, WALK: 7, EPILOGUE: 5})
# Keys and values of heads that share them are not repeated.
from spikezip.engines.fuse import Step, fuse
alone = [node.name for step in fuse(net[0].program) if type(step) is Step for node in step.nodes]
assert not any("expand" in name for name in alone)
""",
    "gpt2": """
shape = dict(n_embd=64, n_layer=1, n_head=2, vocab_size=50, n_positions=32)
config = transformers.GPT2Config(**shape, attn_implementation="eager")
net = network(transformers.GPT2LMHeadModel(config), texts(padded=False))
check(net, {PRODUCT: 2, ATTENTION: 1, HALVES: 1, NORM: 3, WALK: 5, EPILOGUE: 3})
""",
    "narrow": """
# Heads of 8 channels and layers of 24: too odd for the large kernels, so in pieces, and the same.
odd = vit(hidden_size=24, num_attention_heads=3, intermediate_size=24)
check(network(odd, images(8)), {SOFTMAX: 1, NORM: 3, WALK: 9, EPILOGUE: 1})
# 16-bit weights are two products; 256 levels need more than a byte.
check(network(vit(), images(8), weight_bits=16), {ATTENTION: 1, HALVES: 1, NORM: 3, WALK: 7}, steps=4)
check(network(vit(), images(8), levels=256), steps=4, max_spike=40)
""",
    "cnn": """
from torch.nn import Conv2d, Flatten, Linear, ReLU
layers = [Conv2d(3, 16, 3), ReLU(), Conv2d(16, 16, 3, padding=1), ReLU()]
layers += [Flatten(), Linear(576, 16), ReLU(), Linear(16, 5)]
batch = {"input": images(8)["pixel_values"]}
check(network(torch.nn.Sequential(*layers), batch, placement="products"), {PRODUCT: 2, WALK: 1, EPILOGUE: 1})
""",
}


@pytest.mark.parametrize("case", CASES)
def test_network_on_kernels(case: str) -> None:
    interpreted.check(START + CASES[case])


# ------------------------------------------------------------------------------------------------ what goes together

SHAPE: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "hidden_act": "relu", "attn_implementation": "eager",
}  # fmt: skip


def network(**changes: Any) -> tuple[Frozen, dict[str, torch.Tensor]]:
    config = transformers.ViTConfig(**{**SHAPE, "image_size": 8, "patch_size": 4, **changes})
    batch = {"pixel_values": torch.randn(8, 3, 8, 8)}
    return frozen(transformers.ViTForImageClassification(config).eval(), batch, QuantConfig(levels=8)), batch


def test_steps_of_a_layer() -> None:
    net, _ = network()
    steps = fuse(net.program)
    groups = [step for step in steps if type(step) is not Step]
    kinds = [Norm, Products, Attention, Products, Norm, Products, Products, Norm]
    assert [type(step) for step in groups] == kinds
    assert [branch.site.name.rpartition(".")[2] for branch in groups[1].branches] == ["q", "k", "v"]
    alone = {step.nodes[0].name for step in steps if type(step) is Step}
    assert {"embeddings", "embeddings.values", "classifier.linear"} <= alone
    assert not any(name.endswith("fc2.values") for name in alone)  # only a sum has read it, and that reads codes


def test_a_value_with_other_readers_stays() -> None:
    class TwoReaders(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.second(torch.relu(self.first(x)))
            return self.third(torch.relu(hidden)) + hidden  # no site stands for the product alone

    batch = {"x": torch.randn(3, 4)}
    net = frozen(TwoReaders(), batch, QuantConfig(levels=8, placement="products"))
    steps = fuse(net.program)
    assert not any(isinstance(step, Products) for step in steps)
    judge, found = (run(net, batch, Drive(engine=name, steps=9)) for name in ("spike", "folded"))
    assert same(found, judge)


def test_every_value_is_dropped_once_it_is_spent() -> None:
    net, _ = network(num_hidden_layers=2)
    steps = fuse(net.program)
    given: set[str] = set()
    for step in steps:
        moving = {name for name in step.reads if name in net.program.varying}
        assert moving <= given, step
        given |= set(step.gives)
        given -= set(step.spent)
    assert given == net.program.returned
    assert any(isinstance(step, Sum) for step in steps) is False  # each is part of a norm


# ---------------------------------------------------------------------------------------------------- recorded chunks


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
        if func in WAITING:
            raise RuntimeError(f"{func} is not permitted while a stream is being captured")
        result = func(*args, **(kwargs or {}))
        self.graph.calls.append((func, args, kwargs or {}, tree_flatten(result)[0]))
        return result


@contextmanager
def recording(graph: Graph) -> Iterator[None]:
    Graph.recorded += 1
    with Noting(graph):
        yield


def plain_walk(u: Any, neurons: Any, after: Any = None) -> Any:
    """Neurons in operators of torch alone, which do not look at their data."""
    tracer, scale, lo, hi, most, samples = neurons
    if after is not None:
        u = fast_grid.scale_bias(u.view(-1, len(after[0])), *after).view(u.shape)
    codes = reference.scan(rounding.code(u, scale, lo, hi), tracer.to(u.dtype), most)
    spikes = codes.diff(dim=0, prepend=tracer.to(u.dtype)[None])
    return codes.to(tracer.dtype), spikes.abs().view(len(u), samples, -1).sum(dim=2)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> type[Graph]:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(graphs, "_on_cuda", lambda engine: True)
    monkeypatch.setattr(graphs, "_allocated", lambda device: (0, 0))
    compiled = (fast_grid, elementary, norm.fast, softmax.fast, sums.fast)
    for module in compiled:
        monkeypatch.setattr(module, "numba_is_here", lambda: False)  # compiled loops are no operators
    monkeypatch.setattr(elementary, "root", torch.sqrt)  # nor is NumPy's root; that of torch is near enough here
    for module in (neuron, fast):
        monkeypatch.setattr(module, "walk", plain_walk)
    Graph.recorded = Graph.replayed = 0
    return Graph


def same(a: Any, b: Any) -> bool:
    counts = a.spike_counts
    return torch.equal(a.logits_per_step, b.logits_per_step) and all(
        torch.equal(counts[name], b.spike_counts[name]) and torch.equal(a.tracers[name], b.tracers[name])
        for name in counts
    )


def simulate(net: Frozen, x: torch.Tensor, engine: str = "folded", **other: Any) -> Any:
    return run(net, {"pixel_values": x}, Drive(engine=engine, steps=12, chunk=3, stop_early=False, **other))


def test_replayed_chunks_give_the_same_spikes(recorded: type[Graph]) -> None:
    net, batch = network()
    parts = batch["pixel_values"][:6].chunk(3)
    expected = [simulate(net, x, "spike") for x in parts]
    found = [simulate(net, x) for x in parts]
    assert recorded.recorded == 1
    assert recorded.replayed == 3 + 4 + 4  # the first chunk of all runs plainly
    assert all(same(a, b) for a, b in zip(expected, found, strict=True))


def test_runs_that_take_turns_keep_their_tracers(recorded: type[Graph]) -> None:
    net, batch = network()
    images = batch["pixel_values"]
    simulate(net, images[:2])
    layout, drive = net.program.layout, Drive(engine="folded")
    engines = [FoldedEngine(net, layout, {"pixel_values": images[i : i + 2]}, drive) for i in (0, 2)]
    with torch.no_grad():
        for steps in (3, 3, 2, 3, 1):  # chunks of another size in between
            for engine in engines:
                engine.advance(steps)
    assert recorded.recorded == 3  # of each size, once the other engine has run it
    for i, engine in zip((0, 2), engines, strict=True):
        expected = simulate(net, images[i : i + 2], "spike").tracers
        assert all(torch.equal(expected[name], engine.tracer(name)) for name in expected)


def test_masks_belong_to_the_run(recorded: type[Graph]) -> None:
    config = transformers.BertConfig(**SHAPE, vocab_size=30, max_position_embeddings=16)
    ids = torch.randint(1, 30, (2, 6))
    masks = [torch.ones_like(ids), torch.ones_like(ids), torch.ones_like(ids)]
    masks[1][1, 4:] = 0
    masks[2][0, 2:] = 0
    batches = [{"input_ids": ids, "attention_mask": mask} for mask in masks]
    net = frozen(transformers.BertForSequenceClassification(config).eval(), batches[1], QuantConfig(levels=8))
    for batch in batches:
        judge, found = (
            run(net, batch, Drive(engine=name, steps=12, chunk=3, stop_early=False)) for name in ("spike", "folded")
        )
        assert same(found, judge)
    assert recorded.recorded == 2  # one without a mask, and one for both that have one


@pytest.mark.parametrize("how", ["in place", "through .data", "through numpy"])
def test_changed_weights_are_recorded_anew(recorded: type[Graph], how: str) -> None:
    net, batch = network()
    images = batch["pixel_values"]
    simulate(net, images)
    bias = net.tensors["classifier.bias"]
    if how == "in place":
        bias.add_(1.0)
    elif how == "through .data":
        bias.data.add_(1.0)
    else:
        bias.numpy()[:] += 1.0
    assert same(simulate(net, images), simulate(net, images, "spike"))
    assert recorded.recorded == 2


def test_graphs_end_with_their_program(recorded: type[Graph]) -> None:
    net, batch = network()
    simulate(net, batch["pixel_values"])
    kept = weakref.ref(graphs.memory_of(net.program))
    assert kept().graphs
    copied = copy.deepcopy(net.program)
    assert not graphs.memory_of(copied).graphs
    del net
    gc.collect()
    assert kept() is None


def test_few_graphs_are_kept(recorded: type[Graph]) -> None:
    net, batch = network()
    for size in range(1, graphs.MOST + 2):
        simulate(net, batch["pixel_values"][:size])
    memory = graphs.memory_of(net.program)
    assert len(memory.graphs) == graphs.MOST
    graphs.forget(net.program)
    assert not memory.graphs


def test_what_cannot_be_recorded_runs_plainly_and_says_why(
    recorded: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, batch = network()

    @contextmanager
    def refused(graph: Graph) -> Iterator[None]:
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refused)
    images = batch["pixel_values"]
    assert same(simulate(net, images), simulate(net, images, "spike"))
    assert recorded.replayed == 0
    engine = FoldedEngine(net, net.program.layout, batch, Drive(engine="folded"))
    engine.advance(3)
    assert "not permitted" in engine.graph_refused
    assert "not permitted" in simulate(net, images).why_no_graph


def test_nothing_is_recorded_without_room(recorded: type[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[int] = []

    def full(self: Any, device: Any) -> None:
        wanted.append(self.taken)
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(graphs.Shapes, "want_room", full)
        patch.setattr(graphs, "_allocated", lambda device: (1000, 3000))
        net, batch = network()
        images = batch["pixel_values"]
        judge = simulate(net, images, "spike")
        assert all(same(judge, simulate(net, images)) for _ in range(2))
    assert recorded.recorded == 0
    assert wanted == [2000]  # it is tried once, not for every chunk
    graphs.forget(net.program)
    assert same(judge, simulate(net, images))
    assert recorded.recorded == 1


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"coding": "rate"}, "rises"),
        ({"stagger": 0.5}, "held back"),
        ({"count_neurons": True}, "single neurons"),
        ({"record": ["layers.0.attention.p"]}, "single neurons"),
    ],
)
def test_runs_whose_steps_differ_are_not_recorded(recorded: type[Graph], setting: Any, why: str) -> None:
    net, batch = network()
    for _ in range(2):
        assert same(
            simulate(net, batch["pixel_values"], **setting), simulate(net, batch["pixel_values"], "spike", **setting)
        )
    assert recorded.recorded == 0
    engine = FoldedEngine(net, net.program.layout, batch, Drive(engine="folded", **setting))
    engine.advance(3)
    assert why in engine.graph_refused


# ------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("calls", [0, 7])
def test_a_chunk_that_does_not_fit_is_taken_in_parts(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net, batch = network()
    settings: dict[str, Any] = {"record": ("embeddings",), "count_neurons": True, "stagger": 0.25, "chunk": 12}
    drive = Drive(engine="folded", steps=20, stop_early=False, **settings)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    expected = run(net, batch, drive)
    plainly, seen, tried = FoldedEngine._run, [0], []
    chunk = FoldedEngine.chunk

    def begin(self: Any, steps: int) -> Any:
        seen[0] = 0
        tried.append(steps)
        return chunk(self, steps)

    def spoiled(self: Any, *args: Any) -> Any:
        seen[0] += 1
        if self.steps > 3 and seen[0] > calls:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plainly(self, *args)

    monkeypatch.setattr(FoldedEngine, "chunk", begin)
    monkeypatch.setattr(FoldedEngine, "_run", spoiled)
    with pytest.warns(UserWarning, match=r"6 steps at once do not fit .* taking 3"):
        found = run(net, batch, drive)
    assert sum(n for n in tried if n <= 3) == 20
    assert same(found, expected)
    assert torch.equal(found.trains["embeddings"], expected.trains["embeddings"])
    assert all(torch.equal(found.neuron_spikes[name], x) for name, x in expected.neuron_spikes.items())


def test_a_step_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, *args: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    net, batch = network()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(FoldedEngine, "_run", full)
    with pytest.raises(torch.OutOfMemoryError):
        run(net, batch, Drive(engine="folded", steps=8, chunk=8))


def test_memory_after_a_replay_is_that_before_it(recorded: type[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    net, batch = network()
    judge = simulate(net, batch["pixel_values"], "spike")
    assert same(judge, simulate(net, batch["pixel_values"]))
    empty_like, calls = torch.empty_like, {"left": 2}

    def full(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls["left"] -= 1
        if calls["left"] == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty_like(*args, **kwargs)

    monkeypatch.setattr(torch, "empty_like", full)
    with pytest.warns(UserWarning, match="3 steps at once do not fit"):
        found = simulate(net, batch["pixel_values"])
    assert same(judge, found)
