"""LayerNorm as a GPU kernel, alone and with the neurons behind it: read the rows once, write codes once.

Equal to one another: the sums of a row are sums of integers, the same in any order; the rest is done to each value by
itself, with the same instructions in both.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from spikezip.ops.grid.triton import column_sums
from spikezip.ops.neuron.reference import Neurons
from spikezip.ops.rounding.triton import next_spike, to_code, unit

SHARE = 1024  # values that a warp handles at once
BACKWARD_TILE, BACKWARD_TILES = 2048, 8  # values that a program of the backward pass handles at once, and how often


@triton.jit
def normalised(x, weight, bias, share, eps, with_weight: tl.constexpr, with_bias: tl.constexpr):
    """LayerNorm of a row; past its end there are zeros. Also the mean and inverse deviation.

    `share` is one over the number of columns. It and `eps` are float64.
    """
    largest = tl.max(tl.abs(x), axis=0)
    # 2^(24−e) and its inverse, with 2^e above the largest: their bits are an exponent and nothing else.
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 255
    exponent = tl.minimum(tl.maximum(exponent, 50), 250)
    power = ((277 - exponent) << 23).to(tl.float32, bitcast=True)
    inverse = ((exponent - 23) << 23).to(tl.float32, bitcast=True).to(tl.float64)
    q = (x * power).to(tl.int32).to(tl.int64)
    mean = tl.sum(q, axis=0).to(tl.float64) * share
    variance = tl.sum(q * q, axis=0).to(tl.float64) * share - mean * mean
    spread = tl.where(variance > 0.0, variance, 0.0) * inverse * inverse + eps
    middle = (mean * inverse).to(tl.float32)
    narrow = spread.to(tl.float32)
    deviation = tl.math.div_rn(1.0, tl.math.sqrt_rn(narrow))
    # A row that is not finite, or whose variance is not, has no result: zeros would not be noticed.
    deviation = tl.where((largest < float("inf")) & (narrow < float("inf")), deviation, float("nan"))
    y = (x - middle) * deviation
    if with_weight:
        y = y * weight
    if with_bias:
        y = y + bias
    return y, middle, deviation


@triton.jit
def _norm_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, deviation_ptr, columns, wide_ptr,
    with_weight: tl.constexpr, with_bias: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < columns
    weight = tl.load(weight_ptr + column, mask=inside & with_weight, other=0.0)
    bias = tl.load(bias_ptr + column, mask=inside & with_bias, other=0.0)
    x = tl.load(x_ptr + row * columns + column, mask=inside, other=0.0)
    share, eps = tl.load(wide_ptr), tl.load(wide_ptr + 1)
    y, mean, deviation = normalised(x, weight, bias, share, eps, with_weight, with_bias)
    tl.store(out_ptr + row * columns + column, y, mask=inside)
    tl.store(mean_ptr + row, mean)
    tl.store(deviation_ptr + row, deviation)


@triton.jit
def _backward_kernel(
    grad_ptr, x_ptr, weight_ptr, mean_ptr, deviation_ptr, grad_x_ptr, partial_ptr, rows, columns, share,
    with_weight: tl.constexpr, tiles: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Gradients of a few rows, and what they add to those of weight and bias."""
    column = tl.arange(0, block)[None, :]
    inside = column < columns
    weight = tl.load(weight_ptr + column, mask=inside & with_weight, other=0.0 if with_weight else 1.0)
    of_weight = tl.zeros((tile, block), dtype=tl.float32)
    of_bias = tl.zeros((tile, block), dtype=tl.float32)
    for t in range(tiles):
        row = ((tl.program_id(0) * tiles + t) * tile + tl.arange(0, tile)[:, None]).to(tl.int64)
        here, mask = row * columns + column, (row < rows) & inside
        grad = tl.load(grad_ptr + here, mask=mask, other=0.0)
        x = tl.load(x_ptr + here, mask=mask, other=0.0)
        deviation = tl.load(deviation_ptr + row, mask=row < rows, other=0.0)
        even = tl.where(mask, (x - tl.load(mean_ptr + row, mask=row < rows, other=0.0)) * deviation, 0.0)
        of_weight += grad * even
        of_bias += grad
        weighted = grad * weight
        middle = tl.sum(weighted, axis=1)[:, None] * share
        slope = tl.sum(weighted * even, axis=1)[:, None] * share
        tl.store(grad_x_ptr + here, (weighted - middle - even * slope) * deviation, mask=mask)
    at = partial_ptr + tl.program_id(0).to(tl.int64) * 2 * columns + column
    tl.store(at, tl.sum(of_weight, axis=0)[None, :], mask=inside)
    tl.store(at + columns, tl.sum(of_bias, axis=0)[None, :], mask=inside)


@triton.jit(do_not_specialize=["steps", "rows", "rows_each", "samples"])  # compiled once for all numbers of them
def _walk_kernel(
    x_ptr, added_ptr, unit_ptr, sum_ptr, weight_ptr, bias_ptr, tracer_ptr, out_ptr, counts_ptr, scale_ptr,
    steps, rows, columns, rows_each, samples, lo, hi, max_spike, wide_ptr,
    with_sum: tl.constexpr, per_channel: tl.constexpr, with_weight: tl.constexpr, with_bias: tl.constexpr,
    ternary: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, block)
    inside = column < columns
    here = row.to(tl.int64) * columns + column
    if per_channel:
        scale, first, second = unit(tl.load(scale_ptr + column, mask=inside, other=1.0))
    else:
        scale, first, second = unit(tl.load(scale_ptr))
    # Rounding commutes with powers of two, so weight and bias get those of the scale at once. Past the end of the row
    # both are zero: nothing fires there.
    weight = tl.where(inside, 1.0, 0.0)
    if with_weight:
        weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    weight = weight * first * second
    bias = tl.load(bias_ptr + column, mask=inside & with_bias, other=0.0) * first * second
    share, eps = tl.load(wide_ptr), tl.load(wide_ptr + 1)
    tracer = tl.load(tracer_ptr + here, mask=inside, other=0).to(tl.float32)
    count_at = counts_ptr + row // rows_each
    ahead = tl.load(x_ptr + here, mask=inside, other=0.0)
    if with_sum:
        added = tl.load(added_ptr + here, mask=inside, other=0)
        size = tl.load(unit_ptr)
    for step in range(steps):
        x = ahead
        if with_sum:
            x += added.to(tl.float32) * size
            tl.store(sum_ptr + here, x, mask=inside)
            sum_ptr += rows.to(tl.int64) * columns
        # The next step is read while this one is computed; after the last one, that one again.
        then = tl.minimum(step + 1, steps - 1).to(tl.int64) * rows * columns
        ahead = tl.load(x_ptr + then + here, mask=inside, other=0.0)
        if with_sum:
            added = tl.load(added_ptr + then + here, mask=inside, other=0)
        y, _, _ = normalised(x, weight, bias, share, eps, True, with_bias)
        spike = next_spike(y, tracer, scale, lo, hi, max_spike, ternary)
        tracer += spike
        tl.store(out_ptr + here, to_code(tracer), mask=inside)
        fired = tl.sum(tl.abs(spike) + (y - y), axis=0)  # what is no number spoils the count
        tl.atomic_add(count_at, fired, sem="relaxed")
        out_ptr += rows.to(tl.int64) * columns  # the pointers move on to the next step
        count_at += samples


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm of a float32 tensor on a GPU (or interpreted, anywhere); mean and inverse deviation of rows."""
    x = x.contiguous()
    columns = x.shape[-1]
    rows = x.numel() // columns
    out = torch.empty_like(x)
    mean, deviation = torch.empty(2, rows, device=x.device)
    block = triton.next_power_of_2(columns)
    if rows:
        with torch.cuda.device_of(x):
            _norm_kernel[(rows,)](
                x, _given(weight, x), _given(bias, x), out, mean, deviation, columns, _wide(columns, eps, x.device),
                with_weight=weight is not None, with_bias=bias is not None, block=block,
                num_warps=_warps(block), enable_fp_fusion=False,
            )  # fmt: skip
    return out, mean, deviation


def backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, deviation: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for `x`, the weight and the bias, from that for the output of `layer_norm`."""
    grad, x = grad.contiguous(), x.contiguous()
    columns = x.shape[-1]
    rows = x.numel() // columns
    block = triton.next_power_of_2(columns)
    tile = max(1, BACKWARD_TILE // block)
    programs = triton.cdiv(rows, tile * BACKWARD_TILES)
    grad_x = torch.empty_like(x)
    partial = torch.empty(programs, 2 * columns, device=x.device)
    if rows:
        with torch.cuda.device_of(x):
            _backward_kernel[(programs,)](
                grad, x, x if weight is None else weight.contiguous(), mean, deviation, grad_x, partial, rows, columns,
                1.0 / columns, with_weight=weight is not None, tiles=BACKWARD_TILES, tile=tile, block=block,
                num_warps=4 if block <= BACKWARD_TILE else 16,
            )  # fmt: skip
    grad_weight, grad_bias = column_sums(partial).view(2, columns)
    return grad_x, grad_weight, grad_bias


def walk_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    neurons: Neurons,
    added: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `fast.walk_norm`, on a GPU (or anywhere, under Triton's interpreter). A NaN makes a count NaN."""
    tracer, scale, lo, hi, max_spike, samples = neurons
    x, tracer = x.contiguous(), tracer.contiguous()
    steps, rows, columns = x.shape
    tracers = torch.empty(steps, rows * columns, dtype=torch.int8, device=x.device)
    counts = torch.zeros(steps, samples, device=x.device)
    codes, size = (tracers, scale) if added is None else (added[0].contiguous(), added[1])
    total = x if added is None else torch.empty_like(x)
    block = triton.next_power_of_2(columns)
    with torch.cuda.device_of(x):
        _walk_kernel[(rows,)](
            x, codes, size, total, _given(weight, x), _given(bias, x), tracer, tracers, counts, scale.contiguous(),
            steps, rows, columns, rows // samples, samples, float(lo), float(hi), float(min(max_spike, hi - lo)),
            _wide(columns, eps, x.device), with_sum=added is not None, per_channel=scale.numel() > 1,
            with_weight=weight is not None, with_bias=bias is not None, ternary=max_spike == 1, block=block,
            num_warps=_warps(block), enable_fp_fusion=False,
        )  # fmt: skip
    return total, tracers, counts


def _warps(block: int) -> int:
    """A row to a warp, or to a few for long ones: what is done once for a row is then done by few threads."""
    return max(1, min(block // SHARE, 8))


def _given(parameter: Tensor | None, x: Tensor) -> Tensor:
    return x if parameter is None else parameter.detach().contiguous()


@lru_cache(maxsize=256)
def _wide(columns: int, eps: float, device: torch.device) -> Tensor:
    """One over the columns, and a small number, as float64: plain numbers would reach the kernel as float32."""
    return torch.tensor([1 / columns, eps], dtype=torch.float64, device=device)
