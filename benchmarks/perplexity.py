"""What calibration alone keeps of a language model: perplexity over the float model's, by levels. No training.

    python benchmarks/perplexity.py MODEL --calibration wikitext2/valid.txt --test wikitext2/test.txt --levels 256 64 32
    python benchmarks/perplexity.py stories15m --own 64 --levels 64 32       # on stories that the model tells itself

MODEL is a folder of a transformers decoder; `--gguf FILE` names a file in it of that kind. Text is tokenized and cut
into windows; calibration takes windows drawn from all of its text, the test windows at even distances. With `--own N`
the model writes N windows for each of both.
"""

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from calibrated import add_options, print_table
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer


def windows(text: Path, tokenizer: Any, width: int) -> Tensor:
    """All whole windows of a text, one per row."""
    lines = text.read_text(encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the text is longer than the model reads at once
        ids = tokenizer(lines, return_tensors="pt", verbose=False)["input_ids"][0]
    count = len(ids) // width
    return ids[: count * width].view(count, width)


@torch.no_grad()
def own_windows(model: Any, tokenizer: Any, count: int, width: int, seed: int) -> Tensor:
    """Windows that the model writes, drawn from what it finds likely."""
    torch.manual_seed(seed)
    start = torch.full((count, 1), tokenizer.bos_token_id if tokenizer.bos_token_id is not None else 0)
    settings = {"do_sample": True, "top_k": 0, "pad_token_id": 0, "min_new_tokens": width - 1}
    return model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=width - 1, **settings)


@torch.no_grad()
def perplexity(network: Any, rows: Tensor, size: int) -> float:
    total = 0.0
    for part in rows.to(network.device).split(size):
        logits = network(input_ids=part, attention_mask=torch.ones_like(part)).logits
        total += float(F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), part[:, 1:].flatten(), reduction="sum"))
    return float(torch.tensor(total / rows[:, 1:].numel()).exp())


def drawn(rows: Tensor, count: int, order: Sequence[int]) -> Tensor:
    return rows[list(order)[:count]]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--gguf", help="a file of this kind in MODEL")
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--own", type=int, help="windows that the model writes, for calibration and for the test")
    parser.add_argument("--samples", type=int, default=32, help="windows to calibrate on")
    parser.add_argument("--windows", type=int, default=32, help="windows of the test")
    parser.add_argument("--width", type=int, default=256)
    add_options(parser, batch_size=4)
    args = parser.parse_args(arguments)
    if not args.own and not (args.calibration and args.test):
        parser.error("give --calibration and --test, or --own")
    warnings.simplefilter("ignore")  # SiLU in a spiking network
    named = {"gguf_file": args.gguf} if args.gguf else {}
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, **named).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model, **named)
    if args.own:
        known, test = (own_windows(model, tokenizer, args.own, args.width, args.seed + i) for i in range(2))
    else:
        rows = windows(args.calibration, tokenizer, args.width)
        known = drawn(rows, args.samples, Random(args.seed).sample(range(len(rows)), len(rows)))
        rows = windows(args.test, tokenizer, args.width)
        test = drawn(rows, args.windows, range(0, len(rows), max(1, len(rows) // args.windows)))
    model.config.use_cache = False
    expected = perplexity(model.to(args.device), test, args.batch_size)
    model.cpu()  # where networks are quantized, as by the command line

    def batches() -> list[dict[str, Tensor]]:
        return [{"input_ids": x, "attention_mask": torch.ones_like(x)} for x in known.split(args.batch_size)]

    def judge(qann: Any, name: str) -> list[str]:
        found = perplexity(qann, test, args.batch_size)
        return [f"{found:.3f}", f"{found / expected:.3f}"]

    print(f"float: {expected:.3f} on {len(test)} windows of {args.width} tokens", flush=True)
    print_table(model, args, batches, ["perplexity", "over float"], judge)


if __name__ == "__main__":
    main()
