"""Runs under caps on a GPU's memory that the choice of chunks does not know of: are they slower, and still right?

    python benchmarks/memory.py                                    # ViT-S/16, batch 64, T = 64, from 8 to 2 GiB
    python benchmarks/memory.py --caps 6 3 --size base --batch 32

Under each cap the network runs three times. Spikes and codes are compared with those of a run without a cap. A line
says all that the runs warned of, and how long the last one took.
"""

import argparse
import sys
import time
import warnings
from dataclasses import replace
from typing import Any

import torch
from networks import SIZES, build
from resting import same
from torch import Tensor

import spikezip
from spikezip.engines import graphs
from spikezip.engines.engine import Run

RUNS = 3
GIB = 2**30


def run(args: argparse.Namespace, snn: Any, batch: Any, cap: float | None) -> tuple[float, Any, list[str]]:
    """Seconds of the last of several runs, what it found, and all that was said meanwhile."""
    graphs.forget(snn.program)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if cap is None else min(1.0, cap * GIB / total))
    seconds, found = 0.0, None
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(RUNS):
            found = None
            torch.cuda.synchronize()
            started = time.perf_counter()
            found = spikezip.simulate(snn, batch, args.steps, "folded", stop_early=False)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - started
    return seconds, found, [str(warning.message) for warning in seen]


def on_cpu(run: Run) -> Run:
    def moved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {site: tensor.cpu() for site, tensor in tensors.items()}

    return replace(
        run,
        logits_per_step=run.logits_per_step.cpu(),
        spike_counts=moved(run.spike_counts),
        tracers=moved(run.tracers),
    )


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caps", type=float, nargs="+", default=[8, 6, 5, 4, 3.5, 3, 2.5, 2], help="in GiB")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--levels", type=int, default=32)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args(words)
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here; this is about the memory of one")
    args.model, args.network, args.device = "vit", None, "cuda"
    return args


def main(words: list[str] | None = None) -> int:
    args = parse(words)
    snn, batch, _ = build(args)
    free, expected, said = run(args, snn, batch, None)
    expected = on_cpu(expected)  # a cap is for what is compared with it, not for it
    print(f"{'no cap':>8}: {1e3 * free:6.0f} ms; {'; '.join(said) or 'nothing was said'}")
    wrong = False
    for cap in args.caps:
        try:
            seconds, found, said = run(args, snn, batch, cap)
        except torch.OutOfMemoryError:
            print(f"{cap:4} GiB: out of memory", flush=True)
            continue
        differs = not same(expected, on_cpu(found))
        wrong |= differs
        verdict = "WRONG spikes" if differs else f"{1e3 * seconds:6.0f} ms"
        print(f"{cap:4} GiB: {verdict}; {'; '.join(said) or 'nothing was said'}", flush=True)
        found = None
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
