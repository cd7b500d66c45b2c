"""Products of codes with weights and the neurons behind them as one GPU kernel: the sums never reach the memory.

A program holds a tile of neurons through all steps of a chunk: it multiplies, scales, rounds, walks the tracers, and
writes 8-bit codes. Equal to the reference: the sums are integers, in whatever order they add, and so are the counts.
Several layers that read the same codes and have the same size go together: the GPU is then full for longer.

Layers of a network come to rest one after another. Once the codes of its rows stay as they are, a program has its last
product; once its neurons fire nothing then, they never do again.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from spikezip.ops.neuron.reference import Neurons
from spikezip.ops.rounding.triton import next_spike, to_code, unit

# A tile of neurons, how much of the depth is loaded at once, and how it runs.
ROWS, COLUMNS, DEPTH = 64, 128, 128
WARPS, STAGES = 4, 4


@triton.jit
def _product(
    codes_tiles, weight_tiles, step, layer, first_row, first_column, depth, factor, bias, with_bias: tl.constexpr,
    row_tile: tl.constexpr, column_tile: tl.constexpr, depth_tile: tl.constexpr,
):  # fmt: skip
    """The running sums of a tile of neurons at a step."""
    total = tl.zeros((row_tile, column_tile), dtype=tl.int32)
    for start in range(0, depth, depth_tile):
        left = codes_tiles.load([step, first_row, start]).reshape(row_tile, depth_tile)
        right = weight_tiles.load([layer, first_column, start]).reshape(column_tile, depth_tile)
        total = tl.dot(left, right.T, total, out_dtype=tl.int32)
    u = total.to(tl.float32) * factor
    if with_bias:
        u = u + bias
    return u


@triton.jit
def _move(moved_at, step, samples, is_row):
    """Whether codes of a tile's rows change at a step. A count that is not a number differs from zero."""
    return tl.sum((tl.load(moved_at + step * samples, mask=is_row, other=0.0) != 0.0).to(tl.int32), axis=0) > 0


@triton.jit(do_not_specialize=["steps", "rows", "samples"])  # compiled once for all numbers of them
def _product_kernel(
    codes_tiles, weight_tiles, tracer_tiles, out_tiles, counts_ptr, scale_ptr, factor_ptr, bias_ptr, moved_ptr,
    steps, rows, columns, depth, samples, lo, hi, max_spike,
    per_channel: tl.constexpr, with_bias: tl.constexpr, ternary: tl.constexpr, resting: tl.constexpr,
    row_tile: tl.constexpr, column_tile: tl.constexpr, depth_tile: tl.constexpr,
):  # fmt: skip
    # Programs that follow one another share their rows, which then are still in the cache.
    across = tl.cdiv(columns, column_tile)
    layer = tl.program_id(0) // across
    first_row, first_column = tl.program_id(1) * row_tile, tl.program_id(0) % across * column_tile
    row = first_row + tl.arange(0, row_tile)
    column = first_column + tl.arange(0, column_tile)
    is_column = column < columns
    at = layer * columns + column
    if per_channel:
        scale, first, second = unit(tl.load(scale_ptr + at, mask=is_column, other=1.0))
        scale = scale[None, :]
    else:
        scale, first, second = unit(tl.load(scale_ptr + layer))
    # Rounding commutes with powers of two, so the factor and the bias get those of the scale at once. Columns past the
    # end have weights and a bias of zero: they do not fire.
    factor = tl.load(factor_ptr + at, mask=is_column, other=0.0) * first * second
    nan = tl.sum(tl.where(factor == factor, 0.0, factor), axis=0)
    factor = factor[None, :]
    bias = factor
    if with_bias:
        bias = tl.load(bias_ptr + at, mask=is_column, other=0.0) * first * second
        nan += tl.sum(tl.where(bias == bias, 0.0, bias), axis=0)
        bias = bias[None, :]
    tracer = tracer_tiles.load([layer, first_row, first_column]).reshape(row_tile, column_tile).to(tl.float32)
    count_at = counts_ptr + (layer * steps * across + tl.program_id(0) % across) * rows + row
    is_row = row < rows
    until = steps  # after which the codes of the rows stay as they are
    if resting:
        moved_at = moved_ptr + row // (rows // samples)  # of the samples that the rows belong to
        some = _move(moved_at, until - 1, samples, is_row)
        while (until > 1) & (some == 0):
            until -= 1
            some = _move(moved_at, until - 1, samples, is_row)
    fired = tl.zeros((row_tile,), dtype=tl.float32)
    # Flattened, so that a step's first tiles are on their way while the neurons of the last step are walked.
    for step in tl.range(until, flatten=True):
        u = _product(
            codes_tiles, weight_tiles, step, layer, first_row, first_column, depth, factor, bias, with_bias,
            row_tile, column_tile, depth_tile,
        )  # fmt: skip
        spike = next_spike(u, tracer, scale, lo, hi, max_spike, ternary)
        tracer += spike
        codes = to_code(tracer).reshape(1, row_tile, column_tile)
        out_tiles.store([layer * steps + step, first_row, first_column], codes)
        # A sum for each row: adding them up in memory would make programs wait for one another.
        fired = tl.sum(tl.abs(spike), axis=1) + nan
        tl.store(count_at, fired, mask=is_row)
        count_at += rows * across
    if resting and until < steps:
        u = _product(
            codes_tiles, weight_tiles, until, layer, first_row, first_column, depth, factor, bias, with_bias,
            row_tile, column_tile, depth_tile,
        )  # fmt: skip
        busy = tl.full((), 1, tl.int1)
        for step in range(until, steps):
            if busy:
                spike = next_spike(u, tracer, scale, lo, hi, max_spike, ternary)
                tracer += spike
                fired = tl.sum(tl.abs(spike), axis=1) + nan
                busy = tl.sum(tl.where(is_row, fired, 0.0), axis=0) != 0.0  # also if it is not a number
            codes = to_code(tracer).reshape(1, row_tile, column_tile)
            out_tiles.store([layer * steps + step, first_row, first_column], codes)
            tl.store(count_at, fired, mask=is_row)
            count_at += rows * across


def walk_products(
    codes: Tensor, weight: Tensor, factor: Tensor, bias: Tensor | None, neurons: Neurons, moved: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As `fast.walk_products`, on a GPU (or anywhere, under Triton's interpreter). A NaN makes a count NaN."""
    tracer, scale, lo, hi, max_spike, samples = neurons
    steps, rows, depth = codes.shape
    layers, columns, _ = weight.shape
    codes, weight, tracer = codes.contiguous(), weight.contiguous(), tracer.contiguous()
    tracers = torch.empty(layers, steps, rows * columns, dtype=torch.int8, device=codes.device)
    across = triton.cdiv(columns, COLUMNS)
    counts = torch.empty(layers, steps, across, rows, device=codes.device)
    tiles = (
        TensorDescriptor.from_tensor(codes, [1, ROWS, DEPTH]),
        TensorDescriptor.from_tensor(weight, [1, COLUMNS, DEPTH]),
        TensorDescriptor.from_tensor(tracer.view(layers, rows, columns), [1, ROWS, COLUMNS]),
        TensorDescriptor.from_tensor(tracers.view(layers * steps, rows, columns), [1, ROWS, COLUMNS]),
    )
    with torch.cuda.device_of(codes):
        _product_kernel[(layers * across, triton.cdiv(rows, ROWS))](
            *tiles, counts, scale.contiguous(), factor.contiguous(), (factor if bias is None else bias).contiguous(),
            (counts if moved is None else moved).contiguous(), steps, rows, columns, depth, samples,
            float(lo), float(hi), float(min(max_spike, hi - lo)),
            per_channel=scale.ndim > 1, with_bias=bias is not None, ternary=max_spike == 1, resting=moved is not None,
            row_tile=ROWS, column_tile=COLUMNS, depth_tile=DEPTH, num_warps=WARPS, num_stages=STAGES,
            enable_fp_fusion=False,  # the product and the sum are each rounded, as torch does it
        )  # fmt: skip
    return tracers, counts.view(layers, steps, across, samples, -1).sum(dim=(2, 4))
