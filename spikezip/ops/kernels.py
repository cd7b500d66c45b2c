"""Where GPU kernels run: the one place that decides it."""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


@cache
def triton_is_here() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def on_gpu(*tensors: Tensor | None) -> bool:
    """Whether kernels take these tensors: all that are given lie on a GPU, and Triton is installed.

    Example:
        >>> on_gpu(torch.zeros(2), None)
        False
    """
    return all(t is None or t.is_cuda for t in tensors) and triton_is_here()


def moves_tiles(device: torch.device) -> bool:
    """Whether a GPU moves whole tiles between its memories (Hopper and later): the largest kernels are built on that.

    Example:
        >>> moves_tiles(torch.device("cpu"))
        False
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
