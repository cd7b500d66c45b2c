"""Softmax over the last dimension: an exponential of our own, and a sum that has no order (README.md)."""

import torch
from torch import Tensor

from spikezip.ops import elementary
from spikezip.ops.bits import power_of_two

LOG2_E = 1.4426950216293335  # as a float32
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln 2; the first has 10 bits
POLYNOMIAL = (0.0013927684631198645, 0.008364380337297916, 0.04166654497385025, 0.1666657030582428, 0.5)
MAGIC = 12582912.0  # 1.5 · 2^23: added to a small float32 and taken away again, it rounds to the nearest integer
LOWEST = -87.0  # exponentials of less are zero: they would be no normal float32
UNIT = 2.0**22  # units of the sum that make a one; what is left of a value is counted in units of 2^-44


def softmax(x: Tensor) -> Tensor:
    """`exp(x − max) / sum` of each row.

    Example:
        >>> softmax(torch.tensor([0.0, 0.0, float("-inf")]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    e = exponentials(x, x.amax(dim=-1, keepdim=True))
    return e * row_factor(e)


def exponentials(x: Tensor, most: Tensor) -> Tensor:
    """`exp(x − most)`, for `most ≥ x`.

    Example:
        >>> exponentials(torch.tensor([1.0, 0.0]), torch.tensor(1.0))
        tensor([1.0000, 0.3679])
    """
    if x.dtype == torch.float64:
        return elementary.exp(x - most)
    d = x - most
    b = d - x
    low = (x - (d - b)) - (most + b)  # what rounding has taken from d
    k = (d * LOG2_E + MAGIC) - MAGIC
    r = ((d - k * LN2_HIGH) - k * LN2_LOW) + low
    q = torch.full_like(r, POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        q = q * r + coefficient
    e = ((r * r) * q + r) + 1.0
    e = e * power_of_two(k.clamp(-126, 0), x.dtype)
    return torch.where(d < LOWEST, 0.0, e)


def row_factor(e: Tensor) -> Tensor:
    """What the exponentials of a row are multiplied with: one over their sum, which is taken in whole units.

    Example:
        >>> row_factor(torch.tensor([1.0, 0.25]))
        tensor([0.8000])
    """
    unit = UNIT if e.dtype == torch.float32 else 2.0**26
    scaled = e * unit
    high = scaled.round()
    low = ((scaled - high) * unit).round()
    # Sums of integers below 2^53: float64 has them exactly, in any order.
    total = high.sum(-1, keepdim=True, dtype=torch.float64) + low.sum(-1, keepdim=True, dtype=torch.float64) / unit
    return torch.full_like(total, unit, dtype=e.dtype) / total.to(e.dtype)
