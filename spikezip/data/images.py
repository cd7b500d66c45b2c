"""A split of small images that fits into memory: one array."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spikezip.data.base import Split
from spikezip.errors import InputError

LARGE = 2**30  # bytes: what may lie on the GPU beside a network


class Images(Split):
    """Images as one uint8 tensor [N, C, H, W].

    Example:
        >>> split = Images(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
        >>> batch = split.__getitems__([3, 0])
        >>> list(batch["pixel_values"].shape), batch["labels"].tolist()
        ([2, 1, 2, 2], [1, 0])
    """

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.pixels, self.labels = pixels, labels

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Any]:
        chosen = torch.as_tensor(indices).to(self.pixels.device, non_blocking=True)
        return {"pixel_values": self.pixels[chosen], "labels": self.labels[chosen]}

    def moved(self, device: torch.device) -> "Images":
        """The split in the memory of a GPU, where batches are then gathered; a large one stays where it is.

        Example:
            >>> split = Images(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
            >>> split.moved(torch.device("cpu")).pixels.device
            device(type='cpu')
        """
        if self.pixels.numel() * self.pixels.element_size() > LARGE:
            return self
        return Images(self.pixels.to(device), self.labels.to(device))


def from_arrays(pixels: np.ndarray, labels: np.ndarray, classes: int, where: str | Path) -> Images:
    """A split from arrays that were read from `where`: uint8 [N, C, H, W], [N, H, W, C] or [N, H, W], and numbers.

    Example:
        >>> len(from_arrays(np.zeros((3, 8, 8), np.uint8), np.array([0, 2, 1]), 3, "my.npz"))
        3
    """
    labels = labels.reshape(-1)
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
        raise InputError(
            f"{where}: images are uint8 and [N, C, H, W], [N, H, W, C] or [N, H, W], "
            f"not {pixels.dtype} {list(pixels.shape)}"
        )
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    elif pixels.shape[1] not in (1, 3):
        if pixels.shape[3] not in (1, 3):
            raise InputError(f"{where}: images of shape {list(pixels.shape)} have neither 1 nor 3 channels")
        pixels = pixels.transpose(0, 3, 1, 2)
    if not len(pixels):
        raise InputError(f"{where} holds no images")
    if len(labels) != len(pixels):
        raise InputError(f"{where} holds {len(pixels)} images, but {len(labels)} labels")
    check_labels(labels, classes, where)
    # A copy: what was read may be a read-only view of the file's bytes, which torch does not take.
    return Images(torch.from_numpy(np.array(pixels, order="C")), torch.from_numpy(labels.astype(np.int64)))


def check_labels(labels: np.ndarray, classes: int, where: str | Path) -> None:
    """Labels are whole numbers below `classes`; the first that is not is named.

    Example:
        >>> check_labels(np.array([0, 7]), 3, "my.npz")
        Traceback (most recent call last):
        spikezip.errors.InputError: my.npz, sample 1: the label 7 is not in 0 … 2
    """
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"{where}: labels are whole numbers, not {labels.dtype}")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise InputError(f"{where}, sample {wrong[0]}: the label {labels[wrong[0]]} is not in 0 … {classes - 1}")
