"""LayerNorm over the last dimension, with its sums taken in integers."""

import torch
from torch import Tensor

LARGEST = 1 << 14  # channels: the squares of more might not fit into 63 bits


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm of a float32 tensor.

    Example:
        >>> layer_norm(torch.tensor([[1.0, 3.0]]), torch.tensor([1.0, 2.0]), None, 0.0)
        tensor([[-1.,  2.]])
    """
    mean, deviation = moments(x, eps)
    y = (x - mean) * deviation
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def moments(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation of each row, in float32.

    Example:
        >>> moments(torch.tensor([[1.0, 3.0]]), 0.0)
        (tensor([[2.]]), tensor([[1.]]))
    """
    _, exponent = torch.frexp(x.abs().amax(dim=-1, keepdim=True))
    shift = (24 - exponent.double()).clamp(-100, 100)
    q = (x * 2.0 ** shift.to(x.dtype)).to(torch.int64)  # cut off, at a 2^24th of the largest
    share = 1 / x.shape[-1]
    mean = q.sum(dim=-1, keepdim=True).double() * share
    variance = (q * q).sum(dim=-1, keepdim=True).double() * share - mean * mean
    unit = 2.0**-shift
    spread = variance.clamp(min=0.0) * unit * unit + eps
    # On some CPUs torch's root of a float32 is off by one in the last place. That of a float64, off or not, rounds to
    # the right float32: no root of a float32 lies within a few float64 of the middle between two.
    root = spread.to(x.dtype).double().sqrt().to(x.dtype)
    return (mean * unit).to(x.dtype), 1 / root
