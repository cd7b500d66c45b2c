"""Integer weights, and what follows a product of integers, as GPU kernels.

Equal to the reference bit for bit: the largest weight of a row is the same in any order, its scale is divided as IEEE
asks, and codes are decided in float64. Fused multiply-adds are off, so `sum · scale + bias` rounds twice.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from spikezip.ops.grid.reference import LARGEST_WEIGHT, check_channels
from spikezip.ops.lsq.reference import check_codes_dtype

# Weights of a row handled together; and the tile of sums that an epilogue works on.
BLOCK = 1024
ROWS, COLUMNS = 8, 128
GRADIENT_ROWS, GRADIENT_TILES = 16, 4  # a gradient's tiles, and how many a program adds up
SUM_ROWS, SUM_COLUMNS = 128, 32


@triton.jit
def _weight_code(weight, scale, top):
    """The rounding rule in float64, for scales of any size: there are few weights, and some rows are odd."""
    rounded = tl.floor(weight.to(tl.float64) / scale.to(tl.float64) + 0.5).to(tl.float64)
    clamped = tl.minimum(tl.maximum(rounded, -top), top)
    return tl.where(rounded == rounded, clamped, rounded).to(tl.float32)


@triton.jit
def _weight_kernel(weight_ptr, codes_ptr, scale_ptr, columns, top, block: tl.constexpr):
    """One output channel: its largest weight, its scale, its codes."""
    row = tl.program_id(0).to(tl.int64)
    weight_ptr += row * columns
    codes_ptr += row * columns
    largest = tl.zeros((block,), dtype=tl.float32)
    broken = tl.zeros((block,), dtype=tl.int32)
    for start in range(0, columns, block):
        here = start + tl.arange(0, block)
        weight = tl.load(weight_ptr + here, mask=here < columns, other=0.0)
        largest = tl.maximum(largest, tl.abs(weight))
        broken = tl.maximum(broken, (weight != weight).to(tl.int32))
    most = tl.max(largest, axis=0)
    most = tl.where(tl.max(broken, axis=0) > 0, 0.0, most)  # torch: a row with a NaN has no largest, so its scale is 1
    scale = tl.math.div_rn(most, top)
    scale = tl.where(scale > 0, scale, 1.0)  # rows of zeros, and of denormals whose quotient is zero
    tl.store(scale_ptr + row, scale)
    for start in range(0, columns, block):
        here = start + tl.arange(0, block)
        weight = tl.load(weight_ptr + here, mask=here < columns, other=0.0)
        code = _weight_code(weight, scale, top)
        tl.store(codes_ptr + here, code.to(codes_ptr.dtype.element_ty), mask=here < columns)


@triton.jit
def _epilogue_kernel(
    sum_ptr, scale_ptr, bias_ptr, u_ptr, rows, columns,
    with_bias: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)[:, None]
    column = tl.program_id(1) * block + tl.arange(0, block)[None, :]
    here, mask = row * columns + column, (row < rows) & (column < columns)
    scale = tl.load(scale_ptr + column, mask=column < columns, other=0.0)
    u = tl.load(sum_ptr + here, mask=mask, other=0.0) * scale
    if with_bias:
        u = u + tl.load(bias_ptr + column, mask=column < columns, other=0.0)
    tl.store(u_ptr + here, u, mask=mask)


@triton.jit
def _add_kernel(x_ptr, codes_ptr, scale_ptr, out_ptr, size, block: tl.constexpr):
    here = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    value = tl.load(codes_ptr + here, mask=here < size, other=0).to(tl.float32) * tl.load(scale_ptr)
    tl.store(out_ptr + here, tl.load(x_ptr + here, mask=here < size, other=0.0) + value, mask=here < size)


@triton.jit
def _gradient_kernel(
    grad_ptr, scale_ptr, low_ptr, partial_ptr, rows, columns,
    with_sum: tl.constexpr, tiles: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * tiles * tile
    column = tl.program_id(1) * block + tl.arange(0, block)[None, :]
    scale = tl.load(scale_ptr + column, mask=column < columns, other=0.0)
    total = tl.zeros((tile, block), dtype=tl.float32)
    for t in range(tiles):
        row = first + t * tile + tl.arange(0, tile)[:, None]
        here, mask = row * columns + column, (row < rows) & (column < columns)
        grad = tl.load(grad_ptr + here, mask=mask, other=0.0).to(tl.float32)
        tl.store(low_ptr + here, (grad * scale).to(low_ptr.dtype.element_ty), mask=mask)
        total += grad
    if with_sum:
        at = tl.program_id(0).to(tl.int64) * columns + column
        tl.store(partial_ptr + at, tl.sum(total, axis=0)[None, :], mask=column < columns)


@triton.jit
def _sums_kernel(x_ptr, out_ptr, rows, columns, tile: tl.constexpr, block: tl.constexpr):
    column = tl.program_id(0) * block + tl.arange(0, block)[None, :]
    total = tl.zeros((tile, block), dtype=tl.float32)
    for first in range(0, rows, tile):
        row = first + tl.arange(0, tile)[:, None]
        total += tl.load(x_ptr + row * columns + column, mask=(row < rows) & (column < columns), other=0.0)
    tl.store(out_ptr + column, tl.sum(total, axis=0)[None, :], mask=column < columns)


def weight_grid(weight: Tensor, bits: int, codes_dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """As `reference.weight_grid`, for a float32 weight `[out, …]` on a GPU, with the codes in `codes_dtype`."""
    top = LARGEST_WEIGHT[bits]
    check_codes_dtype(codes_dtype, -top, top)
    weight = weight.detach().contiguous()
    codes = torch.empty(weight.shape, dtype=codes_dtype, device=weight.device)
    scale = torch.empty(len(weight), dtype=torch.float32, device=weight.device)
    if len(weight):
        columns = weight[0].numel()
        with torch.cuda.device_of(weight):
            _weight_kernel[(len(weight),)](
                weight, codes, scale, columns, float(top), block=_block(columns), enable_fp_fusion=False
            )
    return codes, scale


def scale_bias(total: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """`total · scale + bias` for float32 sums `[…, out]`, with two roundings, in one pass."""
    check_channels(total, scale, bias)
    total, scale = total.detach().contiguous(), scale.detach().contiguous()
    u = torch.empty_like(total)
    if total.numel():
        columns = total.shape[-1]
        rows = total.numel() // columns
        launch = (triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS))
        with torch.cuda.device_of(total):
            _epilogue_kernel[launch](
                total, scale, scale if bias is None else bias.detach().contiguous(), u, rows, columns,
                with_bias=bias is not None, tile=ROWS, block=COLUMNS, enable_fp_fusion=False,
            )  # fmt: skip
    return u


def add_scaled(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """`x + codes · scale` for float32 values, int8 codes and one scale, with two roundings, in one pass."""
    x, codes = x.contiguous(), codes.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        with torch.cuda.device_of(x):
            _add_kernel[(triton.cdiv(x.numel(), BLOCK),)](
                x, codes, scale, out, x.numel(), block=BLOCK, enable_fp_fusion=False
            )
    return out


def scaled_gradient(grad: Tensor, scale: Tensor, dtype: torch.dtype, with_sum: bool) -> tuple[Tensor, Tensor | None]:
    """`grad · scale` in `dtype` for a gradient `[rows, out]`, and the gradient's sum over the rows, in one pass."""
    grad, scale = grad.contiguous(), scale.contiguous()
    rows, columns = grad.shape
    chunks = triton.cdiv(rows, GRADIENT_ROWS * GRADIENT_TILES)
    low = torch.empty(grad.shape, dtype=dtype, device=grad.device)
    partial = torch.empty(chunks if with_sum else 0, columns, device=grad.device)
    if grad.numel():
        with torch.cuda.device_of(grad):
            _gradient_kernel[(chunks, triton.cdiv(columns, COLUMNS))](
                grad, scale, low, partial, rows, columns, with_sum=with_sum, tiles=GRADIENT_TILES, tile=GRADIENT_ROWS,
                block=COLUMNS, enable_fp_fusion=False,
            )  # fmt: skip
    return low, column_sums(partial) if with_sum else None


def column_sums(x: Tensor) -> Tensor:
    """The sum over the rows of a float32 matrix that has few of them: what a kernel's programs have left in parts."""
    out = torch.empty(x.shape[1], device=x.device)
    if x.shape[1]:
        with torch.cuda.device_of(x):
            _sums_kernel[(triton.cdiv(x.shape[1], SUM_COLUMNS),)](
                x, out, *x.shape, tile=SUM_ROWS, block=SUM_COLUMNS, enable_fp_fusion=False
            )
    return out


def _block(columns: int) -> int:
    return min(BLOCK, triton.next_power_of_2(max(1, columns)))
