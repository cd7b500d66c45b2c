"""Train the network that `spikezip demo` ships: a small ViT with ReLU on Fashion-MNIST, quantization-aware.

    python examples/train_demo.py --data /usr/share/datasets/fashion-mnist --out demo-data
    python examples/train_demo.py --data … --out demo-data --cpu --set data.limit=512 \\
        relu.epochs=1 relu.warmup_epochs=0 qat.epochs=1 qat.warmup_epochs=0    # a try, two minutes on a CPU

`--data` holds the four files of Fashion-MNIST in their published form (Debian package `dataset-fashion-mnist`). The
recipe `recipes/fashion-mnist-vit.yaml` says the rest; `--set` changes it, as in `spikezip train`. Written are the
quantized network, the first 1,000 test images and the metrics; the folder of the run is `runs/fashion-mnist-vit`.

The shipped network was trained by an earlier form of this script, with the settings that the recipe has now.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

import spikezip
from spikezip.data import open_data
from spikezip.training import Progress, Recipe, Trained, load_recipe

RECIPE = Path(__file__).parent.parent / "recipes" / "fashion-mnist-vit.yaml"


def teller() -> Callable[[Progress], None]:
    """Prints a line whenever there are new numbers, and at the end of a stage."""
    said: dict[str, str] = {}

    def tell(progress: Progress) -> None:
        numbers = "  ".join(f"{name} {value:.4f}" for name, value in progress.numbers.items())
        news = numbers or ("done" if progress.done == progress.total else "")
        if news != said.get(progress.stage, ""):
            said[progress.stage] = news
            print(f"{progress.stage} {progress.done}/{progress.total}  {news}", flush=True)

    return tell


def write_images(source: Path, target: Path) -> None:
    test = open_data("fashion-mnist", source).test
    batch = test.__getitems__(range(1000))
    np.savez_compressed(target, x=batch["pixel_values"].numpy(), y=batch["labels"].numpy().astype(np.uint8))


def figures(result: Trained, recipe: Recipe) -> dict[str, object]:
    """What is shipped as metrics.json: accuracies on the test images in percent, and how the network was trained."""
    stages = recipe.to_json()["stages"]
    percent = {stage: round(100 * result.metrics[stage]["accuracy"], 2) for stage in ("relu", "quantize", "qann")}
    arguments = {
        "epochs": f"{stages['relu']['epochs']:g}",
        "qat_epochs": f"{stages['qat']['epochs']:g}",
        "batch_size": stages["qat"]["batch_size"],
        "levels": stages["quantize"]["levels"],
        "limit": recipe.data.limit,
        "device": result.qann.device.type,
        "seed": recipe.seed,
    }
    return {
        "data": "Fashion-MNIST, 60,000 training and 10,000 test images",
        "float_accuracy": percent["relu"],
        "calibrated_accuracy": percent["quantize"],
        "qann_accuracy": percent["qann"],
        "arguments": {name: str(value) for name, value in arguments.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="change settings of the recipe")
    parser.add_argument("--resume", action="store_true", help="go on where a run stopped")
    parser.add_argument("--cpu", action="store_true", help="use the CPU even where there is a GPU")
    args = parser.parse_args()

    recipe = load_recipe(RECIPE, [f"data={args.data}", *args.set])
    result = spikezip.train(None, recipe, resume=args.resume, cpu=args.cpu, progress=teller())
    spikezip.save(result.qann, args.out / "qann", compact=True)
    write_images(args.data, args.out / "images.npz")
    metrics = json.dumps(figures(result, recipe), indent=2)
    (args.out / "metrics.json").write_text(metrics + "\n")
    print(f"{metrics}\n{result.certificate}")


if __name__ == "__main__":
    main()
