"""This checkout beside another one, on the same networks, in one run: is it at least as fast?

    python benchmarks/against.py ../spikezip-0.1                    # zoo/cifar10-vit and zoo/sst2-minilm
    python benchmarks/against.py ../spikezip-0.1 --engines event --batches 1 --busy 2
    taskset -c 0,1 python benchmarks/against.py ../spikezip-0.1 --busy 2      # where there are more than two cores

Each checkout works in a process of its own, and the two take turns: a round of one, then a round of the other, so that
whatever else the machine does falls on both. Each loads its own folder of a network, in the format that it can read;
the weights must be the same. A row gives the fastest and the median round of both, and the ratio of the medians. Spikes
must be equal, or the row is WRONG; `--other-bits` is for a version whose functions had other last bits, and so other
spikes here and there: these are then compared no more, and rows in which they differ have a star.

With `--busy N` each row is measured once more beside N processes that keep cores busy. Further lines give these rounds,
and for both checkouts how many times as long the median round takes as alone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("against_worker.py")
LOOP = "print(flush=True)\nwhile True: pass"  # the line says that it has begun


class Side:
    """One checkout, in a process that answers requests line by line."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        environment = {**os.environ, "PYTHONPATH": str(checkout), "TRANSFORMERS_VERBOSITY": "error"}
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)], cwd=checkout, env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, network: str, **request: Any) -> dict[str, Any]:
        """A run of a network whose folder is given from the root of the checkout."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request["network"] = str(self.checkout / network)
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.checkout} ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SystemExit(f"{self.checkout}: {answer['error']}")
        if not Path(answer["package"]).is_relative_to(self.checkout):  # an installed one would be measured twice
            raise SystemExit(f"the process of {self.checkout} has imported {answer['package']}")
        return answer

    def close(self) -> None:
        end(self.process)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of another version")
    parser.add_argument("--networks", nargs="+", default=["zoo/cifar10-vit", "zoo/sst2-minilm"])
    parser.add_argument("--engines", nargs="+", default=["event", "folded"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--other-bits", action="store_true", help="functions had other last bits: spikes may differ")
    parser.add_argument("--busy", type=int, default=0, help="measure once more beside so many busy processes")
    args = parser.parse_args(words)
    if not (args.other / "spikezip").is_dir():
        parser.error(f"{args.other} is no checkout: it has no folder spikezip")
    return args


def main(words: list[str] | None = None) -> int:
    args = parse(words)
    sides = {"other": Side(args.other.resolve()), "this": Side(HERE)}
    wrong = False
    try:
        print(f"{'network':<18} {'engine':<7} {'batch':>5}   other: best, median   this: best, median   ratio")
        for network in args.networks:
            for engine in args.engines:
                for batch in args.batches:
                    wrong |= row(sides, args, network, engine, batch)
    finally:
        for side in sides.values():
            side.close()
    return 1 if wrong else 0


def row(sides: dict[str, Side], args: argparse.Namespace, network: str, engine: str, batch: int) -> bool:
    """Measure and print a row; whether its spikes differ."""
    request = {"network": network, "engine": engine, "batch": batch, "steps": args.steps}
    alone, spikes = take_turns(sides, request, args.rounds)
    name = f"{Path(network).name:<18} {engine:<7} {batch:>5}"
    if spikes["this"] != spikes["other"] and args.other_bits:
        name += " *"
    elif spikes["this"] != spikes["other"]:
        print(f"{name}   WRONG: spikes differ", flush=True)
        return True
    print(line(name, alone), flush=True)
    if args.busy:
        with busy(args.busy):
            beside, _ = take_turns(sides, request, args.rounds)
        print(line(f"  beside {args.busy} busy processes", beside))
        times = {side: statistics.median(beside[side]) / statistics.median(alone[side]) for side in sides}
        print(f"{'  times as long':<32}   {times['other']:<21.2f} {times['this']:.2f}", flush=True)
    return False


def take_turns(
    sides: dict[str, Side], request: dict[str, Any], rounds: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of each side's rounds, and its spikes."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    spikes = {name: side.ask(**request)["spikes"] for name, side in sides.items()}  # the first round warms up
    for _ in range(rounds):
        for name, side in sides.items():
            seconds[name].append(side.ask(**request)["seconds"])
    return seconds, spikes


def line(name: str, seconds: dict[str, list[float]]) -> str:
    """A line of the table.

    >>> line("vit", {"other": [0.3, 0.2, 0.4], "this": [0.1, 0.2, 0.2]})
    'vit                                0.200 s, 0.300 s      0.100 s, 0.200 s     1.50 times as fast'
    """
    medians = {side: statistics.median(times) for side, times in seconds.items()}
    shown = [f"{min(times):.3f} s, {medians[side]:.3f} s" for side, times in seconds.items()]
    return f"{name:<32}   {shown[0]:<21} {shown[1]:<20} {medians['other'] / medians['this']:.2f} times as fast"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that keep cores busy meanwhile, on those that this one may use."""
    loops = [subprocess.Popen([sys.executable, "-c", LOOP], stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for loop in loops:
            assert loop.stdout is not None
            loop.stdout.readline()
        yield
    finally:
        for loop in loops:
            end(loop)


def end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.communicate()


if __name__ == "__main__":
    sys.exit(main())
