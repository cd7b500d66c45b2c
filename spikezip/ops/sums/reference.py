"""Sums of floats, taken as sums of integers: those have no order."""

import torch
from torch import Tensor

from spikezip.ops.bits import exponent_above, power_of_two

BITS = 40  # of the largest value that are kept; 2^22 such values stay below 2^63, and 2^12 below 2^53
HALF, DEPTH = 20, 1 << 12  # bits of each half of an operand: sums of 2^12 products of halves stay below 2^53
_EXPONENTS = 900  # the largest exponent of a unit


def on_integers(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Values as whole numbers in float64, and their unit: a 2^-40 of the largest value along `dims`, rounded up.

    What is not finite stays as it is.

    Example:
        >>> whole, unit = on_integers(torch.tensor([1.0, 0.25]), (0,))
        >>> whole * unit
        tensor([1.0000, 0.2500], dtype=torch.float64)
    """
    wide = x.detach().to(torch.float64)
    if not wide.numel():
        return wide, wide.new_ones([1] * wide.ndim)
    exponent = exponent_above(wide.abs().amax(dims, keepdim=True)).clamp(-_EXPONENTS, _EXPONENTS)
    whole = wide * power_of_two(BITS - exponent, torch.float64)
    return torch.where(wide.isfinite(), whole.round(), wide), power_of_two(exponent - BITS, torch.float64)


def total(x: Tensor, dims: tuple[int, ...], keepdim: bool = False, parts: int = 1) -> Tensor:
    """The sum along `dims`, in float64. With two parts, what 40 bits leave of a value is summed as well.

    Example:
        >>> total(torch.tensor([[0.5, 0.25, -1.0]]), (1,))
        tensor([-0.2500], dtype=torch.float64)
    """
    whole, unit = on_integers(x, dims)
    if not whole.numel():
        return whole.sum(dims, keepdim=keepdim)
    finite = whole.isfinite()
    summed = torch.where(finite, whole, 0).to(torch.int64).sum(dims, keepdim=True).to(torch.float64) * unit
    if parts > 1:
        rest = torch.where(finite, x.detach() - whole * unit, 0)  # exact
        summed = summed + total(rest, dims, keepdim=True)
    summed = summed + torch.where(finite, 0, whole).sum(dims, keepdim=True)  # infinite, or no number
    return summed if keepdim else summed.squeeze(dims)


def running_total(x: Tensor, dim: int) -> Tensor:
    """The sums of all values up to each one, in float64.

    Example:
        >>> running_total(torch.tensor([1.0, 2.0, 3.0]), 0)
        tensor([1., 3., 6.], dtype=torch.float64)
    """
    whole, unit = on_integers(x, (dim,))
    finite = whole.isfinite()
    summed = torch.where(finite, whole, 0).to(torch.int64).cumsum(dim).to(torch.float64) * unit
    return summed + torch.where(finite, 0, whole).cumsum(dim)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product of floats, in float64. Operands are seen with 40 bits of the largest in their row or column.

    Example:
        >>> matmul(torch.tensor([[0.5, 2.0]]), torch.tensor([[1.0], [0.25]]))
        tensor([[1.]], dtype=torch.float64)
    """
    (left, left_unit), (right, right_unit) = on_integers(a, (-1,)), on_integers(b, (-2,))
    total = torch.zeros((), dtype=torch.float64, device=a.device)
    for x, y in zip(left.split(DEPTH, -1), right.split(DEPTH, -2), strict=True):
        (high, low), (above, below) = _halves(x), _halves(y)
        total = total + (((high @ above) * 2.0**HALF + (high @ below + low @ above)) * 2.0**HALF + low @ below)
    return total * left_unit * right_unit


def _halves(whole: Tensor) -> tuple[Tensor, Tensor]:
    high = (whole * 2.0**-HALF).floor()
    return high, whole - high * 2.0**HALF
