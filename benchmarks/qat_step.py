"""Milliseconds of a training step of a quantized network against the float step of the same model, in one run.

    python benchmarks/qat_step.py                  # ViT-S/16 and a BERT of MiniLM's shape; the GPU if there is one
    python benchmarks/qat_step.py --model vit --precision bf16 --profile
    python benchmarks/qat_step.py --tiny           # a try on any machine: small models, few steps

A step is forward, loss, backward and AdamW. The float model runs with eager attention and with SDPA. The rows with a
teacher add the forward pass of a frozen float model (SDPA) and a distillation loss. The quantized network runs as
`spikezip train` runs it on one GPU, with CUDA graphs, and once without; the float model gets graphs too, in a row of
its own. Each row takes its turn in every round; the median of all steps counts. TF32 is off; `bf16` is autocast. Rows
with a teacher have their own base.
"""

import argparse
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, ViTConfig, ViTForImageClassification

import spikezip
from spikezip.training.compiled import compiled_blocks
from spikezip.training.graphs import SDPA, GraphedStep

PRECISIONS = ("float32", "bf16")
_held = ExitStack()  # to the end of the program
Step = Callable[[], None]


def make_vit(args: argparse.Namespace) -> tuple[nn.Module, dict[str, Tensor]]:
    """ViT-S/16 with random weights, and a batch of random pixels."""
    width, depth, heads, image = (32, 2, 2, 32) if args.tiny else (384, 12, 6, args.image)
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        hidden_act=args.activation,
        image_size=image,
        num_labels=1000,
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.dropout,
    )
    return ViTForImageClassification(config), {"pixel_values": torch.randn(args.batch, 3, image, image)}


def make_bert(args: argparse.Namespace) -> tuple[nn.Module, dict[str, Tensor]]:
    """A BERT of MiniLM's shape with random weights, and a batch of random tokens."""
    width, depth, heads, tokens = (32, 2, 2, 8) if args.tiny else (384, 6, 12, args.tokens)
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        hidden_act=args.activation,
        num_labels=1000,
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.dropout,
    )
    ids = torch.randint(1000, config.vocab_size, (args.batch, tokens))
    return BertForSequenceClassification(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


MODELS = {"vit": make_vit, "bert": make_bert}


def autocast(args: argparse.Namespace, precision: str) -> AbstractContextManager[Any]:
    if precision == "float32":
        return nullcontext()
    return torch.autocast(torch.device(args.device).type, dtype=torch.bfloat16)


def make_step(
    args: argparse.Namespace,
    precision: str,
    model: nn.Module,
    batch: dict[str, Tensor],
    teacher: nn.Module | None,
    graphs: bool = False,
) -> Step:
    """One training step of `model`, as a function without arguments."""
    labels = torch.arange(args.batch, device=args.device) % 1000
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=args.device.startswith("cuda"))

    def find_loss(batch: dict[str, Tensor]) -> Tensor:
        with autocast(args, precision):
            logits = model(**batch).logits.float()
            loss = F.cross_entropy(logits, labels)
            if teacher is not None:
                with torch.no_grad():
                    wanted = teacher(**batch).logits.float()
                loss = loss + F.kl_div(logits.log_softmax(-1), wanted.softmax(-1), reduction="batchmean")
        return loss

    replayed = GraphedStep(model, find_loss)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        if graphs:
            replayed(batch)
        else:
            find_loss(batch).backward()
        optimizer.step()

    return step


def make_steps(args: argparse.Namespace, name: str, precision: str) -> dict[str, Step]:
    """All rows of one table: the float steps first, each with models and optimizer of its own."""
    torch.manual_seed(0)
    base, batch = MODELS[name](args)
    base = base.to(args.device)
    batch = {key: value.to(args.device) for key, value in batch.items()}

    def floats(attention: str) -> Any:
        copied = type(base)(base.config).to(args.device)
        copied.load_state_dict(base.state_dict())
        copied.set_attn_implementation(attention)
        return copied

    def quantized() -> nn.Module:
        qann = spikezip.quantize(base, spikezip.QuantConfig(levels=args.levels, weight_bits=args.weight_bits))
        few = {key: value[:2] for key, value in batch.items()}
        return spikezip.calibrate(qann, [few], "quick").train()

    teacher = floats("sdpa").eval().requires_grad_(False)
    rows = {
        "float, eager": (floats("eager").train(), None),
        "float, sdpa": (floats("sdpa").train(), None),
        "quantized, no graphs": (quantized(), None),
        "float, sdpa + teacher": (floats("sdpa").train(), teacher),
    }
    graphed = {
        "quantized": (quantized(), None),
        "quantized + teacher": (quantized(), teacher),
        "float, sdpa, graphs": (floats(SDPA).train(), None),  # fused attention, whose mask nobody looks at
    }
    if args.compiled:
        compiled = floats(SDPA).train()
        _held.enter_context(compiled_blocks(compiled))
        graphed["float, compiled, graphs"] = (compiled, None)
    steps = {row: make_step(args, precision, model, batch, guide) for row, (model, guide) in rows.items()}
    on_gpu = args.device.startswith("cuda")
    return steps | {
        row: make_step(args, precision, model, batch, guide, graphs=on_gpu) for row, (model, guide) in graphed.items()
    }


def measure(args: argparse.Namespace, steps: dict[str, Step]) -> dict[str, list[float]]:
    """Milliseconds of every timed step, row by row in turns, so that no row has the machine's good moments alone."""
    times: dict[str, list[float]] = {row: [] for row in steps}
    for step in steps.values():
        for _ in range(args.warmup):
            step()
    for _ in range(args.rounds):
        for row, step in steps.items():
            step()  # the first step after another row finds cold caches
            times[row] += (
                _time_cuda(step, args.steps) if args.device.startswith("cuda") else _time_cpu(step, args.steps)
            )
    return times


def _time_cuda(step: Step, count: int) -> list[float]:
    """With events and no waiting in between: what a training loop would see."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in pairwise(marks)]


def _time_cpu(step: Step, count: int) -> list[float]:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - started))
    return times


def report(times: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Print a table; return its figures."""
    medians = {row: statistics.median(values) for row, values in times.items()}
    print(f"{'':24} {'median ms':>10} {'10 %':>8} {'90 %':>8} {'× eager':>8} {'× sdpa':>8}")
    figures = []
    for row, values in times.items():
        ordered = sorted(values)
        low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
        taught = row.endswith("teacher")
        against = {"× eager": None if taught else "float, eager", "× sdpa": "float, sdpa" + " + teacher" * taught}
        ratios = {name: medians[row] / medians[base] if base else None for name, base in against.items()}
        shown = " ".join(f"{'' if ratio is None else f'{ratio:.2f}':>8}" for ratio in ratios.values())
        print(f"{row:24} {medians[row]:10.2f} {low:8.2f} {high:8.2f} {shown}")
        figures.append({"row": row, "median_ms": medians[row], "low_ms": low, "high_ms": high, **ratios})
    return figures


def profile(args: argparse.Namespace, row: str, step: Step) -> None:
    """The ten operations that take longest in five steps."""
    cuda = args.device.startswith("cuda")
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if cuda else []
    with torch.profiler.profile(activities=activities) as seen:
        for _ in range(5):
            step()
        if cuda:
            torch.cuda.synchronize()
    print(f"\n{row}, five steps:")
    print(seen.key_averages().table(sort_by=f"self_{'cuda' if cuda else 'cpu'}_time_total", row_limit=10))


def versions(args: argparse.Namespace) -> str:
    """The machine and what runs on it."""
    cuda = args.device.startswith("cuda")
    machine = torch.cuda.get_device_name() if cuda else f"{platform.machine()}, {torch.get_num_threads()} threads"
    try:
        import triton

        kernels = f"triton {triton.__version__}"
    except ImportError:
        kernels = "no triton"
    packages = f"torch {torch.__version__}, {kernels}, transformers {transformers.__version__}"
    return f"{machine}; Python {platform.python_version()}, {packages}, spikezip {spikezip.__version__}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", help="default: both; on the CPU float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=None, help="default: 64, tiny 4")
    parser.add_argument("--image", type=int, default=224, help="pixels per side, for vit")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per sentence, for bert")
    parser.add_argument("--activation", default="relu")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--levels", type=int, default=32)
    parser.add_argument("--weight-bits", type=int, choices=(8, 16), default=8)
    parser.add_argument(
        "--warmup", type=int, default=None, help="steps before the first that counts; default: 10, tiny 1"
    )
    parser.add_argument("--rounds", type=int, default=None, help="turns of each row; default: 5, tiny 2")
    parser.add_argument("--steps", type=int, default=None, help="timed steps per turn; default: 20, tiny 2")
    parser.add_argument("--tiny", action="store_true", help="small models and few steps: a try, not a measurement")
    parser.add_argument("--compiled", action="store_true", help="a row more: the float model's blocks compiled as well")
    parser.add_argument("--profile", action="store_true", help="also show the ten costliest operations")
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    for name, usual, tiny in (("batch", 64, 4), ("warmup", 10, 1), ("rounds", 5, 2), ("steps", 20, 2)):
        if getattr(args, name) is None:
            setattr(args, name, tiny if args.tiny else usual)
    if args.precision is None:
        args.precision = list(PRECISIONS) if args.device.startswith("cuda") else ["float32"]
    return args


def main() -> None:
    args = parse()
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    print(versions(args))
    tables = []
    for name in args.model:
        for precision in args.precision:
            print(f"\n{name}{' (tiny)' * args.tiny}, {precision}, batch {args.batch}, {args.levels} levels")
            steps = make_steps(args, name, precision)
            figures = report(measure(args, steps))
            tables.append({"model": name, "precision": precision, "rows": figures})
            if args.profile:
                for row in ("float, sdpa", "quantized"):
                    profile(args, row, steps[row])
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"arguments": vars(args), "versions": versions(args), "tables": tables}, file, indent=2)


if __name__ == "__main__":
    main()
