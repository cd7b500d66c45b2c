"""How the cost of a simulation grows: with the steps, the batch, the tokens and the levels, one at a time.

    python benchmarks/growth.py                                    # ViT-Tiny, 64 px, on the CPU
    python benchmarks/growth.py --device cuda --size small --image 224 --steps 64 --batch 64

Each line changes one thing of the base, and says how long a sample takes beside it. Weights are random; all steps are
computed. The spikes of the first samples are compared with the spike engine's: where they differ, there is no time.
"""

import argparse
import sys
import time
from typing import Any

import torch
from networks import SIZES, build

import spikezip
from spikezip.engines.loop import AUTO, ENGINES

CHECKED = 2  # samples
THINGS = ("steps", "batch", "levels", "tokens")


def variants(args: argparse.Namespace) -> list[tuple[str, int, dict[str, int]]]:
    """What is changed, to what: halves and doubles of the base."""
    patch = 16
    found: list[tuple[str, int, dict[str, int]]] = [("base", args.steps, {})]
    for name in THINGS[:3]:
        base = getattr(args, name)
        found += [(name, value, {name: value}) for value in (base // 4, base // 2, base * 2) if value > 0]
    for image in (args.image // 2, args.image * 3 // 2 // patch * patch, args.image * 2):
        found.append(("tokens", (image // patch) ** 2 + 1, {"image": image}))
    kept = ("base", *(args.vary or THINGS))
    return [entry for entry in found if entry[0] in kept and (entry[0] != "levels" or 2 <= entry[1] <= 128)]


def measure(args: argparse.Namespace) -> float | None:
    """Seconds for a sample, the best of several runs; None if the spikes are wrong."""
    snn, batch, _ = build(args)
    few = {name: values[:CHECKED] for name, values in batch.items()}
    short = min(args.steps, 16)
    expected = spikezip.simulate(snn, few, short, "spike", stop_early=False)
    found = spikezip.simulate(snn, few, short, args.engine, stop_early=False)
    if any(not torch.equal(counts, found.spike_counts[site]) for site, counts in expected.spike_counts.items()):
        return None
    seconds = []
    for _ in range(args.repeats):
        wait(args)
        started = time.perf_counter()
        spikezip.simulate(snn, batch, args.steps, args.engine, stop_early=False)
        wait(args)
        seconds.append(time.perf_counter() - started)
    return min(seconds) / args.batch


def wait(args: argparse.Namespace) -> None:
    if args.device.startswith("cuda"):
        torch.cuda.synchronize()


def line(name: str, value: int, seconds: float | None, base: float | None) -> str:
    """A line of the table.

    >>> line("steps", 64, 0.02, 0.01)
    'steps          64      20.00 ms    2.00'
    """
    if seconds is None:
        return f"{name:10} {value:6}   WRONG spikes"
    ratio = "" if base is None else f"{seconds / base:8.2f}"
    return f"{name:10} {value:6} {seconds * 1e3:10.2f} ms{ratio}"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--image", type=int, default=64, help="height and width of the images; patches of 16")
    parser.add_argument("--levels", type=int, default=32)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--engine", choices=(*ENGINES, AUTO), default="folded")
    parser.add_argument("--vary", nargs="+", choices=THINGS, help="only these, one at a time; all of them otherwise")
    parser.add_argument("--repeats", type=int, default=5, help="the first ones warm up, and on a GPU record graphs")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(words)
    if args.image < 32:
        parser.error("--image must be at least 32")
    args.model, args.network = "vit", None
    return args


def main() -> int:
    args = parse()
    print(f"ViT-{args.size}, {args.engine}, {args.device}; base: {args.image} px, {args.levels} levels, "
          f"T = {args.steps}, batch {args.batch}\n{'':10} {'value':>6} {'a sample':>13} {'× base':>7}")  # fmt: skip
    base: Any = None
    wrong = False
    for name, value, change in variants(args):
        seconds = measure(argparse.Namespace(**{**vars(args), **change}))
        base = seconds if name == "base" else base
        wrong |= seconds is None
        print(line(name, value, seconds, base), flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
