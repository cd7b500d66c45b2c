"""A product of codes with weights and the neurons behind it as one GPU kernel: the sums never reach the memory.

A program holds a tile of neurons through all steps of a chunk: it multiplies, scales, rounds, walks the tracers, and
writes 8-bit codes. Equal to the reference: the sums are integers, in whatever order they add, and so are the counts.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from spikezip.ops.rounding.triton import next_tracer, unit

# A tile of neurons, how much of the depth is loaded at once, and how it runs.
ROWS, COLUMNS, DEPTH = 128, 64, 128
WARPS, STAGES = 8, 3


@triton.jit
def _product_kernel(
    codes_tiles, weight_tiles, tracer_tiles, out_tiles, counts_ptr, scale_ptr, factor_ptr, bias_ptr,
    steps, rows, columns, depth, rows_each, samples, lo, hi, max_spike,
    per_channel: tl.constexpr, with_bias: tl.constexpr, ternary: tl.constexpr,
    row_tile: tl.constexpr, column_tile: tl.constexpr, depth_tile: tl.constexpr,
):  # fmt: skip
    # Programs that follow one another share their rows, which then are still in the cache.
    first_row, first_column = tl.program_id(1) * row_tile, tl.program_id(0) * column_tile
    row = first_row + tl.arange(0, row_tile)
    column = first_column + tl.arange(0, column_tile)
    is_column = column < columns
    if per_channel:
        scale, first, second = unit(tl.load(scale_ptr + column, mask=is_column, other=1.0))
        scale = scale[None, :]
    else:
        scale, first, second = unit(tl.load(scale_ptr))
    # Rounding commutes with powers of two, so the factor and the bias get those of the scale at once. Columns past the
    # end have weights and a bias of zero: they do not fire.
    factor = tl.load(factor_ptr + column, mask=is_column, other=0.0) * first * second
    nan = tl.sum(tl.where(factor == factor, 0.0, factor), axis=0)
    factor = factor[None, :]
    if with_bias:
        bias = tl.load(bias_ptr + column, mask=is_column, other=0.0) * first * second
        nan += tl.sum(tl.where(bias == bias, 0.0, bias), axis=0)
        bias = bias[None, :]
    tracer = tracer_tiles.load([first_row, first_column]).to(tl.float32)
    count_at = counts_ptr + row // rows_each
    for step in range(steps):
        total = tl.zeros((row_tile, column_tile), dtype=tl.int32)
        for start in range(0, depth, depth_tile):
            left = codes_tiles.load([step, first_row, start]).reshape(row_tile, depth_tile)
            right = weight_tiles.load([first_column, start])
            total = tl.dot(left, right.T, total, out_dtype=tl.int32)
        u = total.to(tl.float32) * factor
        if with_bias:
            u = u + bias
        before = tracer
        tracer = next_tracer(u, tracer, scale, lo, hi, max_spike, ternary)
        out_tiles.store([step, first_row, first_column], tracer.to(tl.int8).reshape(1, row_tile, column_tile))
        # Rows past the end belong to no sample.
        tl.atomic_add(count_at, tl.sum(tl.abs(tracer - before), axis=1) + nan, mask=row < rows, sem="relaxed")
        count_at += samples


def walk_product(
    codes: Tensor,
    weight: Tensor,
    factor: Tensor,
    bias: Tensor | None,
    tracer: Tensor,
    scale: Tensor,
    lo: int,
    hi: int,
    max_spike: int,
    samples: int,
) -> tuple[Tensor, Tensor]:
    """As `fast.walk_product`, on a GPU (or anywhere, under Triton's interpreter). A NaN makes a count NaN."""
    steps, rows, depth = codes.shape
    columns = len(weight)
    codes, weight, tracer = codes.contiguous(), weight.contiguous(), tracer.contiguous()
    tracers = torch.empty(steps, rows * columns, dtype=torch.int8, device=codes.device)
    counts = torch.zeros(steps, samples, device=codes.device)
    launch = (triton.cdiv(columns, COLUMNS), triton.cdiv(rows, ROWS))
    tiles = (
        TensorDescriptor.from_tensor(codes, [1, ROWS, DEPTH]),
        TensorDescriptor.from_tensor(weight, [COLUMNS, DEPTH]),
        TensorDescriptor.from_tensor(tracer.view(rows, columns), [ROWS, COLUMNS]),
        TensorDescriptor.from_tensor(tracers.view(steps, rows, columns), [1, ROWS, COLUMNS]),
    )
    with torch.cuda.device_of(codes):
        _product_kernel[launch](
            *tiles, counts, scale.contiguous(), factor.contiguous(), (factor if bias is None else bias).contiguous(),
            steps, rows, columns, depth, rows // samples, samples,
            float(lo), float(hi), float(min(max_spike, hi - lo)),
            per_channel=scale.numel() > 1, with_bias=bias is not None, ternary=max_spike == 1,
            row_tile=ROWS, column_tile=COLUMNS, depth_tile=DEPTH, num_warps=WARPS, num_stages=STAGES,
            enable_fp_fusion=False,  # the product and the sum are each rounded, as torch does it
        )  # fmt: skip
    return tracers, counts
