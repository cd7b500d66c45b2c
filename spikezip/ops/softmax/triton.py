"""Softmax as a GPU kernel, and as a part of others: maximum and sum come out the same in any order."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from spikezip.ops.rounding.triton import exact_fma

TILE = 4096  # values that a program handles at once


@triton.jit
def exponentials(x, most):
    """`exp(x − most)`, with the largest value of each row in `most`; places that do not count hold minus infinity.

    Plain numbers become float32 here. Kernels are compiled without fused operations, but for those that are exact.
    """
    d = x - most
    # What rounding has taken from d: of x and −most, the smaller number is the one that is larger without its sign.
    low = tl.maximum(x, -most) - (d - tl.minimum(x, -most))
    shifted = d * 1.4426950408889634 + 12582912.0  # the lowest bits of such a float are a whole number
    k = shifted - 12582912.0
    r = (exact_fma(k, -0.693359375, d) - k * -2.12194440e-4) + low
    q = 0.0013927684631198645 * r + 0.008364380337297916
    q = q * r + 0.04166654497385025
    q = q * r + 0.1666657030582428
    q = q * r + 0.5
    e = ((r * r) * q + r) + 1.0
    power = ((shifted.to(tl.int32, bitcast=True) << 23) + 1065353216).to(tl.float32, bitcast=True)  # 2^k
    return tl.where(d < -87.0, 0.0, e * power)


@triton.jit
def whole_sums(e):
    """The sums of each row in whole units, 2^-22 and 2^-44 of one: of integers, which has no order.

    They fit into 32 bits for up to 256 values.
    """
    # A float between 2^23 and 2^24 holds a whole number in its lowest bits: the sum rounds to it, without a conversion.
    high = exact_fma(e, 4194304.0, 12582912.0)
    low = exact_fma(exact_fma(e, 4194304.0, 12582912.0 - high), 4194304.0, 12582912.0)
    # Those bits are 0x4B400000 more than the number. Sums wrap around, and come out right once all that is taken off.
    more: tl.constexpr = (e.shape[1] * 1262485504 + 2147483648) % 4294967296 - 2147483648
    high, low = high.to(tl.int32, bitcast=True), low.to(tl.int32, bitcast=True)
    return tl.sum(high, axis=1)[:, None] - more, tl.sum(low, axis=1)[:, None] - more


@triton.jit
def row_factor(high, low):
    """What the exponentials of a row are multiplied with."""
    total = high.to(tl.float64) + low.to(tl.float64) * 2.384185791015625e-07  # 2^-22
    return tl.math.div_rn(4194304.0, total.to(tl.float32))


@triton.jit
def _softmax_kernel(
    x_ptr, out_ptr, rows, columns, pieces: tl.constexpr, tile: tl.constexpr, piece: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)[:, None]
    most = tl.full((tile, 1), float("-inf"), dtype=tl.float32)
    for j in range(pieces):
        column = j * piece + tl.arange(0, piece)[None, :]
        x = tl.load(x_ptr + row * columns + column, mask=(row < rows) & (column < columns), other=float("-inf"))
        most = tl.maximum(most, tl.max(x, axis=1)[:, None])
    high = tl.zeros((tile, 1), dtype=tl.int64)
    low = tl.zeros((tile, 1), dtype=tl.int64)
    wrong = tl.zeros((tile, 1), dtype=tl.float32)  # NaN once a value is none: integers cannot say it
    for j in range(pieces):
        column = j * piece + tl.arange(0, piece)[None, :]
        x = tl.load(x_ptr + row * columns + column, mask=(row < rows) & (column < columns), other=float("-inf"))
        e = exponentials(x, most)
        some_high, some_low = whole_sums(e)
        high += some_high
        low += some_low
        wrong += tl.sum(tl.where(e == e, 0.0, e), axis=1)[:, None]
    factor = row_factor(high, low) + wrong
    for j in range(pieces):
        column = j * piece + tl.arange(0, piece)[None, :]
        here, inside = row * columns + column, (row < rows) & (column < columns)
        x = tl.load(x_ptr + here, mask=inside, other=float("-inf"))
        tl.store(out_ptr + here, exponentials(x, most) * factor, mask=inside)


def softmax(x: Tensor) -> Tensor:
    """As `fast.softmax`, for a float32 tensor on a GPU (or anywhere, under Triton's interpreter)."""
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        columns = x.shape[-1]
        rows = x.numel() // columns
        piece = min(triton.next_power_of_2(columns), 256)
        tile = max(1, TILE // triton.next_power_of_2(columns))
        with torch.cuda.device_of(x):
            _softmax_kernel[(triton.cdiv(rows, tile),)](
                x, out, rows, columns, pieces=triton.cdiv(columns, piece), tile=tile, piece=piece, num_warps=4,
                enable_fp_fusion=False,
            )  # fmt: skip
    return out
