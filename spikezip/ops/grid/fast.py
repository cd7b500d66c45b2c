"""Integer products on the units that machines have. Each function equals its reference, or hands over to it."""

import functools
import time
from collections.abc import Callable
from functools import cache
from math import inf
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from spikezip.ops import kernels
from spikezip.ops.compiled import numba_is_here
from spikezip.ops.grid import reference

_F = TypeVar("_F", bound=Callable[..., Any])

# Kernels pay a fixed price per call; below this many rows the float product is faster.
_MIN_INT8_ROWS = 64
_TRIES = 4  # of each product, to see which is faster


@cache
def int8_products_pay() -> bool:
    """Whether int8 products on this CPU are exact, and faster than float ones: asked once, in a tenth of a second.

    Without VNNI, pairs of products are added in saturating 16 bits, or else libraries go through them one by one.
    """
    return _int8_products_are_exact() and _int8_products_are_faster()


def _int8_products_are_exact() -> bool:
    largest = torch.full((_MIN_INT8_ROWS, 64), 127, dtype=torch.int8)
    mixed = torch.tensor([127, -127], dtype=torch.int8).repeat(_MIN_INT8_ROWS, 32)
    return all(
        torch.equal(torch._int_mm(a, b.t()).long(), a.long() @ b.long().t())
        for a in (largest, mixed)
        for b in (largest, mixed, -largest)
    )


def _int8_products_are_faster() -> bool:
    """By the time that one core is at work: on a busy machine a product of several threads waits for their turns."""
    codes, weight = torch.ones(256, 256, dtype=torch.int8), torch.ones(256, 256, dtype=torch.int8)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        fastest = [inf, inf]
        for side, product in enumerate((torch._int_mm, lambda a, b: reference.linear(a, b.t(), torch.float32))):
            for _ in range(_TRIES):  # the first one warms up
                started = time.thread_time()
                product(codes, weight.t())
                fastest[side] = min(fastest[side], time.thread_time() - started)
    finally:
        torch.set_num_threads(threads)
    return fastest[0] < fastest[1]


def weight_grid(weight: Tensor, bits: int, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """As `reference.weight_grid`; the integers come in `dtype`, by default the weight's own."""
    if weight.dtype == torch.float32 and kernels.on_gpu(weight):
        from spikezip.ops.grid import triton  # only where it is used: importing the library must not need it

        return triton.weight_grid(weight.detach(), bits, dtype or torch.float32)
    codes, scale = reference.weight_grid(weight, bits)
    return codes.to(dtype or codes.dtype), scale


def without_autocast(function: _F) -> _F:
    """Autocast would round integers to bfloat16 before they are summed: inside these products it is off."""

    @functools.wraps(function)
    def exactly(first: Tensor, *args: Any) -> Any:
        if not torch.is_autocast_enabled(first.device.type):
            return function(first, *args)
        with torch.autocast(first.device.type, enabled=False):
            return function(first, *args)

    return cast(_F, exactly)


@without_autocast
def linear(codes: Tensor, weight: Tensor, dtype: torch.dtype, largest_code: int) -> Tensor:
    """As `reference.linear`; `weight` in int8 opens the int8 (CPU) and fp16 (CUDA) units.

    For int8 codes on the CPU sums may come as int32, where float32 would hold them too.
    """
    if weight.dtype == torch.bfloat16 and codes.dtype == torch.bfloat16 and dtype == torch.float32:
        # Training keeps codes and weights in bfloat16, which holds integers up to 256.
        total = torch.mm(codes.reshape(-1, codes.shape[-1]), weight.t(), out_dtype=torch.float32)
        return total.view(*codes.shape[:-1], weight.shape[0])
    if weight.dtype == torch.int8 and codes.dtype in (torch.float32, torch.int8):
        rows = codes.reshape(-1, codes.shape[-1])
        # Of a single column torch's kernel on the CPU makes nothing, and does not say so.
        fits = largest_code <= 127 and rows.shape[1] > 1 and rows.shape[1] * 128 * largest_code < 2**31
        if codes.device.type == "cpu" and fits and rows.shape[0] >= _MIN_INT8_ROWS and int8_products_pay():
            total = torch._int_mm(rows.to(torch.int8), weight.t())
            if codes.dtype != torch.int8 or dtype != torch.float32:
                total = total.to(dtype)
            return total.view(*codes.shape[:-1], weight.shape[0])
        if codes.device.type == "cuda" and largest_code <= 2048 and dtype == torch.float32:
            total = torch.mm(rows.half(), weight.half().t(), out_dtype=torch.float32)
            return total.view(*codes.shape[:-1], weight.shape[0])
    return reference.linear(codes, weight, dtype)


@without_autocast
def matmul(a: Tensor, b: Tensor, dtype: torch.dtype, largest_code: int) -> Tensor:
    """As `reference.matmul`; on CUDA with fp16 operands and float32 sums."""
    if a.device.type == "cuda" and largest_code <= 2048 and dtype == torch.float32 and a.dtype != torch.float64:
        low = torch.bfloat16 if a.dtype == torch.bfloat16 else torch.float16
        left, right = a.to(low).flatten(0, -3), b.to(low).flatten(0, -3)
        return torch.bmm(left, right, out_dtype=torch.float32).view(*a.shape[:-1], b.shape[-1])
    return reference.matmul(a, b, dtype)


# --- what follows a product: a kernel on the GPU, compiled loops or plain torch elsewhere, equal bit for bit


def scale_bias(total: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """What follows a product of integers: `total · scale + bias`, rounded after the product and after the sum.

    Sums may come as int32; they are below 2^24, so that float32 holds them. Scale and bias have one number for each
    channel.

    Example:
        >>> scale_bias(torch.tensor([[3.0, 4.0]]), torch.tensor([0.5, 0.25]), torch.tensor([1.0, 1.0]))
        tensor([[2.5000, 2.0000]])
    """
    reference.check_channels(total, scale, bias)
    if _on_gpu(total, scale, bias):
        from spikezip.ops.grid import triton  # only where it is used: importing the library must not need it

        return triton.scale_bias(total, scale, bias)
    if not total.is_floating_point() and total.device.type == "cpu" and scale.dtype == torch.float32:
        if total.dtype == torch.int32 and numba_is_here() and total.is_contiguous():
            from spikezip.ops.grid import compiled

            return compiled.scale_bias(total, scale, bias)
        total = total.to(scale.dtype).mul_(scale)
        return total if bias is None else total.add_(bias)
    scaled = total.mul(scale)
    return scaled if bias is None else scaled.add(bias)


def add_scaled(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """`x + codes · scale` for one scale, rounded after the product and after the sum.

    Example:
        >>> add_scaled(torch.tensor([1.0, 2.0]), torch.tensor([3, -4], dtype=torch.int8), torch.tensor(0.5))
        tensor([2.5000, 0.0000])
    """
    if codes.dtype == torch.int8 and x.dtype == torch.float32:
        if _on_gpu(x, scale):
            from spikezip.ops.grid import triton

            return triton.add_scaled(x, codes, scale)
        if x.device.type == "cpu" and numba_is_here() and x.is_contiguous() and codes.is_contiguous():
            from spikezip.ops.grid import compiled

            return compiled.add_scaled(x, codes, scale)
    return x + codes * scale


def scaled_gradient(grad: Tensor, scale: Tensor, dtype: torch.dtype, with_sum: bool) -> tuple[Tensor, Tensor | None]:
    """What a product's backward pass begins with: `grad · scale` in `dtype`, and the sum over the rows if wanted.

    The sum is the gradient of the bias; in which order it adds, is left to the device.

    Example:
        >>> scaled_gradient(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.5, 2.0]), torch.bfloat16, True)
        (tensor([[0.5000, 4.0000],
                [1.5000, 8.0000]], dtype=torch.bfloat16), tensor([4., 6.]))
    """
    if _on_gpu(grad, scale):
        from spikezip.ops.grid import triton

        return triton.scaled_gradient(grad, scale, dtype, with_sum)
    return (grad * scale).to(dtype), grad.sum(dim=0) if with_sum else None


def _on_gpu(*tensors: Tensor | None) -> bool:
    """Whether the kernels take these: float32 on a CUDA device, with Triton installed."""
    return all(t is None or t.dtype == torch.float32 for t in tensors) and kernels.on_gpu(*tensors)
