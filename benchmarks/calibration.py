"""What calibration alone keeps of an image network's accuracy, by levels: no training, no labels.

    python benchmarks/calibration.py MODEL CALIBRATION TEST --levels 256 64 32 16

MODEL is a folder of a transformers network for images; CALIBRATION and TEST are what `--data` of the command line
takes, such as folders of pictures with one folder for each class, named as the network names it or by its number. A row
is one quantized network: its accuracy on all of TEST, how often its answer is the float network's, and the time of
calibration. `--save FOLDER` keeps the networks, to convert, verify and measure them with the command line.
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageClassification

import spikezip
from spikezip.cli.data import Samples, batches, read
from spikezip.cli.folders import save
from spikezip.quant.calibration import EFFORTS
from spikezip.quant.config import PLACEMENTS


@torch.no_grad()
def answers(network: Any, given: Iterator[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """The answers of a network, and the right ones."""
    found, right = [], []
    for batch in given:
        right.append(batch.pop("labels"))
        found.append(network(**batch).logits.argmax(-1))
    return torch.cat(found), torch.cat(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("calibration")
    parser.add_argument("test")
    parser.add_argument("--levels", type=int, nargs="+", default=[256, 64, 32, 16])
    parser.add_argument("--effort", nargs="+", choices=EFFORTS, default=["default"])
    parser.add_argument("--placement", nargs="+", choices=PLACEMENTS, default=["products"])
    parser.add_argument("--samples", type=int, default=128, help="to calibrate on, drawn from CALIBRATION")
    parser.add_argument("--images", type=int, help="of TEST, drawn from all; all unless given")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # GELU in a spiking network
    model = AutoModelForImageClassification.from_pretrained(args.model).eval()
    known, test = read(args.calibration).without_labels(), read(args.test)

    def given(samples: Samples, count: int | None, seed: int | None) -> Iterator[dict[str, Tensor]]:
        return batches(samples, model, args.model, args.batch_size, count, drawn_by=seed)

    count = args.images or len(test)
    expected, right = answers(model, given(test, count, 1))
    print(f"float: {100 * float((expected == right).float().mean()):.2f} % of {count} images", flush=True)
    print("| placement | effort | levels | accuracy | as float | sites | calibration |\n|---|---|---|---|---|---|---|")
    for placement in args.placement:
        for effort in args.effort:
            for levels in args.levels:
                config = spikezip.QuantConfig(levels=levels, placement=placement)
                qann = spikezip.quantize(model, config)
                start = time.perf_counter()
                spikezip.calibrate(qann, given(known, args.samples, args.seed), effort, seed=args.seed)
                took = time.perf_counter() - start
                found, _ = answers(qann, given(test, count, 1))
                if args.save:
                    save(qann, args.save / f"{placement}-{effort}-{levels}", args.model)
                accuracy, agreement = (100 * float((found == x).float().mean()) for x in (right, expected))
                cells = (
                    placement,
                    effort,
                    levels,
                    f"{accuracy:.2f} %",
                    f"{agreement:.2f} %",
                    len(qann.sites),
                    f"{took:.0f} s",
                )
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
