"""Softmax as a GPU kernel, and as a part of others: maximum and sum come out the same in any order."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from spikezip.ops.softmax.reference import units

TILE = 4096  # values that a program handles at once


@triton.jit
def exponentials(x, most):
    """`exp(x − most)`, with the largest value of each row in `most`; places that do not count hold minus infinity."""
    return tl.exp2((x - most) * 1.4426950408889634)


@triton.jit
def whole_sum(e, unit: tl.constexpr):
    """The sum of each row in whole units: of integers, which has no order."""
    # A float between 2^23 and 2^24 holds a whole number in its lowest bits: the sum rounds to it, without a conversion.
    whole = tl.fma(e, unit, 8388608.0).to(tl.int32, bitcast=True) - 1258291200  # 0x4B000000, the bits of 2^23
    return tl.sum(whole, axis=1)[:, None]


@triton.jit
def row_factor(total, unit: tl.constexpr):
    """What the exponentials of a row are multiplied with."""
    return tl.math.div_rn(unit, total.to(tl.float32))


@triton.jit
def _softmax_kernel(x_ptr, out_ptr, rows, columns, unit: tl.constexpr, tile: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)[:, None]
    column = tl.arange(0, block)[None, :]
    here, inside = row * columns + column, (row < rows) & (column < columns)
    x = tl.load(x_ptr + here, mask=inside, other=float("-inf"))
    e = exponentials(x, tl.max(x, axis=1)[:, None])
    tl.store(out_ptr + here, e * row_factor(whole_sum(e, unit), unit), mask=inside)


def softmax(x: Tensor) -> Tensor:
    """As `fast.softmax`, for a float32 tensor on a GPU (or anywhere, under Triton's interpreter)."""
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        columns = x.shape[-1]
        rows = x.numel() // columns
        block = triton.next_power_of_2(columns)
        tile = max(1, TILE // block)
        with torch.cuda.device_of(x):
            _softmax_kernel[(triton.cdiv(rows, tile),)](
                x, out, rows, columns, unit=units(columns), tile=tile, block=block, num_warps=8 if block > 256 else 4,
                enable_fp_fusion=False,
            )  # fmt: skip
    return out
