"""What the package ships: a quantized ViT trained on Fashion-MNIST, and 1,000 of its test images."""

from importlib.resources import as_file, files
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spikezip.models.saved_config import load_pretrained

CLASSES = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
MEAN, STD = 0.2860, 0.3530  # of the training images, as published with the data set


def normalise(images: Tensor) -> Tensor:
    """Bytes `[B, 1, 28, 28]` as the network takes them.

    Example:
        >>> normalise(torch.zeros(1, 1, 1, 1, dtype=torch.uint8))
        tensor([[[[-0.8102]]]])
    """
    return (images.float() / 255 - MEAN) / STD


def load_qann() -> Any:
    """The shipped quantized network, a `PreTrainedModel`.

    Example:
        >>> load_qann().config.hidden_size
        128
    """
    with as_file(files("spikezip.demo") / "data" / "qann") as folder:
        return load_pretrained(folder)


def load_images() -> tuple[Tensor, Tensor]:
    """The shipped test images `[1000, 1, 28, 28]`, as bytes, and their classes.

    Example:
        >>> images, labels = load_images()
        >>> images.shape, labels.shape
        (torch.Size([1000, 1, 28, 28]), torch.Size([1000]))
    """
    with as_file(files("spikezip.demo") / "data" / "images.npz") as path, np.load(path) as data:
        return torch.from_numpy(data["x"]), torch.from_numpy(data["y"].astype(np.int64))
