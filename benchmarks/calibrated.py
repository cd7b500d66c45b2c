"""What `calibration.py` and `perplexity.py` share: their options, the networks that they compare, and the table."""

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

import spikezip
from spikezip.program.batch import Batch
from spikezip.quant.calibration import EFFORTS
from spikezip.quant.config import PLACEMENTS


def add_options(parser: argparse.ArgumentParser, batch_size: int) -> None:
    """Which networks are compared, and how they are calibrated and run."""
    parser.add_argument("--levels", type=int, nargs="+", default=[256, 64, 32, 16])
    parser.add_argument("--effort", nargs="+", choices=EFFORTS, default=["default"])
    parser.add_argument("--placement", nargs="+", choices=PLACEMENTS, default=["products"])
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--device", type=torch.device, default=torch.device("cpu"), help="such as cuda; cpu unless given"
    )


def print_table(
    model: Any,
    args: argparse.Namespace,
    batches: Callable[[], Iterable[Batch]],
    columns: Sequence[str],
    judge: Callable[[Any, str], Sequence[str]],
) -> None:
    """A row for each network: calibrated on `batches`, and what `judge` finds of it, given a name for it as well."""
    print("| placement | effort | levels | " + " | ".join(columns) + " | sites | calibration |")
    print("|" + "---|" * (5 + len(columns)))
    for placement in args.placement:
        for effort in args.effort:
            for levels in args.levels:
                config = spikezip.QuantConfig(levels=levels, placement=placement)
                qann = spikezip.quantize(model, config).eval().to(args.device)
                start = time.perf_counter()
                spikezip.calibrate(qann, batches(), effort, seed=args.seed)
                took = time.perf_counter() - start
                found = judge(qann, f"{placement}-{effort}-{levels}")
                cells = (placement, effort, levels, *found, len(qann.sites), f"{took:.0f} s")
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
