"""A tiny network with seven classes, its QANN, and labelled batches, for the tests of `measure`."""

import copy
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor

import spikezip
from spikezip.engines import SpikingNetwork
from spikezip.quant import QuantizedNetwork

CLASSES = 7


@cache
def networks() -> tuple[Any, QuantizedNetwork, SpikingNetwork]:
    """Float model, QANN, SNN."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
        num_labels=CLASSES,
        hidden_act="relu",
    )
    model = transformers.ViTForImageClassification(config).eval()
    with torch.no_grad():  # so that answers differ, and take their time
        for parameter in model.parameters():
            parameter.mul_(4)
    qann = spikezip.quantize(model, spikezip.QuantConfig(levels=8))
    spikezip.calibrate(qann, torch.randn(8, 3, 16, 16))
    return model, qann.eval(), spikezip.convert(qann)


@cache
def altered() -> QuantizedNetwork:
    """The QANN with a bias a little off: other codes for one of ten samples, with sites and scales as they were."""
    other = copy.deepcopy(networks()[1])
    with torch.no_grad():
        other.get_parameter("vit.embeddings.patch_embeddings.projection.bias").add_(0.0005)
    return other


def batches_with_differences() -> list[dict[str, Tensor]]:
    """Five batches; the spiking network is not `altered()` in the second and in the last."""
    first, second, third, other, fourth = batches(2, 3, 1, 2, 2)
    return [first, other, second, third, {key: torch.cat([fourth[key], other[key]]) for key in other}]


def batches(*sizes: int, seed: int = 1) -> list[dict[str, Tensor]]:
    """Noise, with the labels that the float model gives to two thirds of it."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for size in sizes:
        pixels = torch.randn(size, 3, 16, 16, generator=generator)
        with torch.no_grad():
            labels = networks()[0](pixels).logits.argmax(-1)
        wrong = torch.randint(0, 3, (size,), generator=generator) == 0
        labels = torch.where(wrong, torch.randint(0, CLASSES, (size,), generator=generator), labels)
        found.append({"pixel_values": pixels, "labels": labels})
    return found
