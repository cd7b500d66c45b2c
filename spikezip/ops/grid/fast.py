"""Integer products on the units that machines have. Each function equals its reference, or hands over to it."""

from functools import cache

import torch
from torch import Tensor

from spikezip.ops.grid import reference

# Kernels pay a fixed price per call; below this many rows the float product is faster.
_MIN_INT8_ROWS = 64


@cache
def int8_products_are_exact() -> bool:
    """Whether int8 products on this CPU are integers: without VNNI pairs of them are added in saturating 16 bits.

    Example:
        >>> int8_products_are_exact() in (True, False)
        True
    """
    largest = torch.full((_MIN_INT8_ROWS, 64), 127, dtype=torch.int8)
    mixed = torch.tensor([127, -127], dtype=torch.int8).repeat(_MIN_INT8_ROWS, 32)
    return all(
        torch.equal(torch._int_mm(a, b.t()).long(), a.long() @ b.long().t())
        for a in (largest, mixed)
        for b in (largest, mixed, -largest)
    )


def linear(codes: Tensor, weight: Tensor, dtype: torch.dtype, largest_code: int) -> Tensor:
    """As `reference.linear`; `weight` in int8 opens the int8 (CPU) and fp16 (CUDA) units.

    Example:
        >>> linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[3, 4]], dtype=torch.int8), torch.float32, 2)
        tensor([[11.]])
    """
    if weight.dtype == torch.int8 and codes.dtype == torch.float32:
        rows = codes.reshape(-1, codes.shape[-1])
        fits = largest_code <= 127 and rows.shape[1] * 128 * largest_code < 2**31
        if codes.device.type == "cpu" and fits and rows.shape[0] >= _MIN_INT8_ROWS and int8_products_are_exact():
            total = torch._int_mm(rows.to(torch.int8), weight.t()).to(dtype)
            return total.view(*codes.shape[:-1], weight.shape[0])
        if codes.device.type == "cuda" and largest_code <= 2048 and dtype == torch.float32:
            total = torch.mm(rows.half(), weight.half().t(), out_dtype=torch.float32)
            return total.view(*codes.shape[:-1], weight.shape[0])
    return reference.linear(codes, weight, dtype)


def matmul(a: Tensor, b: Tensor, dtype: torch.dtype, largest_code: int) -> Tensor:
    """As `reference.matmul`; on CUDA with fp16 operands and float32 sums.

    Example:
        >>> matmul(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]), torch.float32, 4)
        tensor([[11.]])
    """
    if a.device.type == "cuda" and largest_code <= 2048 and dtype == torch.float32 and a.dtype == torch.float32:
        left, right = a.half().flatten(0, -3), b.half().flatten(0, -3)
        return torch.bmm(left, right, out_dtype=torch.float32).view(*a.shape[:-1], b.shape[-1])
    return reference.matmul(a, b, dtype)
