"""The folded engine on a GPU: the same spikes as the spike engine, with and without graphs, and how fast it is.

python tests/engines/on_gpu.py            # all of it; a few minutes
python tests/engines/on_gpu.py --no-times
"""

import argparse
import sys
import time
from typing import Any

import kernel_runs
import torch
import transformers
from torch import Tensor

from spikezip.engines import folded, graphs
from spikezip.engines.engine import Drive, Run
from spikezip.engines.folded import FoldedEngine
from spikezip.engines.loop import run
from spikezip.program.freeze import Frozen

Net = tuple[Frozen, dict[str, Tensor]]


def compare(name: str, net: Net, **drive: Any) -> None:
    """Three runs with graphs (plain, recorded, replayed), one without, all against the spike engine."""
    given, batch = net
    settings = {"steps": 24, "stop_early": False, **drive}
    judge = run(given, batch, Drive(engine="spike", **settings))
    found: list[Run] = []
    for graphed in (True, True, True, False):
        FoldedEngine.use_graphs = graphed
        found.append(run(given, batch, Drive(engine="folded", chunk=4, **settings)))
    FoldedEngine.use_graphs = True
    for each in found:
        kernel_runs.assert_same(each, judge)
    memory = graphs.memory_of(given.program)
    refused = set(memory.refused.values())
    print(f"{name} {drive or ''}: equal spikes; {len(memory.graphs)} graphs; refused: {refused or 'none'}", flush=True)
    assert not refused
    assert bool(memory.graphs) == (not {"coding", "stagger", "record", "count_neurons"} & set(drive))
    graphs.forget(given.program)


def two_runs_take_turns(net: Net) -> None:
    """Engines that share a graph keep their own tracers; another mask is another input, not another graph."""
    given, batch = net
    layout, drive = given.program.layout, Drive(engine="folded")
    batches = [batch, {name: x.flip(0) for name, x in batch.items()}]
    engines = [FoldedEngine(given, layout, each, drive) for each in batches]
    with torch.no_grad():
        for steps in (4, 4, 3, 4, 4):
            for engine in engines:
                engine.advance(steps)
    for engine, each in zip(engines, batches, strict=True):
        judge = run(given, each, Drive(engine="spike", steps=19, stop_early=False))
        for name, tracer in judge.tracers.items():
            assert torch.equal(engine.tracer(name), tracer), name
    print("two runs that take turns: equal tracers", flush=True)


def images_per_second(batch: int, steps: int, rests: float) -> None:
    """A ViT-S/16 with random weights: warm runs, with and without graphs."""
    folded.RESTS = rests
    net = vit_s()
    given = net[0]
    inputs = {"pixel_values": torch.randn(batch, 3, 224, 224, device="cuda")}
    for graphed in (True, False):
        FoldedEngine.use_graphs = graphed
        times = []
        for i in range(6):  # the first three compile, and record
            torch.cuda.synchronize()
            started = time.perf_counter()
            found = run(given, inputs, Drive(engine="folded", steps=steps, stop_early=False))
            torch.cuda.synchronize()
            if i >= 3:
                times.append(time.perf_counter() - started)
        memory = graphs.memory_of(given.program)
        shown = ", ".join(f"{batch / t:.1f}" for t in times)
        fired = sum(float(c.sum()) for c in found.spike_counts.values()) / batch
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(
            f"ViT-S, T={steps}, batch {batch}, graphs {graphed} ({len(memory.graphs)} recorded), "
            f"kernels that rest from {rests}: {shown} images/s; {min(times) * 1e3:.1f} ms; "
            f"{fired:.3g} spikes per image; peak {peak:.1f} GiB; refused {set(memory.refused.values()) or 'none'}",
            flush=True,
        )
        graphs.forget(given.program)
    FoldedEngine.use_graphs = True


_made: dict[str, Net] = {}


def vit_s() -> Net:
    if "vit-s" not in _made:
        config = transformers.ViTConfig(
            hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536, hidden_act="relu",
            image_size=224, patch_size=16, num_labels=1000, attn_implementation="eager",
        )  # fmt: skip
        model = transformers.ViTForImageClassification(config)
        _made["vit-s"] = kernel_runs.network(model, {"pixel_values": torch.randn(2, 3, 224, 224)}, levels=32)
    return _made["vit-s"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-times", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU is here")
        return 1
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    torch.manual_seed(0)
    vit = kernel_runs.network(kernel_runs.vit(num_hidden_layers=2), kernel_runs.images(8))
    bert = kernel_runs.network(kernel_runs.bert(num_hidden_layers=2), kernel_runs.texts())
    for rests in (2.0, -1.0):  # never, and always from the second chunk on
        folded.RESTS = rests
        compare("ViT", vit)
        compare("BERT, padded", bert)
    folded.RESTS = 0.3
    for drive in ({"max_spike": 3}, {"stagger": 0.5}, {"coding": "rate"}, {"count_neurons": True}):
        compare("ViT", vit, **drive)
    compare("ViT with GELU", kernel_runs.network(kernel_runs.vit(hidden_act="gelu"), kernel_runs.images(8)))
    two_runs_take_turns(bert)
    if not args.no_times:
        for batch in (64, 1):
            images_per_second(batch, 64, 0.3)
        images_per_second(64, 64, 2.0)
    print("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
