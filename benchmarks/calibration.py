"""What calibration alone keeps of a classifier's accuracy, of images or texts, by levels: no training, no labels.

    python benchmarks/calibration.py MODEL CALIBRATION TEST --levels 256 64 32 16
    python benchmarks/calibration.py MODEL SST-2/train.tsv sst2:SST-2 --effort default thorough

MODEL is a folder of a transformers classifier. CALIBRATION and TEST are what `--data` of the command line takes: for
images such as folders of pictures with one folder for each class, named as the network names it or by its number; for
texts a table with the columns `label` and `sentence`, or a dataset. A row is one quantized network: its accuracy on all
of TEST, how often its answer is the float network's, and the time of calibration. `--save FOLDER` keeps the networks,
to convert, verify and measure them with the command line.
"""

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from calibrated import add_options, print_table
from torch import Tensor
from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

from spikezip.cli.data import Samples, batches, read
from spikezip.cli.folders import save


@torch.no_grad()
def answers(network: Any, given: Iterator[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """The answers of a network, and the right ones."""
    found, right = [], []
    for batch in given:
        right.append(batch.pop("labels"))
        inputs = {name: x.to(network.device) for name, x in batch.items()}
        found.append(network(**inputs).logits.argmax(-1).cpu())
    return torch.cat(found), torch.cat(right)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("calibration")
    parser.add_argument("test")
    parser.add_argument("--samples", type=int, default=128, help="to calibrate on, drawn from CALIBRATION")
    parser.add_argument("--images", "--texts", dest="count", type=int, help="of TEST, drawn from all; all unless given")
    parser.add_argument("--save", type=Path)
    add_options(parser, batch_size=16)
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # GELU in a spiking network
    known, test = read(args.calibration).without_labels(), read(args.test)
    if test.labels is None:
        parser.error(f"{args.test} holds no labels")
    kind = AutoModelForSequenceClassification if test.texts else AutoModelForImageClassification
    model = kind.from_pretrained(args.model, dtype=torch.float32).eval()

    def given(samples: Samples, count: int | None, seed: int | None) -> Iterator[dict[str, Tensor]]:
        return batches(samples, model, args.model, args.batch_size, count, drawn_by=seed)

    count = args.count or len(test)
    expected, right = answers(model.to(args.device), given(test, count, 1))
    model.cpu()  # where networks are quantized, as by the command line

    def judge(qann: Any, name: str) -> list[str]:
        found, _ = answers(qann, given(test, count, 1))
        if args.save:
            save(qann, args.save / name, args.model)
        return [f"{100 * float((found == x).float().mean()):.2f} %" for x in (right, expected)]

    what = "texts" if test.texts else "images"
    print(f"float: {100 * float((expected == right).float().mean()):.2f} % of {count} {what}", flush=True)
    print_table(model, args, lambda: given(known, args.samples, args.seed), ["accuracy", "as float"], judge)


if __name__ == "__main__":
    main()
