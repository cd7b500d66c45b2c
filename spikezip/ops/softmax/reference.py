"""Softmax over the last dimension: an exponential of our own, and a sum that has no order (README.md)."""

import torch
from torch import Tensor

from spikezip.ops import elementary
from spikezip.ops.bits import power_of_two

LOG2_E, LN2 = 1.4426950216293335, 0.6931471824645996  # as float32
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln 2; the first has 10 bits
POLYNOMIAL = (0.008312494494020939, 0.04189039766788483, 0.16667115688323975, 0.499992311000824)
MAGIC = 12582912.0  # 1.5 · 2^23: added to a small float32 and taken away again, it rounds to the nearest integer
LARGE = 256.0  # rows whose largest value is beyond are moved to zero, which loses nothing there
LOWEST = -152  # powers of two below the largest value: from there on exponentials are zero
UNITS = 4294963200.0  # whole units of the largest exponential: as many as 32 bits hold, but for a margin


def softmax(x: Tensor) -> Tensor:
    """`exp(x − max) / sum` of each row.

    Example:
        >>> softmax(torch.tensor([0.0, 0.0, float("-inf")]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    most = x.amax(dim=-1, keepdim=True)
    e = exponentials(x, most) if x.dtype == torch.float32 else elementary.exp(x - most)
    return e * row_factor(e)


def exponentials(x: Tensor, most: Tensor) -> Tensor:
    """`exp(x − most)` of float32, in whole units of the largest: `UNITS` of them are a one.

    Example:
        >>> exponentials(torch.tensor([1.0, 0.0]), torch.tensor([1.0])) / UNITS
        tensor([1.0000, 0.3679])
    """
    shift = torch.where(most.abs() < LARGE, 0.0, most)
    k_most, r_most = _reduced(most - shift)
    scale = torch.full_like(most, UNITS) / _near_one(r_most)
    k, r = _reduced(torch.maximum(x - shift, (k_most + LOWEST) * LN2))
    power = (scale.double() * power_of_two((k - k_most).clamp(LOWEST, 0), torch.float64)).to(x.dtype)  # exact
    return torch.where(k - k_most <= LOWEST, 0.0, _near_one(r) * power)


def _reduced(x: Tensor) -> tuple[Tensor, Tensor]:
    """`k` and `r` with `x = k · ln 2 + r` and `|r| ≤ ln 2 / 2`."""
    k = (x * LOG2_E + MAGIC) - MAGIC
    return k, (x - k * LN2_HIGH) - k * LN2_LOW


def _near_one(r: Tensor) -> Tensor:
    """`exp(r)` for `|r| ≤ ln 2 / 2`."""
    q = torch.full_like(r, POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        q = q * r + coefficient
    return ((r * r) * q + r) + 1.0


def row_factor(e: Tensor) -> Tensor:
    """What the exponentials of a row are multiplied with: one over their sum, which is taken in whole units.

    Example:
        >>> row_factor(torch.tensor([1.0, 0.25], dtype=torch.float64))
        tensor([0.8000], dtype=torch.float64)
    """
    if e.dtype == torch.float32:
        # Sums of integers below 2^53: float64 has them exactly, in any order.
        total = (e + 0.5).floor().sum(-1, keepdim=True, dtype=torch.float64)
        return torch.ones_like(total, dtype=e.dtype) / total.to(e.dtype)
    high = (e * 2.0**26).round()
    low = ((e * 2.0**26 - high) * 2.0**26).round()
    total = high.sum(-1, keepdim=True) + low.sum(-1, keepdim=True) * 2.0**-26
    return torch.full_like(total, 2.0**26) / total
