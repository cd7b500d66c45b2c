"""Attention of a chunk of steps as one GPU kernel: scores, softmax, both layers of neurons and the mix.

A program holds a block of queries of one head through all steps. Of scores and probabilities nothing reaches the
memory but the tracers, one byte each, which stay in the cache. Equal to the same work in pieces: both products are sums
of integers, softmax has no order (`ops/softmax`), and the rest is done to each value by itself.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from spikezip.ops.rounding.triton import next_tracer, unit
from spikezip.ops.softmax.reference import units
from spikezip.ops.softmax.triton import exponentials, row_factor, whole_sum

QUERIES = 64  # that a program handles at once
MOST_KEYS, MOST_WIDTH = 256, 128  # more do not fit into its registers


class Layer(NamedTuple):
    """The neurons of a site: tracer before, scale, range, and how many steps they are held back."""

    tracer: Tensor
    scale: Tensor
    lo: int
    hi: int
    held: int


@triton.jit
def _scores(q, k_tiles, mask_tiles, now, which_mask, first_query, first_key, shared, keys, factor,
    with_mask: tl.constexpr, query_tile: tl.constexpr, key_tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Scores of a tile of keys; minus infinity past their end."""
    k = k_tiles.load([now, first_key, shared]).reshape(key_tile, width)
    scores = tl.dot(q, k.T, out_dtype=tl.int32).to(tl.float32) * factor
    if with_mask:
        scores += mask_tiles.load([which_mask, first_query, first_key]).reshape(query_tile, key_tile)
    return tl.where((first_key + tl.arange(0, key_tile) < keys)[None, :], scores, float("-inf"))


@triton.jit
def _walk_and_mix(e, factor, at, inside, v_tiles, now, first_key, shared, mixed, scale, lo, hi, max_spike,
    with_mask: tl.constexpr, ternary: tl.constexpr, key_tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Neurons of a tile of probabilities, and what they add to the mix; also how many spikes there were."""
    p = e * factor
    before = tl.load(at, mask=inside, other=0).to(tl.float32)
    tracer = next_tracer(p, before, scale, lo, hi, max_spike, ternary)
    tl.store(at, tracer.to(tl.int8), mask=inside)
    fired = tl.sum(tl.sum(tl.abs(tracer - before), axis=1), axis=0)
    if with_mask:  # a row of nothing but minus infinity, or a mask that is not a number
        fired += tl.sum(tl.sum(tl.where(p == p, 0.0, p), axis=1), axis=0)
    v = v_tiles.load([now, first_key, shared]).reshape(key_tile, width)
    return tl.dot(tracer.to(tl.float16), v.to(tl.float16), mixed, out_dtype=tl.float32), fired


@triton.jit
def _attention_kernel(
    q_tiles, k_tiles, v_tiles, mask_tiles, o_tiles, out_tiles, p_tracer_ptr, p_counts_ptr, o_counts_ptr,
    p_scale_ptr, o_scale_ptr, score_factor_ptr, mix_factor_ptr,
    steps, batch, samples, heads, groups, queries, keys, pitch, masks,
    p_lo, p_hi, p_max_spike, p_held, o_lo, o_hi, o_max_spike, o_held,
    with_mask: tl.constexpr, ternary: tl.constexpr, two: tl.constexpr, unit_of_sum: tl.constexpr,
    query_tile: tl.constexpr, key_tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    sample, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    first_query = tl.program_id(0) * query_tile
    own, shared = head * width, head // groups * width  # where the head's channels begin
    which_mask, counted = sample % masks, sample * samples // batch
    p_scale, p_first, p_second = unit(tl.load(p_scale_ptr))
    o_scale, o_first, o_second = unit(tl.load(o_scale_ptr))
    score_factor, mix_factor = tl.load(score_factor_ptr), tl.load(mix_factor_ptr)
    spoilt = (score_factor - score_factor) + (mix_factor - mix_factor)  # zero, unless one of them is not a number
    mix_factor = mix_factor * o_first * o_second
    row, column = first_query + tl.arange(0, query_tile)[:, None], tl.arange(0, key_tile)[None, :]
    at = p_tracer_ptr + tl.program_id(1).to(tl.int64) * queries * pitch + row * pitch + column
    # Queries past the end get probabilities of zero, which fire nothing.
    power = tl.where(row < queries, p_first * p_second, 0.0)
    o_tracer = o_tiles.load([sample, first_query, own]).reshape(query_tile, width).to(tl.float32)

    # Not pipelined: a step's tracers must not be read before the last step has written them.
    for step in tl.range(steps, num_stages=1):
        now = step * batch + sample
        q = q_tiles.load([now, first_query, own]).reshape(query_tile, width)
        x = _scores(
            q, k_tiles, mask_tiles, now, which_mask, first_query, 0, shared, keys, score_factor,
            with_mask, query_tile, key_tile, width,
        )  # fmt: skip
        most = tl.max(x, axis=1)[:, None]
        if two:
            y = _scores(
                q, k_tiles, mask_tiles, now, which_mask, first_query, key_tile, shared, keys, score_factor,
                with_mask, query_tile, key_tile, width,
            )  # fmt: skip
            most = tl.maximum(most, tl.max(y, axis=1)[:, None])
        e = exponentials(x, most)
        total = whole_sum(e, unit_of_sum)
        if two:
            f = exponentials(y, most)
            total += whole_sum(f, unit_of_sum)
        factor = row_factor(total, unit_of_sum) * power
        largest = tl.where(step >= p_held, p_max_spike, 0.0)
        mixed, fired = _walk_and_mix(
            e, factor, at, (row < queries) & (column < pitch), v_tiles, now, 0, shared,
            tl.zeros((query_tile, width), dtype=tl.float32), p_scale, p_lo, p_hi, largest,
            with_mask, ternary, key_tile, width,
        )  # fmt: skip
        if two:
            mixed, more = _walk_and_mix(
                f, factor, at + key_tile, (row < queries) & (column + key_tile < pitch), v_tiles, now, key_tile, shared,
                mixed, p_scale, p_lo, p_hi, largest, with_mask, ternary, key_tile, width,
            )  # fmt: skip
            fired += more
        tl.debug_barrier()  # in the next step another thread may read the tracers
        tl.atomic_add(p_counts_ptr + step * samples + counted, fired + spoilt, sem="relaxed")

        before = o_tracer
        largest = tl.where(step >= o_held, o_max_spike, 0.0)
        o_tracer = next_tracer(mixed * mix_factor, o_tracer, o_scale, o_lo, o_hi, largest, ternary)
        out_tiles.store([now, first_query, own], o_tracer.to(tl.int8).reshape(1, query_tile, width))
        fired = tl.sum(tl.sum(tl.abs(o_tracer - before), axis=1), axis=0)
        tl.atomic_add(o_counts_ptr + step * samples + counted, fired, sem="relaxed")


def fits(q: Tensor, k: Tensor) -> bool:
    """Whether the kernel takes such tensors: few enough keys, and a width that is a power of two.

    Example:
        >>> fits(torch.zeros(1, 197, 6, 64), torch.zeros(1, 197, 6, 64))
        True
    """
    width = q.shape[-1]
    return k.shape[-3] <= MOST_KEYS and 32 <= width <= MOST_WIDTH and width & (width - 1) == 0


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    p: Layer,
    o: Layer,
    score_factor: Tensor,
    mix_factor: Tensor,
    max_spike: int,
    samples: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes `[T, B, tokens, heads, d]` of the output, the last codes of the probabilities, both counts `[T, samples]`.

    `q`, `k` and `v` are int8 codes `[T, B, tokens, heads, d]`, of fewer heads for `k` and `v` where queries share them.
    The mask `[masks, queries, keys]` is added to the scores, sample b getting mask `b % masks`. B may be a multiple of
    the samples: windows of an image, say.
    """
    steps, batch, queries, heads, width = q.shape
    keys, shared = k.shape[2:4]
    key_tile = min(max(triton.next_power_of_2(keys), 32), MOST_KEYS // 2)
    out = torch.empty(q.shape, dtype=torch.int8, device=q.device)
    p_tracer = _padded(p.tracer.flatten(0, 1), 16, fresh=True)
    p_counts, o_counts = torch.zeros(2, steps, samples, device=q.device)
    seen = torch.empty(1, 1, 4, device=q.device) if mask is None else _padded(mask, 4)

    def tiles(x: Tensor, channels: int, rows: int, columns: int) -> TensorDescriptor:
        return TensorDescriptor.from_tensor(x.contiguous().view(-1, x.shape[-3], channels), [1, rows, columns])

    with torch.cuda.device_of(q):
        _attention_kernel[(triton.cdiv(queries, QUERIES), batch * heads)](
            tiles(q, heads * width, QUERIES, width), tiles(k, shared * width, key_tile, width),
            tiles(v, shared * width, key_tile, width),
            TensorDescriptor.from_tensor(seen, [1, QUERIES, key_tile]),
            tiles(o.tracer, heads * width, QUERIES, width), tiles(out, heads * width, QUERIES, width),
            p_tracer, p_counts, o_counts, p.scale, o.scale, score_factor, mix_factor,
            steps, batch, samples, heads, heads // shared, queries, keys, p_tracer.shape[-1], len(seen),
            *_limits(p, max_spike), *_limits(o, max_spike),
            with_mask=mask is not None, ternary=max_spike == 1 and not p.held and not o.held,
            two=keys > key_tile, unit_of_sum=units(keys),
            query_tile=QUERIES, key_tile=key_tile, width=width, num_warps=4, num_stages=1, enable_fp_fusion=False,
        )  # fmt: skip
    return out, p_tracer[..., :keys].view(p.tracer.shape), p_counts, o_counts


def _padded(x: Tensor, multiple: int, fresh: bool = False) -> Tensor:
    """Rows that begin at multiples of 16 bytes, as tiles need it: the tensor itself where they do, unless `fresh`."""
    *rows, columns = x.shape
    pitch = -(-columns // multiple) * multiple
    lies_so = x.stride(-1) == 1 and x.stride(-2) == pitch and x.stride(0) == pitch * x.shape[1]
    if lies_so and not fresh:
        return x.as_strided((*rows, pitch), x.stride()) if pitch == columns else x.as_strided(x.shape, x.stride())
    room = torch.zeros(*rows, pitch, dtype=x.dtype, device=x.device)
    room[..., :columns] = x
    return room


def _limits(layer: Layer, max_spike: int) -> tuple[float, float, float, float]:
    return float(layer.lo), float(layer.hi), float(min(max_spike, layer.hi - layer.lo)), float(layer.held)
