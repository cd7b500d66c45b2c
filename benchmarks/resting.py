"""What kernels that leave out what rests bring on a GPU: the same runs with them and without, in one process.

    python benchmarks/resting.py --network zoo/cifar10-vit --data cifar10.npz --batch 1000
    python benchmarks/resting.py --size small --image 224 --batch 64       # random weights, which hardly ever rest

Runs stop at equilibrium, and go on for all steps. Spikes and codes of both forms are compared; where they differ,
there is no time.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from networks import SIZES, build

import spikezip
from spikezip.engines import folded, graphs


def run(snn: Any, batch: Any, args: argparse.Namespace, stop_early: bool, looks: bool) -> tuple[float, Any]:
    """The best of several runs in seconds, and the last of them. The first ones compile, and record graphs."""
    graphs.forget(snn.program)
    folded.RESTS = -1.0 if looks else 2.0  # every network rests, or none
    best, last = float("inf"), None
    for _ in range(args.repeats):
        _wait(args.device)
        started = time.perf_counter()
        last = spikezip.simulate(snn, batch, args.steps, "folded", stop_early=stop_early)
        _wait(args.device)
        best = min(best, time.perf_counter() - started)
    return best, last


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def same(a: Any, b: Any) -> bool:
    """Whether two runs agree in every code, every count and every output."""
    sites = a.spike_counts
    return torch.equal(a.logits_per_step, b.logits_per_step) and all(
        torch.equal(a.spike_counts[site], b.spike_counts[site]) and torch.equal(a.tracers[site], b.tracers[site])
        for site in sites
    )


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", type=Path, help="a folder with a trained network; else random weights")
    parser.add_argument("--data", type=Path, help="with --network: an npz file of images")
    parser.add_argument("--model", choices=("vit", "bert"), default="vit")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--levels", type=int, default=32)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args(given)
    if (args.network is None) != (args.data is None):
        parser.error("--network and --data belong together")
    return args


def main(given: list[str] | None = None) -> None:
    args = parse(given)
    snn, batch, _ = build(args)
    print(f"{'':32} {'samples/s':>10} {'× without':>10}  spikes")
    for name, stop_early in (("stops at equilibrium", True), (f"all {args.steps} steps", False)):
        plain, expected = run(snn, batch, args, stop_early, looks=False)
        rested, found = run(snn, batch, args, stop_early, looks=True)
        print(f"{name:32} {args.batch / plain:10.1f} {1.0:10.2f}")
        if same(expected, found):
            print(f"{name + ', rest left out':32} {args.batch / rested:10.1f} {plain / rested:10.2f}  equal")
        else:
            print(f"{name + ', rest left out':32} {'–':>10} {'–':>10}  differ: no time")


if __name__ == "__main__":
    main()
