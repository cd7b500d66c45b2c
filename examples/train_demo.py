"""Train the network that `spikezip demo` ships: a small ViT with ReLU on Fashion-MNIST, quantization-aware.

    python examples/train_demo.py --data /usr/share/datasets/fashion-mnist --out spikezip/demo/data

`--data` holds the four files of Fashion-MNIST in their published form (Debian package `dataset-fashion-mnist`). Three
stages, as in the paper: a float network with ReLU; quantizers calibrated from data; training on, with the float network
as teacher. Writes the quantized network, the first 1,000 test images and the metrics.
"""

import argparse
import gzip
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification

import spikezip
from spikezip.demo import CLASSES, normalise

TEMPERATURE = 2.0


def read_idx(path: Path) -> np.ndarray:
    """An array from a gzipped IDX file (magic, dimensions, bytes)."""
    raw = gzip.decompress(path.read_bytes())
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">i4", count=dimensions, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def augment(images: Tensor) -> Tensor:
    """Shift by up to two pixels and mirror, each image by its own dice."""
    n, _, size, _ = images.shape
    padded = F.pad(images, (2, 2, 2, 2))
    rows = torch.randint(0, 5, (n, 1), device=images.device) + torch.arange(size, device=images.device)
    columns = torch.randint(0, 5, (n, 1), device=images.device) + torch.arange(size, device=images.device)
    mirrored = torch.rand(n, 1, device=images.device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    batch = torch.arange(n, device=images.device)[:, None, None]
    return padded[batch, 0, rows[:, :, None], columns[:, None, :]].unsqueeze(1)


def batches(images: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(images), device=images.device)
    for i in range(0, len(images) - size + 1, size):
        chosen = order[i : i + size]
        yield normalise(augment(images[chosen])), labels[chosen]


@torch.no_grad()
def accuracy(model: torch.nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    hits = 0
    for i in range(0, len(images), 500):
        logits = model(pixel_values=normalise(images[i : i + 500])).logits
        hits += int((logits.argmax(-1) == labels[i : i + 500]).sum())
    return 100 * hits / len(images)


def train(
    model: torch.nn.Module,
    data: dict[str, Tensor],
    epochs: int,
    rate: float,
    size: int,
    teacher: torch.nn.Module | None = None,
) -> None:
    """AdamW with warm-up and cosine; with a teacher, its softened answers beside the labels."""
    no_decay = [p for p in model.parameters() if p.ndim < 2]
    decay = [p for p in model.parameters() if p.ndim >= 2]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99))
    total = epochs * (len(data["x_train"]) // size)
    warmup = max(1, total // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: min((i + 1) / warmup, 0.5 * (1 + math.cos(math.pi * min(1.0, i / total)))),
    )
    started = time.time()
    for epoch in range(epochs):
        model.train()
        losses = []
        for x, y in batches(data["x_train"], data["y_train"], size):
            logits = model(pixel_values=x).logits
            loss = F.cross_entropy(logits, y, label_smoothing=0.1 if teacher is None else 0.0)
            if teacher is not None:
                with torch.no_grad():
                    target = F.log_softmax(teacher(pixel_values=x).logits / TEMPERATURE, dim=-1)
                student = F.log_softmax(logits / TEMPERATURE, dim=-1)
                loss = loss + TEMPERATURE**2 * F.kl_div(student, target, log_target=True, reduction="batchmean")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        line = (
            f"epoch {epoch + 1}/{epochs}  loss {float(torch.stack(losses).mean()):.4f}  {time.time() - started:.0f} s"
        )
        if (epoch + 1) % 5 == 0 or epoch + 1 == epochs:
            line += f"  test {accuracy(model, data['x_test'], data['y_test']):.2f} %"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--qat-epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--levels", type=int, default=16)
    parser.add_argument("--limit", type=int, default=None, help="train on this many images only, to try the script")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    data = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images = read_idx(args.data / f"{prefix}-images-idx3-ubyte.gz")[: args.limit]
        labels = read_idx(args.data / f"{prefix}-labels-idx1-ubyte.gz")[: args.limit]
        data[f"x_{split}"] = torch.from_numpy(images.copy()).unsqueeze(1).to(args.device)
        data[f"y_{split}"] = torch.from_numpy(labels.astype(np.int64)).to(args.device)

    config = ViTConfig(
        image_size=28,
        patch_size=4,
        num_channels=1,
        hidden_size=128,
        num_hidden_layers=5,
        num_attention_heads=4,
        intermediate_size=384,
        hidden_act="relu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=10,
        id2label=dict(enumerate(CLASSES)),
        label2id={name: i for i, name in enumerate(CLASSES)},
    )
    model = ViTForImageClassification(config).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    train(model, data, args.epochs, 1e-3, args.batch_size)
    float_accuracy = accuracy(model, data["x_test"], data["y_test"])

    qann = spikezip.quantize(model, spikezip.QuantConfig(levels=args.levels, weight_bits=8))
    sample = [normalise(data["x_train"][i : i + 256]) for i in range(0, 1024, 256)]
    spikezip.calibrate(qann, [x for x in sample if len(x)])
    calibrated = accuracy(qann, data["x_test"], data["y_test"])
    print(f"float {float_accuracy:.2f} %, calibrated only {calibrated:.2f} %", flush=True)
    train(qann, data, args.qat_epochs, 2e-4, args.batch_size, teacher=model.eval())
    quantized = accuracy(qann, data["x_test"], data["y_test"])

    args.out.mkdir(parents=True, exist_ok=True)
    spikezip.save(qann, args.out / "qann")
    keep = slice(0, 1000)
    x, y = data["x_test"][keep].cpu().numpy(), data["y_test"][keep].cpu().numpy().astype(np.uint8)
    np.savez_compressed(args.out / "images.npz", x=x, y=y)
    metrics = {
        "data": "Fashion-MNIST, 60,000 training and 10,000 test images",
        "float_accuracy": round(float_accuracy, 2),
        "calibrated_accuracy": round(calibrated, 2),
        "qann_accuracy": round(quantized, 2),
        "arguments": {k: str(v) for k, v in vars(args).items() if k not in ("data", "out")},
    }
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    print(json.dumps(metrics, indent=2))


if __name__ == "__main__":
    main()
