"""Images per second of every augmentation, and its time as a share of a training step of a small ViT.

    python benchmarks/augmentation.py --device cuda
    python benchmarks/augmentation.py --shapes 16x32 4x64      # batch x size; tiny, for the CPU

The baseline is one forward and backward pass of a ViT of transformers at the same batch, on the same device in the same
run (ViT-Small; patches of 4 pixels up to 64 × 64, of 16 above; bfloat16 autocast on a GPU). What is timed is `Augment`
and `Pixels` on a uint8 batch that lies on the device. Each time is the best of several runs: the share of a step that
augmentation costs where nothing else is in the way.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import ViTConfig, ViTForImageClassification

from spikezip.data import Augment, Augmentation, Pixels, RandAugment

CASES = {
    "pixels only": Augmentation(),
    "crop": Augmentation(crop_padding=4),
    "flip": Augmentation(flip=True),
    "randaugment": Augmentation(randaugment=RandAugment(ops=2, magnitude=9.0, std=0.5)),
    "erase": Augmentation(erase=0.25),
    "mixup": Augmentation(mixup=0.8),
    "cutmix": Augmentation(cutmix=1.0),
    "mixup or cutmix": Augmentation(mixup=0.8, cutmix=1.0),
    "rotate": Augmentation(rotate=15.0),
    "drop": Augmentation(drop=0.1),
    "all for images": Augmentation(
        crop_padding=4, flip=True, randaugment=RandAugment(), erase=0.25, mixup=0.8, cutmix=1.0
    ),
}
CLASSES = 100


def seconds(once: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """The best time of `once`, after a warm-up; the device is waited for."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(2):
        once()
    best = float("inf")
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        once()
        wait()
        best = min(best, time.perf_counter() - start)
    return best


def training_step(batch: int, size: int, device: torch.device) -> Callable[[], None]:
    """Forward and backward of the baseline, without its optimizer."""
    config = ViTConfig(
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=6,
        intermediate_size=1536,
        image_size=size,
        patch_size=4 if size <= 64 else 16,
        num_labels=CLASSES,
    )
    model = ViTForImageClassification(config).to(device).train()
    pixels = torch.randn(batch, 3, size, size, device=device)
    labels = torch.randint(0, CLASSES, (batch,), device=device)

    def step() -> None:
        model.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(pixel_values=pixels).logits
        torch.nn.functional.cross_entropy(logits.float(), labels).backward()

    return step


def measure(batch: int, size: int, device: torch.device, repeats: int) -> dict[str, Any]:
    """Seconds of the baseline and of every case, at one shape."""
    torch.manual_seed(0)
    baseline = seconds(training_step(batch, size, device), device, repeats)
    pixels = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device=device)
    labels = torch.randint(0, CLASSES, (batch,), device=device)
    to_model = Pixels(None, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    found = {}
    for name, settings in CASES.items():
        augment = Augment(settings, CLASSES)

        def once(augment: Augment = augment) -> None:
            to_model(augment(pixels, labels)[0])

        found[name] = seconds(once, device, repeats)
    return {"batch": batch, "size": size, "baseline": baseline, "cases": found}


def report(result: dict[str, Any]) -> None:
    batch, size, baseline = result["batch"], result["size"], result["baseline"]
    print(f"\n[{batch}, 3, {size}, {size}]   ViT-Small forward + backward: {batch / baseline:,.0f} images/s")
    print(f"{'augmentation':<18}{'ms':>9}{'images/s':>14}{'of a step':>12}")
    for name, time_of in result["cases"].items():
        print(f"{name:<18}{1e3 * time_of:>9.2f}{batch / time_of:>14,.0f}{100 * time_of / baseline:>10.1f} %")


def shape(text: str) -> tuple[int, int]:
    batch, _, size = text.partition("x")
    if not batch.isdecimal() or not size.isdecimal() or not int(batch) or not int(size):
        raise argparse.ArgumentTypeError(f"{text!r} is not BATCHxSIZE, such as 1024x32")
    return int(batch), int(size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shapes", nargs="+", type=shape, default=[(1024, 32), (256, 224)], metavar="BATCHxSIZE")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", metavar="FILE", help="write the seconds there as well")
    args = parser.parse_args()
    device = torch.device(args.device)
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {machine}")
    results = []
    for batch, size in args.shapes:
        results.append(measure(batch, size, device, args.repeats))
        report(results[-1])
    if args.json:
        with open(args.json, "w", encoding="utf-8") as stream:
            json.dump({"machine": machine, "torch": torch.__version__, "results": results}, stream, indent=2)


if __name__ == "__main__":
    main()
