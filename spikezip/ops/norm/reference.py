"""LayerNorm over the last dimension, with its sums taken in integers."""

import torch
from torch import Tensor

from spikezip.ops import elementary, sums
from spikezip.ops.bits import exponent_above, power_of_two

LARGEST = 1 << 14  # channels: the squares of more might not fit into 63 bits


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm of a float32 or float64 tensor."""
    return normalise(x, *moments(x, eps), weight, bias)


def normalise(x: Tensor, mean: Tensor, deviation: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """What becomes of each value once the mean and the inverse deviation of its row are known.

    Example:
        >>> normalise(torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0]]), torch.tensor([[1.0]]), None, None)
        tensor([[-1.,  1.]])
    """
    y = (x - mean) * deviation
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def moments(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation of each row; no numbers where the row or its variance is not finite.

    Example:
        >>> moments(torch.tensor([[1.0, 3.0]]), 0.0)
        (tensor([[2.]]), tensor([[1.]]))
    """
    if x.dtype == torch.float64 or x.shape[-1] > LARGEST:
        parts = 2 if x.dtype == torch.float64 else 1
        wide = sums.mean(x, (-1,), keepdim=True, parts=parts)
        spread = sums.mean((x.double() - wide).square(), (-1,), keepdim=True, parts=parts) + eps
        return wide.to(x.dtype), _inverse_root(spread.to(x.dtype))
    largest = x.abs().amax(dim=-1, keepdim=True)
    shift = (24 - exponent_above(largest)).clamp(-100, 100)
    q = (x * power_of_two(shift, x.dtype)).to(torch.int64)  # cut off, at a 2^24th of the largest
    share = 1 / x.shape[-1]
    mean = q.sum(dim=-1, keepdim=True).double() * share
    variance = (q * q).sum(dim=-1, keepdim=True).double() * share - mean * mean
    unit = power_of_two(-shift, torch.float64)
    spread = variance.clamp(min=0.0) * unit * unit + eps
    mean = torch.where(largest.isfinite(), mean * unit, torch.nan)
    return mean.to(x.dtype), _inverse_root(spread.to(x.dtype))


def _inverse_root(spread: Tensor) -> Tensor:
    """One over the root. A variance that has overflowed would give zeros, which nobody would notice."""
    return torch.where(spread.isfinite(), 1 / elementary.root(spread), torch.nan)
