"""Learned step size quantization (LSQ): the quantizer that trains, rounding by the one rule of `ops.rounding`."""

from typing import Any

import torch
from torch import Tensor

from spikezip.ops import grid, rounding


class _LSQ(torch.autograd.Function):
    """Forward `s·code(u)`. Backward: straight through inside the range; the scale's gradient as in LSQ."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, scale: Tensor, lo: int, hi: int) -> Tensor:
        scale = rounding.representable(scale)
        codes = rounding.code(u, scale, lo, hi)
        ctx.save_for_backward(u, scale)
        ctx.range = lo, hi
        return codes * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        u, scale = ctx.saved_tensors
        lo, hi = ctx.range
        quotient = u / scale
        inside = (quotient >= lo) & (quotient <= hi)
        slope = torch.where(inside, rounding.code(u, scale, lo, hi) - quotient, quotient.clamp(lo, hi))
        share = 1.0 / (hi * u.numel()) ** 0.5
        return grad * inside, (grad * slope).sum().mul(share).view_as(scale), None, None


def lsq(u: Tensor, scale: Tensor, lo: int, hi: int) -> Tensor:
    """Quantize `u` with a learned scale: values in, values out, gradients to both.

    The scale's gradient is divided by `sqrt(hi · numel)`, so that it is of the size of a weight's.

    Example:
        >>> u, s = torch.tensor([0.3, 5.0], requires_grad=True), torch.tensor(0.5, requires_grad=True)
        >>> lsq(u, s, -2, 1).sum().backward()
        >>> u.grad, round(float(s.grad), 4)
        (tensor([1., 0.]), 0.9899)
    """
    result: Tensor = _LSQ.apply(u, scale, lo, hi)
    return result


def initial_scale(u: Tensor, hi: int) -> Tensor:
    """The scale LSQ starts from: `2·mean(|u|)/sqrt(hi)`; one over `hi` if there is no signal.

    Example:
        >>> initial_scale(torch.tensor([1.0, -3.0]), hi=4)
        tensor(2.)
    """
    scale = 2 * u.detach().abs().mean() / hi**0.5
    return torch.where(scale > 0, scale, torch.full_like(scale, 1 / hi))


class _GridWeight(torch.autograd.Function):
    """Forward: the weight on its integer grid, as floats. Backward: straight through."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bits: int) -> Tensor:
        codes, scale = grid.weight_grid(weight, bits)
        return codes * scale.view(-1, *[1] * (weight.ndim - 1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def on_grid(weight: Tensor, bits: int | None) -> Tensor:
    """The weight a training step sees: on its grid of `bits` bits, with gradients straight through.

    Example:
        >>> on_grid(torch.tensor([[1.27, 0.004]]), 8)
        tensor([[1.2700, 0.0000]])
    """
    if bits is None:
        return weight
    result: Tensor = _GridWeight.apply(weight, bits)
    return result
