"""Softmax as a GPU kernel, and as a part of others: maximum and sum come out the same in any order."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from spikezip.ops.rounding.triton import exact_fma

TILE = 4096  # values that a program handles at once


@triton.jit
def _reduced(x):
    """`x = k · ln 2 + r`: a float whose lowest bits are k, and r. `k · 0.693359375` needs no rounding."""
    shifted = x * 1.4426950216293335 + 12582912.0
    k = shifted - 12582912.0
    return shifted.to(tl.int32, bitcast=True), exact_fma(k, -0.693359375, x) - k * -2.12194440e-4


@triton.jit
def _near_one(r):
    """`exp(r)` for `|r| ≤ ln 2 / 2`."""
    q = 0.008312494494020939 * r + 0.04189039766788483
    q = q * r + 0.16667115688323975
    q = q * r + 0.499992311000824
    return ((r * r) * q + r) + 1.0


@triton.jit
def of_rows(most):
    """What the exponentials of a row have in common, from its largest value: by how much they are moved, the lowest
    value that counts, and the bits of the largest exponential's power."""
    shift = tl.where(tl.abs(most) < 256.0, 0.0, most)
    k, r = _reduced(most - shift)
    # 0x4B400000 are the bits of 1.5 · 2^23; they are gone once these are moved up, in `exponentials`, too.
    lowest = ((k - 1262485504).to(tl.float32) - 152.0) * 0.6931471824645996
    bits = tl.math.div_rn(4294963200.0, _near_one(r)).to(tl.int32, bitcast=True) - (k << 23)
    return shift, lowest, bits


@triton.jit
def exponentials(x, shift, lowest, bits):
    """`exp(x − max)` in whole units; places that do not count hold minus infinity.

    These become so small that no probability is left of them. Plain numbers become float32 here. Kernels are compiled
    without fused operations, but for those that are exact.
    """
    k, r = _reduced(tl.maximum(x - shift, lowest, propagate_nan=tl.PropagateNan.ALL))
    return _near_one(r) * ((k << 23) + bits).to(tl.float32, bitcast=True)


@triton.jit
def sums(e):
    """The sum of each row in whole units, cut to 32 bits; and nearly. Of integers, which have no order."""
    whole = (e + 0.5).to(tl.uint32).to(tl.int32, bitcast=True)
    return tl.sum(whole, axis=1)[:, None], tl.sum(e, axis=1)[:, None]


@triton.jit
def whole_sum(low, nearly):
    """The whole sum of up to 256 values in float64: what it is nearly says which one has these lowest bits."""
    low, nearly = low.to(tl.uint32, bitcast=True).to(tl.float64), nearly.to(tl.float64)
    return low + 4294967296.0 * tl.floor((nearly - low) * 2.3283064365386963e-10 + 0.5)


@triton.jit
def row_factor(total, most):
    """What the exponentials of a row are multiplied with; NaN for a row without a finite largest value."""
    return tl.math.div_rn(1.0, total.to(tl.float32)) + (most - most)


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
    shift, lowest, bits = of_rows(most)
    total = tl.zeros((tile, 1), dtype=tl.float64)
    for j in range(pieces):
        column = j * piece + tl.arange(0, piece)[None, :]
        x = tl.load(x_ptr + row * columns + column, mask=(row < rows) & (column < columns), other=float("-inf"))
        low, nearly = sums(exponentials(x, shift, lowest, bits))
        total += whole_sum(low, nearly)  # NaN once a value is none
    factor = row_factor(total, most)
    for j in range(pieces):
        column = j * piece + tl.arange(0, piece)[None, :]
        here, inside = row * columns + column, (row < rows) & (column < columns)
        x = tl.load(x_ptr + here, mask=inside, other=float("-inf"))
        tl.store(out_ptr + here, exponentials(x, shift, lowest, bits) * factor, mask=inside)


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
