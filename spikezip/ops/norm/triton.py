"""LayerNorm as a GPU kernel, alone and with the neurons behind it: read the rows once, write codes once.

Equal to one another: the sums of a row are sums of integers, the same in any order; the rest is done to each value by
itself, with the same instructions in both.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from spikezip.ops.rounding.triton import next_tracer, unit

TILE = 1024  # values that a program handles at once


@triton.jit
def normalised(x, weight, bias, columns, eps, with_weight: tl.constexpr, with_bias: tl.constexpr):
    """LayerNorm of the rows of a tile; past the end of a row there are zeros. Also the mean and inverse deviation."""
    largest = tl.max(tl.abs(x), axis=1)[:, None]
    # 2^(24−e), with 2^e above the largest: its bits are an exponent and nothing else.
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 255
    exponent = tl.minimum(tl.maximum(exponent, 50), 250)
    power = ((277 - exponent) << 23).to(tl.float32, bitcast=True)
    q = tl.floor(x * power + 0.5).to(tl.int32).to(tl.int64)
    mean = tl.sum(q, axis=1)[:, None].to(tl.float64) / columns
    variance = tl.sum(q * q, axis=1)[:, None].to(tl.float64) / columns - mean * mean
    inverse = 1.0 / power.to(tl.float64)  # a power of two: exact
    spread = tl.where(variance > 0.0, variance, 0.0) * inverse * inverse + eps
    middle = (mean * inverse).to(tl.float32)
    deviation = (1.0 / tl.sqrt(spread)).to(tl.float32)
    y = (x - middle) * deviation
    if with_weight:
        y = y * weight
    if with_bias:
        y = y + bias
    return y, middle, deviation


@triton.jit
def _norm_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, deviation_ptr, rows, columns, eps_ptr,
    with_weight: tl.constexpr, with_bias: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)[:, None]
    column = tl.arange(0, block)[None, :]
    here, inside = row * columns + column, (row < rows) & (column < columns)
    weight = tl.load(weight_ptr + column, mask=(column < columns) & with_weight, other=0.0)
    bias = tl.load(bias_ptr + column, mask=(column < columns) & with_bias, other=0.0)
    x = tl.load(x_ptr + here, mask=inside, other=0.0)
    y, mean, deviation = normalised(x, weight, bias, columns, tl.load(eps_ptr), with_weight, with_bias)
    tl.store(out_ptr + here, y, mask=inside)
    tl.store(mean_ptr + row, mean, mask=row < rows)
    tl.store(deviation_ptr + row, deviation, mask=row < rows)


@triton.jit
def _walk_kernel(
    x_ptr, weight_ptr, bias_ptr, tracer_ptr, out_ptr, counts_ptr, scale_ptr, steps, rows, columns, rows_each, samples,
    lo, hi, max_spike, eps_ptr,
    per_channel: tl.constexpr, with_weight: tl.constexpr, with_bias: tl.constexpr, ternary: tl.constexpr,
    tile: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * tile + tl.arange(0, tile)[:, None]
    column = tl.arange(0, block)[None, :]
    here, inside = row.to(tl.int64) * columns + column, (row < rows) & (column < columns)
    scale, first, second = unit(tl.load(scale_ptr + column * per_channel, mask=column < columns, other=1.0))
    weight = tl.load(weight_ptr + column, mask=(column < columns) & with_weight, other=0.0)
    bias = tl.load(bias_ptr + column, mask=(column < columns) & with_bias, other=0.0)
    eps = tl.load(eps_ptr)
    tracer = tl.load(tracer_ptr + here, mask=inside, other=0).to(tl.float32)
    count_at = counts_ptr + row // rows_each
    for _ in range(steps):
        x = tl.load(x_ptr + here, mask=inside, other=0.0)
        y, _, _ = normalised(x, weight, bias, columns, eps, with_weight, with_bias)
        before = tracer
        tracer = tl.where(inside, next_tracer(y * first * second, tracer, scale, lo, hi, max_spike, ternary), 0.0)
        tl.store(out_ptr + here, tracer.to(tl.int8), mask=inside)
        nan = tl.where(inside & (y != y), y, 0.0)  # a NaN has no code: it spoils the count
        fired = tl.sum(tl.abs(tracer - before) + nan, axis=1)[:, None]
        tl.atomic_add(count_at, fired, mask=row < rows, sem="relaxed")
        x_ptr += rows.to(tl.int64) * columns  # the pointers move on to the next step
        out_ptr += rows.to(tl.int64) * columns
        count_at += samples


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm of a float32 tensor on a GPU (or interpreted, anywhere); mean and inverse deviation of rows."""
    x = x.contiguous()
    columns = x.shape[-1]
    rows = x.numel() // columns
    out = torch.empty_like(x)
    mean, deviation = torch.empty(2, rows, device=x.device)
    block = triton.next_power_of_2(columns)
    tile = max(1, TILE // block)
    if rows:
        with torch.cuda.device_of(x):
            _norm_kernel[(triton.cdiv(rows, tile),)](
                x, _given(weight, x), _given(bias, x), out, mean, deviation, rows, columns, _wide(eps, x),
                with_weight=weight is not None, with_bias=bias is not None, tile=tile, block=block,
                num_warps=8 if block > 2048 else 4, enable_fp_fusion=False,
            )  # fmt: skip
    return out, mean, deviation


def walk_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    tracer: Tensor,
    scale: Tensor,
    lo: int,
    hi: int,
    max_spike: int,
    samples: int,
) -> tuple[Tensor, Tensor]:
    """As `fast.walk_norm`, on a GPU (or anywhere, under Triton's interpreter). A NaN makes a count NaN."""
    x, tracer = x.contiguous(), tracer.contiguous()
    steps, rows, columns = x.shape
    tracers = torch.empty(steps, rows * columns, dtype=torch.int8, device=x.device)
    counts = torch.zeros(steps, samples, device=x.device)
    block = triton.next_power_of_2(columns)
    tile = max(1, TILE // block)
    with torch.cuda.device_of(x):
        _walk_kernel[(triton.cdiv(rows, tile),)](
            x, _given(weight, x), _given(bias, x), tracer, tracers, counts, scale.contiguous(), steps, rows, columns,
            rows // samples, samples, float(lo), float(hi), float(min(max_spike, hi - lo)), _wide(eps, x),
            per_channel=scale.numel() > 1, with_weight=weight is not None, with_bias=bias is not None,
            ternary=max_spike == 1, tile=tile, block=block, num_warps=8 if block > 2048 else 4, enable_fp_fusion=False,
        )  # fmt: skip
    return tracers, counts


def _given(parameter: Tensor | None, x: Tensor) -> Tensor:
    return x if parameter is None else parameter.detach().contiguous()


def _wide(eps: float, x: Tensor) -> Tensor:
    """A number as float64: a plain one would reach the kernel as float32."""
    return torch.full((), eps, dtype=torch.float64, device=x.device)
