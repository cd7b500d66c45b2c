"""LSQ as GPU kernels: one pass over the data forward, one backward, and a small one that ends the scale's sum.

Equal to the reference bit for bit. The code is decided in float32 as the reference does in float64
(`ops/rounding/triton.py`), and the gradient's quotient is divided as IEEE asks.
The scale's gradient adds exact products in float64, in the order that the reference writes down: tile after tile, then
neighbours within the tile, without atomics. Fused multiply-adds are off, though none of these sums would feel one.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from spikezip.ops.lsq import reference
from spikezip.ops.lsq.reference import CHANNEL_TILE, CHANNEL_TILES, TILE, TILES
from spikezip.ops.rounding.triton import code_of_unit, unit

# Channels handled together where the scale is per channel.
COLUMNS = 128


@triton.jit
def _code_of(u, scale, lo, hi):
    """The rounding rule; NaN stays NaN, as `clamp` has it in torch."""
    part, first, second = unit(scale)
    return tl.where(u == u, code_of_unit(u * first * second, part, lo, hi), u)


@triton.jit
def _tile_of(first, rows, channels, per_channel: tl.constexpr, tile: tl.constexpr, columns: tl.constexpr):
    """Offsets and mask of the values from row `first` on: a tile `[tile, columns]`, or `[tile]` of the one channel."""
    if per_channel:
        row = first + tl.arange(0, tile)[:, None].to(tl.int64)
        column = tl.program_id(1) * columns + tl.arange(0, columns)[None, :]
        here, inside = row * channels + column, (row < rows) & (column < channels)
    else:
        here = first + tl.arange(0, tile)
        inside = here < rows
    return here, inside


@triton.jit
def _scales(scale_ptr, channels, per_channel: tl.constexpr, tile: tl.constexpr, columns: tl.constexpr):
    """The scales of a tile: one, or one for each column."""
    if per_channel:
        column = tl.program_id(1) * columns + tl.arange(0, columns)[None, :]
        scale = tl.load(scale_ptr + column, mask=column < channels, other=1.0).to(tl.float32)
        scale = tl.broadcast_to(scale, (tile, columns))
    else:
        scale = tl.load(scale_ptr).to(tl.float32)
    return scale


@triton.jit
def _quantize_kernel(
    u_ptr, scale_ptr, values_ptr, codes_ptr, rows, channels, lo, hi,
    with_values: tl.constexpr, per_channel: tl.constexpr, tile: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * tile
    here, inside = _tile_of(first, rows, channels, per_channel, tile, columns)
    scale = _scales(scale_ptr, channels, per_channel, tile, columns)
    u = tl.load(u_ptr + here, mask=inside, other=0.0).to(tl.float32)
    code = _code_of(u, scale, lo, hi)
    tl.store(codes_ptr + here, code.to(codes_ptr.dtype.element_ty), mask=inside)
    if with_values:
        tl.store(values_ptr + here, code * scale, mask=inside)


@triton.jit
def _slope_of(u, scale, lo, hi):
    """Whether `u` lies inside the range, and how its value moves with the scale."""
    quotient = tl.math.div_rn(u, scale)
    inside = (quotient >= lo) & (quotient <= hi)
    clamped = tl.minimum(tl.maximum(quotient, lo), hi)
    clamped = tl.where(quotient == quotient, clamped, quotient)
    return inside, tl.where(inside, tl.floor(clamped + 0.5) - clamped, clamped)


@triton.jit
def _store_sum(
    total, out_ptr, channels, factor,
    per_channel: tl.constexpr, tile: tl.constexpr, levels: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Store the sum over the rows of a tile, times a factor: neighbours first, `levels` times, down to one row."""
    column = tl.arange(0, 1)
    for level in tl.static_range(levels):  # of two there is but one order
        if per_channel:
            total = tl.sum(tl.reshape(total, (tile >> (level + 1), 2, columns)), axis=1)
        else:
            total = tl.sum(tl.reshape(total, (tile >> (level + 1), 2)), axis=1)
    if per_channel:
        column = tl.program_id(1) * columns + tl.arange(0, columns)[None, :]
    tl.store(out_ptr + column, (total * factor).to(out_ptr.dtype.element_ty), mask=column < channels)


@triton.jit
def _backward_kernel(
    grad_ptr, u_ptr, scale_ptr, grad_u_ptr, partial_ptr, rows, channels, lo, hi,
    per_channel: tl.constexpr, tile: tl.constexpr, tiles: tl.constexpr, levels: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0).to(tl.int64)
    scale = _scales(scale_ptr, channels, per_channel, tile, columns)
    total = tl.zeros((tile, columns) if per_channel else (tile,), dtype=tl.float64)
    for t in range(tiles):
        here, mask = _tile_of((chunk * tiles + t) * tile, rows, channels, per_channel, tile, columns)
        u = tl.load(u_ptr + here, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + here, mask=mask, other=0.0).to(tl.float32)
        inside, slope = _slope_of(u, scale, lo, hi)
        tl.store(grad_u_ptr + here, tl.where(inside, grad, 0.0).to(grad_u_ptr.dtype.element_ty), mask=mask)
        total += tl.where(mask, grad.to(tl.float64) * slope.to(tl.float64), 0.0)
    _store_sum(total, partial_ptr + chunk * channels, channels, 1.0, per_channel, tile, levels, columns)


@triton.jit
def _finish_kernel(
    partial_ptr, grad_scale_ptr, chunks, channels, share,
    per_channel: tl.constexpr, tile: tl.constexpr, levels: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((tile, columns) if per_channel else (tile,), dtype=tl.float64)
    for first in range(0, chunks, tile):
        here, inside = _tile_of(first, chunks, channels, per_channel, tile, columns)
        total += tl.load(partial_ptr + here, mask=inside, other=0.0)
    _store_sum(total, grad_scale_ptr, channels, share, per_channel, tile, levels, columns)


def quantize(
    u: Tensor, scale: Tensor, lo: int, hi: int, codes_dtype: torch.dtype = torch.float32, with_values: bool = True
) -> tuple[Tensor, Tensor]:
    """As `reference.quantize`, for values up to float32 on a GPU (or anywhere, under Triton's interpreter)."""
    reference.check_shapes(u, scale)
    reference.check_codes_dtype(codes_dtype, lo, hi)
    u, scale = u.detach().contiguous(), scale.detach().contiguous()
    codes = torch.empty(u.shape, dtype=codes_dtype, device=u.device)
    values = torch.empty(u.shape, dtype=torch.float32, device=u.device) if with_values else codes
    if u.numel() == 0:
        return values, codes
    channels = scale.numel()
    rows, tile, columns = u.numel() // channels, *_tile_shape(channels)
    grid = (triton.cdiv(rows, tile), triton.cdiv(channels, columns))
    with torch.cuda.device_of(u):
        _quantize_kernel[grid](
            u, scale, values, codes, rows, channels, float(lo), float(hi),
            with_values=with_values, per_channel=channels > 1, tile=tile, columns=columns, enable_fp_fusion=False,
        )  # fmt: skip
    return values, codes


def backward(grad: Tensor, u: Tensor, scale: Tensor, lo: int, hi: int) -> tuple[Tensor, Tensor]:
    """As `reference.backward`, in one pass and a small one."""
    reference.check_shapes(u, scale, grad)
    grad, u, scale = grad.contiguous(), u.detach().contiguous(), scale.detach().contiguous()
    grad_u, grad_scale = torch.empty_like(u), torch.empty_like(scale)
    if u.numel() == 0:
        return grad_u, grad_scale.zero_()
    channels = scale.numel()
    rows, tile, columns = u.numel() // channels, *_tile_shape(channels)
    tiles = TILES if channels == 1 else CHANNEL_TILES
    chunks, across = triton.cdiv(rows, tile * tiles), triton.cdiv(channels, columns)
    partial = torch.empty((chunks, channels), dtype=torch.float64, device=u.device)
    form = {"per_channel": channels > 1, "tile": tile, "levels": tile.bit_length() - 1, "columns": columns}
    with torch.cuda.device_of(u):
        _backward_kernel[(chunks, across)](
            grad, u, scale, grad_u, partial, rows, channels, float(lo), float(hi),
            tiles=tiles, enable_fp_fusion=False, **form,
        )  # fmt: skip
        _finish_kernel[(1, across)](
            partial, grad_scale, chunks, channels, reference.share(u, scale, hi), enable_fp_fusion=False, **form
        )
    return grad_u, grad_scale


def _tile_shape(channels: int) -> tuple[int, int]:
    """Rows and channels of a tile: those that the reference sums together."""
    return (TILE, 1) if channels == 1 else (CHANNEL_TILE, COLUMNS)
