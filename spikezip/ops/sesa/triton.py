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

from spikezip.ops.rounding.triton import next_spike, unit
from spikezip.ops.softmax.reference import units
from spikezip.ops.softmax.triton import exponentials, row_factor, whole_sum

QUERIES, KEYS = 64, 64  # that a program handles at once
WARPS, STAGES = 4, 2
MOST_KEYS, MOST_WIDTH = 256, 128  # tracers of four tiles of keys go into one register; more would need more of them


class Layer(NamedTuple):
    """The neurons of a site: tracer before, scale, range, and how many steps they are held back."""

    tracer: Tensor
    scale: Tensor
    lo: int
    hi: int
    held: int


@triton.jit
def _nothing():
    """A tuple to add tiles to, of whatever type they are."""
    return ()


@triton.jit
def _scores(q, k_tiles, mask_tiles, now, which_mask, first_query, first_key, shared, keys, factor, most,
    with_mask: tl.constexpr, ragged: tl.constexpr, query_tile: tl.constexpr, key_tile: tl.constexpr,
    width: tl.constexpr,
):  # fmt: skip
    """Scores of a tile of keys, minus infinity past their end; and the largest so far."""
    k = k_tiles.load([now, first_key, shared]).reshape(key_tile, width)
    scores = tl.dot(q, k.T, out_dtype=tl.int32).to(tl.float32) * factor
    if with_mask:
        scores += mask_tiles.load([which_mask, first_query, first_key]).reshape(query_tile, key_tile)
    if ragged:
        scores = tl.where((first_key + tl.arange(0, key_tile) < keys)[None, :], scores, float("-inf"))
    return scores, tl.maximum(most, tl.max(scores, axis=1)[:, None])


@triton.jit
def _walk_and_mix(e, factor, packed, fresh, v_tiles, now, first_key, shared, mixed, fired, scale, hi, max_spike,
    with_mask: tl.constexpr, ternary: tl.constexpr, shift: tl.constexpr, key_tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Neurons of a tile of probabilities, and what they add to the mix and to the spikes of each query.

    The tracers of the tile lie in one byte of the packed ones: so they stay in registers from step to step.
    """
    p = e * factor
    before = ((packed >> shift) & 255).to(tl.float32)
    spike = next_spike(p, before, scale, 0.0, hi, max_spike, ternary, True)
    tracer = before + spike
    # As in `whole_sum`: the lowest bits of such a float are the code.
    fresh += ((tracer + 8388608.0).to(tl.int32, bitcast=True) - 1258291200) << shift
    some = tl.abs(spike)
    if with_mask:  # a row of nothing but minus infinity, or a mask that is not a number
        some += tl.where(p == p, 0.0, p)
    v = v_tiles.load([now, first_key, shared]).reshape(key_tile, width)
    mixed = tl.dot(tracer.to(tl.float16), v, mixed, out_dtype=tl.float32)
    return mixed, fresh, fired + tl.sum(some, axis=1)


_COUNTS = ["steps", "batch", "samples", "heads", "groups", "queries", "keys", "masks"]


@triton.jit(do_not_specialize=_COUNTS)  # compiled once for all numbers of them
def _attention_kernel(
    q_tiles, k_tiles, v_tiles, mask_tiles, p_tiles, p_out_tiles, k_tails, v_tails, mask_tails, p_tails, p_out_tails,
    o_tiles, out_tiles, p_counts_ptr, o_counts_ptr, p_scale_ptr, o_scale_ptr, score_factor_ptr, mix_factor_ptr,
    steps, batch, samples, heads, groups, queries, keys, masks,
    p_hi, p_max_spike, p_held, o_lo, o_hi, o_max_spike, o_held,
    with_mask: tl.constexpr, ternary: tl.constexpr, unit_of_sum: tl.constexpr, tiles: tl.constexpr,
    tail: tl.constexpr, ragged: tl.constexpr, query_tile: tl.constexpr, key_tile: tl.constexpr, width: tl.constexpr,
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
    row = first_query + tl.arange(0, query_tile)[:, None]
    # Queries past the end get probabilities of zero, which fire nothing.
    power = tl.where(row < queries, p_first * p_second, 0.0)
    o_tracer = o_tiles.load([sample, first_query, own]).reshape(query_tile, width).to(tl.float32)

    # Tracers of up to four whole tiles of keys, a byte each; then those of a narrow tile for the last few keys.
    packed = tl.zeros((query_tile, key_tile), dtype=tl.int32)
    for j in tl.static_range(tiles):
        tracer = p_tiles.load([tl.program_id(1), first_query, j * key_tile]).reshape(query_tile, key_tile)
        packed |= tracer.to(tl.int32) << 8 * j
    if tail:
        tracer = p_tails.load([tl.program_id(1), first_query, tiles * key_tile]).reshape(query_tile, tail)
        last = tracer.to(tl.int32)

    for step in range(steps):
        now = step * batch + sample
        q = q_tiles.load([now, first_query, own]).reshape(query_tile, width)
        most = tl.full((query_tile, 1), float("-inf"), dtype=tl.float32)
        x = _nothing()
        for j in tl.static_range(tiles):
            scores, most = _scores(
                q, k_tiles, mask_tiles, now, which_mask, first_query, j * key_tile, shared, keys, score_factor, most,
                with_mask, ragged and j == tiles - 1, query_tile, key_tile, width,
            )  # fmt: skip
            x += (scores,)
        if tail:
            scores, most = _scores(
                q, k_tails, mask_tails, now, which_mask, first_query, tiles * key_tile, shared, keys, score_factor,
                most, with_mask, True, query_tile, tail, width,
            )  # fmt: skip
            x += (scores,)
        e = _nothing()
        total = tl.zeros((query_tile, 1), dtype=tl.int32)
        for j in tl.static_range(tiles + (tail > 0)):
            e += (exponentials(x[j], most),)
            total += whole_sum(e[j], unit_of_sum)
        factor = row_factor(total, unit_of_sum) * power
        largest = tl.where(step >= p_held, p_max_spike, 0.0)
        mixed = tl.zeros((query_tile, width), dtype=tl.float32)
        fired = tl.zeros((query_tile,), dtype=tl.float32)
        fresh = tl.zeros((query_tile, key_tile), dtype=tl.int32)
        for j in tl.static_range(tiles):
            mixed, fresh, fired = _walk_and_mix(
                e[j], factor, packed, fresh, v_tiles, now, j * key_tile, shared, mixed, fired, p_scale, p_hi, largest,
                with_mask, ternary, 8 * j, key_tile, width,
            )  # fmt: skip
        packed = fresh
        if tail:
            mixed, last, fired = _walk_and_mix(
                e[tiles], factor, last, tl.zeros((query_tile, tail), dtype=tl.int32), v_tails, now, tiles * key_tile,
                shared, mixed, fired, p_scale, p_hi, largest, with_mask, ternary, 0, tail, width,
            )  # fmt: skip
        tl.atomic_add(p_counts_ptr + step * samples + counted, tl.sum(fired, axis=0) + spoilt, sem="relaxed")

        largest = tl.where(step >= o_held, o_max_spike, 0.0)
        spike = next_spike(mixed * mix_factor, o_tracer, o_scale, o_lo, o_hi, largest, ternary, False)
        o_tracer += spike
        out_tiles.store([now, first_query, own], o_tracer.to(tl.int8).reshape(1, query_tile, width))
        fired = tl.sum(tl.sum(tl.abs(spike), axis=1), axis=0)
        tl.atomic_add(o_counts_ptr + step * samples + counted, fired, sem="relaxed")

    for j in tl.static_range(tiles):
        tracer = ((packed >> 8 * j) & 255).to(tl.int8).reshape(1, query_tile, key_tile)
        p_out_tiles.store([tl.program_id(1), first_query, j * key_tile], tracer)
    if tail:
        tracer = last.to(tl.int8).reshape(1, query_tile, tail)
        p_out_tails.store([tl.program_id(1), first_query, tiles * key_tile], tracer)


@triton.jit
def _halves_kernel(codes_ptr, out_ptr, size, block: tl.constexpr):
    here = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    tl.store(out_ptr + here, tl.load(codes_ptr + here, mask=here < size).to(tl.float16), mask=here < size)


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
    in_place: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes `[T, B, tokens, heads, d]` of the output, the last codes of the probabilities, both counts `[T, samples]`.

    `q`, `k` and `v` are int8 codes `[T, B, tokens, heads, d]`, of fewer heads for `k` and `v` where queries share them.
    The mask `[masks, queries, keys]` is added to the scores, sample b getting mask `b % masks`. B may be a multiple of
    the samples: windows of an image, say. `in_place` puts the last codes of the probabilities where the first were, if
    these lie as tiles need it.
    """
    steps, batch, queries, heads, width = q.shape
    keys, shared = k.shape[2:4]
    whole, tail = _tiles_of(keys)
    out = torch.empty(q.shape, dtype=torch.int8, device=q.device)
    p_before = _padded(p.tracer.flatten(0, 1), 16)
    p_last = p_before if in_place else torch.empty_like(p_before)
    p_counts, o_counts = torch.zeros(2, steps, samples, device=q.device)
    seen = torch.empty(1, 1, 4, device=q.device) if mask is None else _padded(mask, 4)
    halves = _halves(v)  # tensor cores want the keys of int8 values side by side, those of halves as they lie

    def tiles(x: Tensor, channels: int, rows: int) -> TensorDescriptor:
        return TensorDescriptor.from_tensor(x.contiguous().view(-1, x.shape[-3], channels), [1, rows, width])

    def of_keys(rows: int) -> tuple[TensorDescriptor, ...]:
        by_key = tiles(k, shared * width, rows), tiles(halves, shared * width, rows)
        return *by_key, *(TensorDescriptor.from_tensor(x, [1, QUERIES, rows]) for x in (seen, p_before, p_last))

    with torch.cuda.device_of(q):
        _attention_kernel[(triton.cdiv(queries, QUERIES), batch * heads)](
            tiles(q, heads * width, QUERIES), *of_keys(KEYS), *of_keys(tail or KEYS),
            tiles(o.tracer, heads * width, QUERIES), tiles(out, heads * width, QUERIES),
            p_counts, o_counts, p.scale, o.scale, score_factor, mix_factor,
            steps, batch, samples, heads, heads // shared, queries, keys, len(seen),
            *_limits(p, max_spike)[1:], *_limits(o, max_spike),
            with_mask=mask is not None, ternary=max_spike == 1 and not p.held and not o.held, unit_of_sum=units(keys),
            tiles=whole, tail=tail, ragged=keys % KEYS > 0, query_tile=QUERIES, key_tile=KEYS, width=width,
            num_warps=WARPS, num_stages=STAGES, enable_fp_fusion=False,
        )  # fmt: skip
    return out, p_last[..., :keys].view(p.tracer.shape), p_counts, o_counts


def _halves(codes: Tensor) -> Tensor:
    codes = codes.contiguous()
    out = torch.empty(codes.shape, dtype=torch.float16, device=codes.device)
    _halves_kernel[(triton.cdiv(codes.numel(), 8192),)](codes, out, codes.numel(), block=8192)
    return out


def _tiles_of(keys: int) -> tuple[int, int]:
    """How many tiles of keys there are, and how wide a narrow one after them is: for a few keys, or none.

    Example:
        >>> _tiles_of(197), _tiles_of(256), _tiles_of(40), _tiles_of(9)
        ((3, 16), (4, 0), (1, 0), (0, 16))
    """
    whole, left = divmod(keys, KEYS)
    if left > KEYS // 2:
        return whole + 1, 0
    return whole, triton.next_power_of_2(max(left, 16)) if left else 0


def _padded(x: Tensor, multiple: int) -> Tensor:
    """Rows that begin at multiples of 16 bytes, as tiles need it, with zeros between: as they lie, where they do so."""
    *rows, columns = x.shape
    pitch = -(-columns // multiple) * multiple
    if x.stride() == (pitch * x.shape[1], pitch, 1):
        return x.as_strided((*rows, pitch), x.stride())
    room = torch.zeros(*rows, pitch, dtype=x.dtype, device=x.device)
    room[..., :columns] = x
    return room


def _limits(layer: Layer, max_spike: int) -> tuple[float, float, float, float]:
    return float(layer.lo), float(layer.hi), float(min(max_spike, layer.hi - layer.lo)), float(layer.held)
