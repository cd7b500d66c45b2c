"""Whole networks on the GPU kernels: the folded engine's spikes are those of the spike engine, and what it launches.

On the GPU where there is one, else under Triton's interpreter: there tensors on the CPU are handed to the kernels.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from captured import frozen
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spikezip.engines.engine import Drive, Run
from spikezip.engines.folded import FoldedEngine
from spikezip.engines.loop import run
from spikezip.ops import kernels
from spikezip.ops.neuron import triton as walks
from spikezip.program.freeze import Frozen
from spikezip.quant.config import QuantConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RECORDED = Path(__file__).parents[2] / "benchmarks" / "kernel_calls_first_edition.json"
# Operators that run nothing on a GPU: they make room, or another tensor of the same memory.
ROOM = ("promote_types", "empty", "empty_like", "empty_strided", "new_empty", "detach", "alias", "_unsafe_view")
SHAPE: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
    "hidden_act": "relu", "attn_implementation": "eager",
}  # fmt: skip


TRUTH = kernels.on_gpu


def believe() -> None:
    """Let the library take every tensor for one on a GPU that moves tiles."""
    if DEVICE == "cpu":
        kernels.on_gpu = lambda *tensors: True
        kernels.moves_tiles = lambda device: True


@contextmanager
def truth() -> Iterator[None]:
    """Within, tensors are where they are."""
    believed, kernels.on_gpu = kernels.on_gpu, TRUTH
    try:
        yield
    finally:
        kernels.on_gpu = believed


@contextmanager
def counting() -> Iterator[tuple[Counter[str], Counter[str]]]:
    """The kernels that are launched within, and the operators of torch that launch something."""
    launches: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    kernel = type(walks._walk_kernel)
    launch, inside = kernel.run, []

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        launches[f"{self.fn.__module__}.{self.fn.__name__}".removeprefix("spikezip.ops.")] += 1
        inside.append(self)  # what the interpreter does for a kernel is no operator of ours
        try:
            return launch(self, *args, **kwargs)
        finally:
            inside.pop()

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor)]
            name = func.overloadpacket.__name__
            if not inside and not func.is_view and name not in ROOM and all(x.device.type != "meta" for x in tensors):
                operators[name] += 1
            return result

    kernel.run = counted
    try:
        with Counting():
            yield launches, operators
    finally:
        kernel.run = launch


def network(model: nn.Module, batch: dict[str, Tensor], **config: Any) -> tuple[Frozen, dict[str, Tensor]]:
    """The frozen network of a model with attention that is not uniform, and its batch on the device."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:
                parameter.normal_(std=1.3 * parameter.shape[-1] ** -0.5)
    with truth():  # it is made on the CPU, with a GPU too
        found = frozen(model.eval(), batch, QuantConfig(**{"levels": 16, **config}))
    tensors = {key: tensor.to(DEVICE) for key, tensor in found.tensors.items()}
    return Frozen(found.program, tensors), {name: x.to(DEVICE) for name, x in batch.items()}


def check(
    net: tuple[Frozen, dict[str, Tensor]], expected: dict[str, int] | None = None, steps: int = 5, **drive: Any
) -> Counter[str]:
    """Compare the engines; returns what a second chunk launches, which has to be `expected`."""
    given, batch = net
    settings = {"steps": steps, "stop_early": False, **drive}
    judge = run(given, batch, Drive(engine="spike", **settings))
    assert float(sum(counts.sum() for counts in judge.spike_counts.values())) > 0
    assert_same(run(given, batch, Drive(engine="folded", chunk=3, **settings)), judge)
    launches, _ = second_chunk(given, batch, **drive)
    assert expected is None or dict(launches) == expected, launches
    return launches


def assert_same(found: Run, judge: Run) -> None:
    """Equal outputs and spikes in every step, equal ends."""
    assert torch.equal(found.logits_per_step, judge.logits_per_step)
    assert list(found.spike_counts) == list(judge.spike_counts)
    for site, counts in judge.spike_counts.items():
        assert torch.equal(found.spike_counts[site], counts), site
        assert torch.equal(found.tracers[site], judge.tracers[site]), site
    for each, wanted in ((found.trains, judge.trains), (found.neuron_spikes, judge.neuron_spikes)):
        assert all(torch.equal(each[site], x) for site, x in wanted.items())


def second_chunk(given: Frozen, batch: dict[str, Tensor], **drive: Any) -> tuple[Counter[str], Counter[str]]:
    """What the second chunk of a run launches, without a graph."""
    engine = FoldedEngine(given, given.program.layout, batch, Drive(engine="folded", **drive))
    engine.use_graphs = False
    with torch.no_grad():
        engine.advance(1)
        with counting() as found:
            engine.advance(2)
    return found


def first_edition(name: str) -> tuple[dict[str, int], int]:
    """What a further chunk of two layers launched in the first edition: kernels, and operators of torch."""
    entry = json.loads(RECORDED.read_text())["networks"][name]
    launches = entry["launches per kernel"]["each further chunk"]
    operators = entry["operators of torch"]["each further chunk"]["that launch work"]
    return {kernel: times for kernel, times in launches.items() if kernel != "together"}, operators


def images(size: int, seed: int = 0) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(seed))}


def texts(tokens: int = 6, padded: bool = True) -> dict[str, Tensor]:
    ids = torch.randint(3, 50, (2, tokens), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, tokens - 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask} if padded else {"input_ids": ids}


def vit(**changes: Any) -> nn.Module:
    config = transformers.ViTConfig(**{**SHAPE, "image_size": 8, "patch_size": 4, **changes})
    return transformers.ViTForImageClassification(config)


def bert(kind: str = "Bert", **changes: Any) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(
        **{**SHAPE, "vocab_size": 50, "max_position_embeddings": 32, **changes}
    )
    return getattr(transformers, f"{kind}ForSequenceClassification")(config)
