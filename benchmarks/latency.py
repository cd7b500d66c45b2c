"""How long one sample takes: ViT-S, ViT-B and RoBERTa-base with random weights, or a trained network, batch 1.

    python benchmarks/latency.py --device cuda
    python benchmarks/latency.py --device cuda --network zoo/cifar10-vit --data cifar10.npz
    python benchmarks/latency.py --shapes vit-nano --image 32 --steps 4      # a try on any machine

All T steps are computed, and once more with the stop at equilibrium on. The spikes of the timed runs are compared with
the spike engine's: where they differ, there is no time. Median and best of several runs; the first ones warm up.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from networks import SIZES, build

import spikezip
from spikezip.engines.loop import AUTO, ENGINES

SHAPES = ("vit-small", "vit-base", "bert-base")
WARM_UP = 4  # runs: kernels are compiled, a chunk is recorded


def measure(args: argparse.Namespace, snn: Any, batch: Any, stop_early: bool, expected: Any) -> list[float] | None:
    """Milliseconds of each run, in order; None if the spikes are wrong."""
    times = []
    for run in range(WARM_UP + args.repeats):
        wait(args.device)
        started = time.perf_counter()
        found = spikezip.simulate(snn, batch, args.steps, args.engine, stop_early=stop_early)
        wait(args.device)
        if run >= WARM_UP:
            times.append(1e3 * (time.perf_counter() - started))
        for site, counts in expected.spike_counts.items():
            if not torch.equal(counts[: found.computed_steps], found.spike_counts[site][: found.computed_steps]):
                return None
    return times


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def line(name: str, times: list[float] | None, steps: str) -> str:
    """A line of the table.

    >>> line("vit-small", [3.0, 1.0, 2.0], "64 steps")
    'vit-small    64 steps                2.0 ms        1.0 ms'
    """
    if times is None:
        return f"{name:12} {steps:18} WRONG spikes"
    return f"{name:12} {steps:18} {statistics.median(times):8.1f} ms {min(times):10.1f} ms"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), help="vit- or bert- and a size")
    parser.add_argument("--network", type=Path, help="a folder with a trained network, in place of the shapes")
    parser.add_argument("--data", type=Path, help="with --network: an npz file of images")
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--levels", type=int, default=32)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--engine", choices=(*ENGINES, AUTO), default="folded")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(words)
    known = [f"{model}-{size}" for model in ("vit", "bert") for size in SIZES]
    for shape in args.shapes:
        if shape not in known:
            parser.error(f"--shapes {shape}: it is one of {', '.join(known)}")
    if (args.network is None) != (args.data is None):
        parser.error("--network and --data belong together")
    args.batch = 1
    return args


def main(words: list[str] | None = None) -> int:
    args = parse(words)
    device = torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device
    print(f"one sample, {args.engine}, {device}, torch {torch.__version__}\n{'':31} {'median':>11} {'best':>13}")
    wrong = False
    for shape in args.shapes if args.network is None else [args.network.resolve().name]:
        if args.network is None:
            args.model, args.size = shape.split("-")
        snn, batch, _ = build(args)
        expected = spikezip.simulate(snn, batch, args.steps, "spike", stop_early=False)
        for stop_early, steps in ((False, f"{args.steps} steps"), (True, "stops when settled")):
            times = measure(args, snn, batch, stop_early, expected)
            wrong |= times is None
            print(line(shape, times, steps), flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
