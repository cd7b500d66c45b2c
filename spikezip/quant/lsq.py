"""Learned step size quantization (LSQ): the quantizer that trains, rounding by the one rule of `ops.rounding`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spikezip.ops import grid, rounding
from spikezip.ops import lsq as ops


class _LSQ(torch.autograd.Function):
    """Forward `s·code(u)`, and the codes. Backward: straight through inside the range; for the scale as in LSQ."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, scale: Tensor, lo: int, hi: int) -> tuple[Tensor, Tensor]:
        # Autocast may hand over half precision; what is decided here is decided in float32, or float64.
        u = u.contiguous()
        step = rounding.representable(scale)
        values, codes = ops.quantize(u, step, lo, hi, _codes_dtype(u, lo, hi))
        ctx.save_for_backward(u, step)
        ctx.range = lo, hi
        ctx.mark_non_differentiable(codes)
        ctx.set_materialize_grads(False)  # codes have no gradient: nobody needs zeros of their size
        return values, codes

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, Tensor | None, None, None]:
        if grad is None:
            return None, None, None, None
        u, step = ctx.saved_tensors
        grad_u, grad_scale = ops.backward(grad, u, step, *ctx.range)
        return grad_u, grad_scale.view_as(step).to(step.dtype), None, None


class _Codes(_LSQ):
    """As `_LSQ`, for a reader that takes codes alone: in place of values something that carries their gradient."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, scale: Tensor, lo: int, hi: int) -> tuple[Tensor, Tensor]:
        u = u.contiguous()
        step = rounding.representable(scale)
        codes = ops.forward(u, step, lo, hi, _codes_dtype(u, lo, hi))
        ctx.save_for_backward(u, step)
        ctx.range = lo, hi
        ctx.mark_non_differentiable(codes)
        ctx.set_materialize_grads(False)
        return codes.new_empty(()).expand(u.shape), codes


def _codes_dtype(u: Tensor, lo: int, hi: int) -> torch.dtype:
    # On a GPU the tensor cores take bfloat16, which holds integers up to 256.
    if u.dtype == torch.float64:
        return torch.float64
    return torch.bfloat16 if u.is_cuda and max(-lo, hi) <= 256 else torch.float32


def quantize(u: Tensor, scale: Tensor, lo: int, hi: int) -> tuple[Tensor, Tensor]:
    """`lsq`, with the codes beside the values.

    Example:
        >>> quantize(torch.tensor([0.3, 5.0]), torch.tensor(0.5), -2, 1)
        (tensor([0.5000, 0.5000]), tensor([1., 1.]))
    """
    return _by_memory(_LSQ.apply, u, scale, lo, hi)


def carried_codes(u: Tensor, scale: Tensor, lo: int, hi: int) -> tuple[Tensor, Tensor]:
    """The codes, and what takes the gradient for their values: a tensor of the codes' shape and dtype, without content.

    Example:
        >>> u, s = torch.tensor([0.3, 5.0], requires_grad=True), torch.tensor(0.5, requires_grad=True)
        >>> carrier, codes = carried_codes(u, s, -2, 1)
        >>> carrier.backward(torch.ones(2))
        >>> codes, u.grad, round(float(s.grad), 4)
        (tensor([1., 1.]), tensor([1., 0.]), 0.9899)
    """
    return _by_memory(_Codes.apply, u, scale, lo, hi)


def _by_memory(apply: Callable[..., Any], u: Tensor, scale: Tensor, lo: int, hi: int) -> tuple[Tensor, Tensor]:
    """Quantize the elements of `u` in the order in which they lie in memory, where one scale is for all.

    Heads of attention are a transposed view: so they are not copied, and their codes lie as attention reads them.
    """
    strides = u.stride()
    order = sorted(range(u.ndim), key=lambda d: -strides[d])
    if scale.numel() > 1 or u.is_contiguous() or not u.permute(order).is_contiguous():
        values, codes = apply(u, scale, lo, hi)
        return values, codes
    back = [order.index(d) for d in range(u.ndim)]
    values, codes = apply(u.permute(order), scale, lo, hi)
    return values.permute(back), codes.permute(back)


def lsq(u: Tensor, scale: Tensor, lo: int, hi: int) -> Tensor:
    """Quantize `u` with a learned scale: values in, values out, gradients to both.

    The scale has one element, or one per channel (last dimension). Its gradient is divided by `sqrt(hi · numel)`, so
    that it is of the size of a weight's.

    Example:
        >>> u, s = torch.tensor([0.3, 5.0], requires_grad=True), torch.tensor(0.5, requires_grad=True)
        >>> lsq(u, s, -2, 1).sum().backward()
        >>> u.grad, round(float(s.grad), 4)
        (tensor([1., 0.]), 0.9899)
    """
    return quantize(u, scale, lo, hi)[0]


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
