"""This checkout beside another one, on the same networks, in one run: is it at least as fast?

    python benchmarks/against.py ../spikezip-0.1                    # zoo/cifar10-vit and zoo/sst2-minilm
    python benchmarks/against.py ../spikezip-0.1 --engines event --batches 1 --busy 2

Each checkout works in a process of its own, and the two take turns: a round of one, then a round of the other, so that
whatever else the machine does falls on both. `--busy N` starts N processes that keep cores busy meanwhile. A row gives
the fastest and the median round of both, and the ratio of the medians. Spikes must be equal, or the row is WRONG.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("against_worker.py")


class Side:
    """One checkout, in a process that answers requests line by line."""

    def __init__(self, checkout: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout), "TRANSFORMERS_VERBOSITY": "error"}
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)], cwd=checkout, env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.process.args} ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SystemExit(answer["error"])
        return answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of another version")
    parser.add_argument("--networks", nargs="+", default=["zoo/cifar10-vit", "zoo/sst2-minilm"])
    parser.add_argument("--engines", nargs="+", default=["event", "folded"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--busy", type=int, default=0, help="processes that keep cores busy meanwhile")
    args = parser.parse_args()
    sides = {"other": Side(args.other.resolve()), "this": Side(HERE)}
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)]
    wrong = False
    try:
        print(f"{'network':<18} {'engine':<7} {'batch':>5}   other: best, median   this: best, median   ratio")
        for network in args.networks:
            for engine in args.engines:
                for batch in args.batches:
                    wrong |= row(sides, args, network, engine, batch)
    finally:
        for loop in loops:
            loop.kill()
        for side in sides.values():
            side.process.kill()
    return 1 if wrong else 0


def row(sides: dict[str, Side], args: argparse.Namespace, network: str, engine: str, batch: int) -> bool:
    request = {"network": str(HERE / network), "engine": engine, "batch": batch, "steps": args.steps}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    spikes = {name: side.ask(**request)["spikes"] for name, side in sides.items()}  # the first round warms up
    for _ in range(args.rounds):
        for name, side in sides.items():
            seconds[name].append(side.ask(**request)["seconds"])
    best = {name: min(times) for name, times in seconds.items()}
    median = {name: statistics.median(times) for name, times in seconds.items()}
    equal = spikes["this"] == spikes["other"]
    verdict = f"{median['other'] / median['this']:.2f} times as fast" if equal else "WRONG: spikes differ"
    print(
        f"{Path(network).name:<18} {engine:<7} {batch:>5}   {best['other']:.3f} s, {median['other']:.3f} s"
        f"     {best['this']:.3f} s, {median['this']:.3f} s   {verdict}",
        flush=True,
    )
    return not equal


if __name__ == "__main__":
    sys.exit(main())
