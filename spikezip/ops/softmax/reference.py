"""Softmax over the last dimension, with the sum taken in integers."""

import torch
from torch import Tensor

_LOG2_E = 1.4426950408889634


def units(length: int) -> float:
    """How many units of the sum make a one: 2^22, fewer where `length` ones would not stay below 2^31.

    Example:
        >>> units(197) == units(256) == 2.0**22, units(1000) == 2.0**20
        (True, True)
    """
    return 2.0 ** min(22, 30 - max(length - 1, 0).bit_length())


def softmax(x: Tensor) -> Tensor:
    """`exp(x − max) / sum`, the sum in whole units.

    Example:
        >>> softmax(torch.tensor([0.0, 0.0, float("-inf")]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    unit = units(x.shape[-1])
    e = torch.exp2((x - x.amax(dim=-1, keepdim=True)) * _LOG2_E)
    total = torch.round(e * unit).to(torch.int64).sum(dim=-1, keepdim=True)
    return e * (unit / total.to(x.dtype))
