"""Which Triton kernels a run of the folded engine launches, on which shapes, and which torch operators run beside them.

    OMP_NUM_THREADS=1 python benchmarks/kernel_calls.py --out kernel_calls.json
    python benchmarks/kernel_calls.py --networks vit --layers 1 --image 64     # less of it, in seconds

No GPU is needed: kernels run under Triton's interpreter, and the library takes tensors on the CPU for tensors on a GPU
that moves whole tiles (Hopper). Networks have random weights and full widths; depth, batch and steps are cut, which the
result says. Each network is built and converted first, then runs four times with `simulate(engine="folded")`: one
chunk, which also makes what is made once for a network; then one, two and three chunks. What a run has more than the
one before it is what a further chunk launches. The spikes are compared with those of the spike engine.

What a GPU does and this does not: from the second chunk of a shape on, chunks are recorded as a CUDA graph and
replayed, which the library decides by where a tensor lies. A graph launches these kernels. Products that no kernel
takes whole are here those of the CPU, on a GPU those of halves. What the first edition launched is in
`kernel_calls_first_edition.json`; a graph of it also evaluated the layer that sees the input in every chunk.
"""

import argparse
import inspect
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # Triton decides when it is imported, and the library imports it

import networks
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import spikezip
from spikezip.ops import kernels

NAMES = {"vit": ("vit", "small"), "roberta": ("bert", "base")}  # model and size, as `networks.py` calls them
# Operators that run nothing on a GPU, beside views: they make room, or another tensor of the same memory.
ROOM = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "_unsafe_view")
WAITS = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal")  # the host reads a value: it waits for the GPU
PLAIN = (Tensor, nn.Parameter, nn.Buffer)


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel: where its function is, its programs, its tensors, and its numbers."""

    kernel: str
    grid: tuple[int, ...]
    tensors: str
    numbers: str


@dataclass
class Calls:
    """What was called in a run: launches in their order, and operators of torch with the shapes that they got."""

    launches: list[Launch] = field(default_factory=list)
    work: Counter[tuple[str, str]] = field(default_factory=Counter)
    views: int = 0
    waits: int = 0

    def __sub__(self, other: "Calls") -> "Calls":
        """What this run has more than another: the launches that come in where the two begin to differ."""
        more = len(self.launches) - len(other.launches)
        alike = [mine == its for mine, its in zip(self.launches, other.launches, strict=False)]
        at = alike.index(False) if False in alike else len(alike)
        rest = self.launches[:at] + self.launches[at + max(more, 0) :]
        if rest != other.launches:
            raise SystemExit("a run of two chunks is not one of one chunk with launches put in: look at both by hand")
        launches = self.launches[at : at + more]
        return Calls(launches, self.work - other.work, self.views - other.views, self.waits - other.waits)

    def __and__(self, other: "Calls") -> "Calls":
        """What a chunk calls, of what two runs have more than those before them: their ends also differ."""
        if self.launches != other.launches:
            raise SystemExit("a third chunk launches other kernels than a second one: look at both by hand")
        return Calls(self.launches, self.work & other.work, min(self.views, other.views), min(self.waits, other.waits))


class Counting(TorchDispatchMode):
    """Counts operators on tensors that hold values, but for those that the interpreter itself needs for a kernel."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.calls = calls
        self.inside = False  # of a kernel

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in PLAIN for kind in types):
            return NotImplemented  # a tensor that stands for another: what it does is counted, operator by operator
        result = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        seen = given or [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if self.inside or not seen or any(x.device.type == "meta" for x in seen):
            return result
        name = func.overloadpacket.__name__
        if func.is_view or name in ROOM:
            self.calls.views += 1
        elif name in WAITS:
            self.calls.waits += 1
        else:
            self.calls.work[name, together(map(text, seen))] += 1
        return result


@contextmanager
def counting() -> Iterator[Calls]:
    """Everything that is called within, under the interpreter."""
    from triton.runtime import interpreter

    calls = Calls()
    mode, run = Counting(calls), interpreter.InterpretedFunction.run

    def noted(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        calls.launches.append(describe(kernel, args, grid, kwargs))
        mode.inside = True
        try:
            return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
        finally:
            mode.inside = False

    interpreter.InterpretedFunction.run = noted
    try:
        with mode:
            yield calls
    finally:
        interpreter.InterpretedFunction.run = run


def describe(kernel: Any, args: tuple[Any, ...], grid: Any, options: dict[str, Any]) -> Launch:
    signature = inspect.signature(kernel.fn)
    given = signature.bind(*args, **{k: v for k, v in options.items() if k in signature.parameters}).arguments
    given |= {k: v for k, v in options.items() if k in ("num_warps", "num_stages")}
    programs = grid(given) if callable(grid) else grid
    tensors = {name: text(x) for name, x in given.items() if isinstance(x, Tensor) or hasattr(x, "block_shape")}
    numbers = {name: x for name, x in given.items() if name not in tensors}
    name = f"{kernel.fn.__module__}.{kernel.fn.__name__}".removeprefix("spikezip.ops.")
    return Launch(name, tuple(programs), words(tensors), words(numbers))


def words(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def text(x: Any) -> str:
    """A tensor by its dtype and shape; one that a kernel reads in tiles also by these."""
    if hasattr(x, "block_shape"):
        return f"{text(x.base)} in tiles {shape(x.block_shape)}"
    return f"{str(x.dtype).removeprefix('torch.')}{shape(x.shape)}"


def together(given: Iterable[str]) -> str:
    """Words in a row; those that come several times in a row once, with how often."""
    rows = ((word, len(list(same))) for word, same in groupby(given))
    return ", ".join(word if times == 1 else f"{times} of {word}" for word, times in rows)


def shape(sizes: Any) -> str:
    return f"[{'×'.join(map(str, sizes))}]"


def believe() -> None:
    """Let the library take every tensor for one on a GPU that moves tiles."""
    kernels.on_gpu = lambda *tensors: True
    kernels.moves_tiles = lambda device: True


def put_functions_once() -> None:
    """The interpreter puts its functions into Triton's language anew at every call, which takes half of the time.

    Nothing is ever compiled here, so they may stay.
    """
    from triton.runtime import interpreter

    class Stay:
        def restore(self) -> None:
            pass

    put, seen = interpreter._patch_lang, set[int]()

    def once(function: Any) -> Stay:
        if id(function.__globals__) not in seen:
            put(function)
            seen.add(id(function.__globals__))
        return Stay()

    interpreter._patch_lang = once


# --- runs


def measure(args: argparse.Namespace, name: str) -> dict[str, Any]:
    model, size = NAMES[name]
    width, depth, heads = networks.SIZES[size]
    layers = min(args.layers, depth)
    networks.SIZES[size] = (width, layers, heads)
    snn, batch, _ = networks.build(argparse.Namespace(**vars(args), model=model, size=size, network=None, device="cpu"))
    networks.SIZES[size] = (width, depth, heads)
    if "attention_mask" in batch:  # the last text is shorter than the others, so that there is something to mask
        batch["attention_mask"][-1, -(args.tokens // 4) :] = 0
    believed = kernels.on_gpu, kernels.moves_tiles
    believe()
    try:
        runs, seconds = [], time.perf_counter()
        for chunks in (1, 1, 2, 3):
            with counting() as calls:
                found = spikezip.simulate(
                    snn, batch, chunks * args.steps, engine="folded", chunk=args.steps, stop_early=False
                )
            runs.append(calls)
            print(f"{name}: {len(calls.launches)} launches in {chunks} chunks", file=sys.stderr, flush=True)
        seconds = time.perf_counter() - seconds
        spikes = "not compared"
        if not args.no_check:
            expected = spikezip.simulate(snn, batch, 3 * args.steps, engine="spike", stop_early=False)
            spikes = "those of the spike engine" if same(expected, found) else "WRONG"
    finally:
        kernels.on_gpu, kernels.moves_tiles = believed
    first, one, two, three = runs
    return {
        "network": title(args, name),
        "cut": cuts(args, name, layers, depth),
        "shape": {"hidden": width, "layers": layers, "heads": heads, "mlp": 4 * width, "levels": args.levels}
        | {key: text(value) for key, value in batch.items()},
        "steps per chunk": args.steps,
        "spikes": spikes,
        "seconds under the interpreter": round(seconds),
        **tabulate(first, one, (two - one) & (three - two)),
    }


def same(a: Any, b: Any) -> bool:
    """Whether two runs agree in every code, every count and every output."""
    return torch.equal(a.logits_per_step, b.logits_per_step) and all(
        torch.equal(a.spike_counts[site], b.spike_counts[site]) and torch.equal(a.tracers[site], b.tracers[site])
        for site in a.spike_counts
    )


def title(args: argparse.Namespace, name: str) -> str:
    if name == "vit":
        return f"ViT-S/16 with ReLU, {args.image} px"
    return f"RoBERTa-base with ReLU, {args.tokens} tokens, the last text padded"


def cuts(args: argparse.Namespace, name: str, layers: int, depth: int) -> list[str]:
    found = [f"{layers} layers of {depth}"] if layers < depth else []
    if name == "vit" and args.image < 224:
        found.append(f"{args.image} px of 224")
    return [*found, f"batch {args.batch}", f"chunks of {args.steps} steps (on a GPU up to 32)"]


# --- what comes out


def tabulate(first: Calls, one: Calls, chunk: Calls) -> dict[str, Any]:
    """Launches by kind, with numbers that stand for them in the order; how often kernels and operators are called."""
    kinds = list(dict.fromkeys([*one.launches, *chunk.launches, *first.launches]))
    number = {launch: i for i, launch in enumerate(kinds)}
    times = Counter(chunk.launches)

    def order(launches: list[Launch]) -> str:
        return " ".join(str(number[launch]) for launch in launches)

    return {
        "launches per kernel": {
            "each further chunk": by_name(chunk),
            "a run of one chunk": by_name(one),
            "the first run of a network": by_name(first),
        },
        "launches by kind": [
            {
                "number": number[kind],
                "kernel": kind.kernel,
                "grid": shape(kind.grid),
                "times per further chunk": times[kind],
                "tensors": kind.tensors,
                "numbers": kind.numbers,
            }
            for kind in kinds
        ],
        "order of launches": {
            "each further chunk": order(chunk.launches),
            "a run of one chunk": order(one.launches),
            "the first run of a network": order(first.launches),
        },
        "operators of torch": {
            "each further chunk": operators(chunk),
            "a run of one chunk": operators(one),
            "the first run of a network": operators(first),
        },
        "shapes of operators, each further chunk": {
            f"{name}({given})": times for (name, given), times in chunk.work.items()
        },
    }


def by_name(calls: Calls) -> dict[str, int]:
    found = Counter(launch.kernel for launch in calls.launches)
    return {**dict(found.most_common()), "together": sum(found.values())}


def operators(calls: Calls) -> dict[str, Any]:
    found: Counter[str] = Counter()
    for (name, _), times in calls.work.items():
        found[name] += times
    return {
        "that launch work": sum(found.values()),
        "that read a value, so that the host waits": calls.waits,
        "views and room, which launch nothing": calls.views,
        "by name": words(dict(found.most_common())),
    }


def table(entry: dict[str, Any]) -> str:
    columns = entry["launches per kernel"]
    lines = [f"{entry['network']} ({', '.join(entry['cut'])}); spikes: {entry['spikes']}"]
    lines.append(f"{'':42}" + "".join(f"{name:>28}" for name in columns))
    names = dict.fromkeys(name for column in columns.values() for name in column if name != "together")
    for name in (*names, "together"):
        lines.append(f"{name:42}" + "".join(f"{column.get(name, 0):28}" for column in columns.values()))
    for what in ("that launch work", "that read a value, so that the host waits"):
        times = "".join(f"{column[what]:28}" for column in entry["operators of torch"].values())
        lines.append(f"{'operators ' + what.partition(',')[0]:42}" + times)
    return "\n".join(lines)


def commit() -> str:
    """Of this working copy; "dirty" where files that it knows were changed since."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--layers", type=int, default=2, help="of each network")
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--levels", type=int, default=32)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2, help="of a chunk")
    parser.add_argument("--no-check", action="store_true", help="do not compare with the spike engine")
    parser.add_argument("--out", type=Path, help="a file for the result; by default it is printed")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    args = parse(given)
    torch.set_num_threads(1)  # else a run divides its batch among threads, as it never does on a GPU
    put_functions_once()
    import triton

    result: dict[str, Any] = {
        "spikezip": f"{spikezip.__version__}, commit {commit()}",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "path": "Hopper (kernels.moves_tiles), under Triton's interpreter; without CUDA graphs",
        "networks": {name: measure(args, name) for name in args.networks},
    }
    written = json.dumps(result, indent=1, ensure_ascii=False)
    if args.out is None:
        print(written)
    else:
        args.out.write_text(written + "\n", encoding="utf-8")
    for entry in result["networks"].values():
        print(table(entry), file=sys.stderr)
    return int(any(entry["spikes"] == "WRONG" for entry in result["networks"].values()))


if __name__ == "__main__":
    sys.exit(main())
