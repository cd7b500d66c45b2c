"""The networks that `run.py` measures: of random weights in the shapes of the field, or a trained one from a folder."""

import argparse
import json
import re
import warnings
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

import spikezip
from spikezip.data import Pixels
from spikezip.data.images import from_arrays
from spikezip.errors import InputError

SIZES = {"nano": (32, 2, 2), "tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12)}  # width, depth, heads


def build(args: argparse.Namespace) -> tuple[Any, dict[str, Tensor], Tensor | None]:
    """A converted network, a batch, and the labels if there are any."""
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    if args.network is not None:
        return trained(args)
    width, depth, heads = SIZES[args.size]
    shape: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads}
    shape |= {"intermediate_size": 4 * width, "hidden_act": "relu"}
    if args.model == "vit":
        config: Any = transformers.ViTConfig(**shape, image_size=args.image, num_labels=1000)
        model: Any = transformers.ViTForImageClassification(config).eval()
        batch = {"pixel_values": torch.randn(args.batch, 3, args.image, args.image)}
    else:
        positions = max(514, args.tokens + 2)  # RoBERTa counts them from 2
        config = transformers.RobertaConfig(**shape, vocab_size=50265, max_position_embeddings=positions, num_labels=2)
        model = transformers.RobertaForSequenceClassification(config).eval()
        tokens = torch.randint(3, config.vocab_size, (args.batch, args.tokens))
        batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    sharpen = re.compile(r"(q_proj|k_proj|query|key)\.weight$")  # attention takes time to settle then, as a trained one
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if sharpen.search(name):
                weight.mul_(8)
    batch = {name: values.to(args.device) for name, values in batch.items()}
    qann = spikezip.quantize(model, spikezip.QuantConfig(levels=args.levels)).to(args.device)
    few = {name: values[:2] for name, values in batch.items()}
    return spikezip.convert(spikezip.calibrate(qann, few, "quick")), batch, None


def trained(args: argparse.Namespace) -> tuple[Any, dict[str, Tensor], Tensor | None]:
    """The network of a folder and the first images of a file, made ready as the folder says."""
    model = spikezip.load(args.network)
    snn = model if getattr(model, "kind", None) == "snn" else spikezip.convert(model)
    if snn.main_input_name != "pixel_values":
        raise InputError(f"{args.network} takes {snn.main_input_name}; --network is for networks that take images")
    with np.load(args.data, allow_pickle=False) as arrays:
        x, y = ("x_test", "y_test") if "x_test" in arrays else ("x", "y")
        if x not in arrays:
            raise InputError(f"{args.data} needs an array 'x_test' or 'x'; it holds {', '.join(arrays) or 'none'}")
        labelled = y in arrays
        labels = arrays[y] if labelled else np.zeros(len(arrays[x]), np.int64)
        split = from_arrays(arrays[x], labels, snn.config.num_labels, args.data)
    if len(split.pixels) < args.batch:
        raise InputError(f"{args.data} holds {len(split.pixels)} images; --batch {args.batch} asks for more")
    described = json.loads((args.network / "preprocessor_config.json").read_text(encoding="utf-8"))
    pixels = Pixels.from_json(described)(split.pixels[: args.batch])
    return snn.to(args.device), {"pixel_values": pixels.to(args.device)}, split.labels if labelled else None


def title(args: argparse.Namespace) -> str:
    if args.network is not None:
        what = args.network.resolve().name
    elif args.model == "vit":
        what = f"ViT-{args.size}, {args.image} px, {args.levels} levels"
    else:
        what = f"RoBERTa-{args.size} with ReLU, {args.tokens} tokens, {args.levels} levels"
    return f"{what}, T = {args.steps}, batch {args.batch}"
