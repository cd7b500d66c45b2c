"""Attention of a chunk of steps as one GPU kernel: scores, softmax, both layers of neurons and the mix.

A program holds a block of queries of one head through all steps. Of scores and probabilities nothing reaches the
memory but the tracers, one byte each. Equal to the same work in pieces: both products are sums of integers, softmax has
no order (`ops/softmax`), and the rest is done to each value by itself.

There are two of them. Up to `MOST_KEYS` keys, a step has all its scores at once, and tracers stay in registers. With
more, a step goes over the keys three times (largest score, sum, neurons), and tracers lie in the cache.

Once queries, keys and values stay as they are for the rest of a chunk, and a step has fired nothing though all were
free to, no step after it fires: a program then stores its codes and computes nothing.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from spikezip.ops.rounding.triton import unit
from spikezip.ops.sesa.triton_steps import last_move, pack, step_at_once, step_in_passes, store_codes, unpack

QUERIES, KEYS = 64, 64  # that a program handles at once
WARPS, STAGES = 4, 2
MOST_KEYS = 256  # at once: tracers of four tiles of keys go into one register; more would need more of them
MOST_WIDTH = 128


class Layer(NamedTuple):
    """The neurons of a site: tracer before, scale, range, and how many steps they are held back."""

    tracer: Tensor
    scale: Tensor
    lo: int
    hi: int
    held: int


_COUNTS = ["begin", "steps", "batch", "samples", "heads", "groups", "queries", "keys", "masks"]


@triton.jit(do_not_specialize=_COUNTS)  # compiled once for all numbers of them
def _attention_kernel(
    q_tiles, k_tiles, v_tiles, mask_tiles, p_tiles, p_out_tiles, k_tails, v_tails, mask_tails, p_tails, p_out_tails,
    o_tiles, out_tiles, p_counts_ptr, o_counts_ptr, p_scale_ptr, o_scale_ptr, score_factor_ptr, mix_factor_ptr,
    q_moved_ptr, k_moved_ptr, v_moved_ptr, begin, steps, batch, samples, heads, groups, queries, keys, masks,
    p_hi, p_max_spike, p_held, o_lo, o_hi, o_max_spike, o_held,
    with_mask: tl.constexpr, ternary: tl.constexpr, resting: tl.constexpr,
    tiles: tl.constexpr, tail: tl.constexpr, ragged: tl.constexpr, query_tile: tl.constexpr, key_tile: tl.constexpr,
    width: tl.constexpr,
):  # fmt: skip
    sample, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    first_query = begin + tl.program_id(0) * query_tile
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
    o_tracer = pack(o_tracer, query_tile, width)  # two to a register

    # Tracers of up to four whole tiles of keys, a byte each; then those of a narrow tile for the last few keys.
    packed = tl.zeros((query_tile, key_tile), dtype=tl.int32)
    for j in tl.static_range(tiles):
        tracer = p_tiles.load([tl.program_id(1), first_query, j * key_tile]).reshape(query_tile, key_tile)
        packed |= tracer.to(tl.int32) << 8 * j
    last = packed
    if tail:
        tracer = p_tails.load([tl.program_id(1), first_query, tiles * key_tile]).reshape(query_tile, tail)
        last = tracer.to(tl.int32)

    until = steps  # after which queries, keys and values stay as they are
    if resting:
        until = last_move(q_moved_ptr, k_moved_ptr, v_moved_ptr, steps, samples, counted)
    for step in range(until):
        packed, last, o_tracer, _ = step_at_once(
            step, packed, last, o_tracer, q_tiles, k_tiles, v_tiles, mask_tiles, k_tails, v_tails, mask_tails,
            out_tiles, p_counts_ptr, o_counts_ptr, sample, batch, samples, counted, which_mask, first_query, own,
            shared, keys, score_factor, mix_factor, power, spoilt, p_scale, p_hi, p_max_spike, p_held, o_scale, o_lo,
            o_hi, o_max_spike, o_held, with_mask, ternary, tiles, tail, ragged, query_tile, key_tile,
            width,
        )  # fmt: skip
    if resting:  # a step that fires nothing is followed by such steps only, unless somebody was held back in it
        busy = tl.full((), 1, tl.int1)
        for step in range(until, steps):
            if busy:
                packed, last, o_tracer, fired = step_at_once(
                    step, packed, last, o_tracer, q_tiles, k_tiles, v_tiles, mask_tiles, k_tails, v_tails, mask_tails,
                    out_tiles, p_counts_ptr, o_counts_ptr, sample, batch, samples, counted, which_mask, first_query,
                    own, shared, keys, score_factor, mix_factor, power, spoilt, p_scale, p_hi, p_max_spike, p_held,
                    o_scale, o_lo, o_hi, o_max_spike, o_held, with_mask, ternary, tiles, tail, ragged,
                    query_tile, key_tile, width,
                )  # fmt: skip
                busy = (fired != 0.0) | (step < tl.maximum(p_held, o_held))
            else:  # the codes of the last step once more; counts are zero already
                still = unpack(o_tracer, query_tile, width)
                store_codes(still, out_tiles, step * batch + sample, first_query, own, query_tile, width)

    for j in tl.static_range(tiles):
        tracer = ((packed >> 8 * j) & 255).to(tl.int8).reshape(1, query_tile, key_tile)
        p_out_tiles.store([tl.program_id(1), first_query, j * key_tile], tracer)
    if tail:
        tracer = last.to(tl.int8).reshape(1, query_tile, tail)
        p_out_tails.store([tl.program_id(1), first_query, tiles * key_tile], tracer)


@triton.jit(do_not_specialize=_COUNTS)
def _long_kernel(
    q_tiles, k_tiles, v_tiles, mask_tiles, p_ptr, o_tiles, out_tiles,
    p_counts_ptr, o_counts_ptr, p_scale_ptr, o_scale_ptr, score_factor_ptr, mix_factor_ptr,
    q_moved_ptr, k_moved_ptr, v_moved_ptr, begin, steps, batch, samples, heads, groups, queries, keys, masks, pitch,
    p_hi, p_max_spike, p_held, o_lo, o_hi, o_max_spike, o_held,
    with_mask: tl.constexpr, ternary: tl.constexpr, resting: tl.constexpr,
    query_tile: tl.constexpr, key_tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    sample, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    first_query = begin + tl.program_id(0) * query_tile
    own, shared = head * width, head // groups * width
    which_mask, counted = sample % masks, sample * samples // batch
    p_scale, p_first, p_second = unit(tl.load(p_scale_ptr))
    o_scale, o_first, o_second = unit(tl.load(o_scale_ptr))
    score_factor, mix_factor = tl.load(score_factor_ptr), tl.load(mix_factor_ptr)
    spoilt = (score_factor - score_factor) + (mix_factor - mix_factor)
    mix_factor = mix_factor * o_first * o_second
    row = first_query + tl.arange(0, query_tile)[:, None]
    power = tl.where(row < queries, p_first * p_second, 0.0)
    o_tracer = o_tiles.load([sample, first_query, own]).reshape(query_tile, width).to(tl.float32)
    tracers = p_ptr + (tl.program_id(1).to(tl.int64) * queries + row) * pitch

    until = steps
    if resting:
        until = last_move(q_moved_ptr, k_moved_ptr, v_moved_ptr, steps, samples, counted)
    for step in range(until):
        o_tracer, _ = step_in_passes(
            step, o_tracer, tracers, row, pitch, q_tiles, k_tiles, v_tiles, mask_tiles, out_tiles, p_counts_ptr,
            o_counts_ptr, sample, batch, samples, counted, which_mask, first_query, own, shared, queries, keys,
            score_factor, mix_factor, power, spoilt, p_scale, p_hi, p_max_spike, p_held, o_scale, o_lo, o_hi,
            o_max_spike, o_held, with_mask, ternary, query_tile, key_tile, width,
        )  # fmt: skip
    if resting:
        busy = tl.full((), 1, tl.int1)
        for step in range(until, steps):
            if busy:
                o_tracer, fired = step_in_passes(
                    step, o_tracer, tracers, row, pitch, q_tiles, k_tiles, v_tiles, mask_tiles, out_tiles, p_counts_ptr,
                    o_counts_ptr, sample, batch, samples, counted, which_mask, first_query, own, shared, queries, keys,
                    score_factor, mix_factor, power, spoilt, p_scale, p_hi, p_max_spike, p_held, o_scale, o_lo, o_hi,
                    o_max_spike, o_held, with_mask, ternary, query_tile, key_tile, width,
                )  # fmt: skip
                busy = (fired != 0.0) | (step < tl.maximum(p_held, o_held))
            else:
                store_codes(o_tracer, out_tiles, step * batch + sample, first_query, own, query_tile, width)


@triton.jit
def _halves_kernel(codes_ptr, out_ptr, size, block: tl.constexpr):
    here = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    tl.store(out_ptr + here, tl.load(codes_ptr + here, mask=here < size).to(tl.float16), mask=here < size)


def fits(q: Tensor) -> bool:
    """Whether the kernels take such tensors: of a width that is a power of two.

    Example:
        >>> fits(torch.zeros(1, 197, 6, 64)), fits(torch.zeros(1, 197, 6, 48))
        (True, False)
    """
    width = q.shape[-1]
    return 32 <= width <= MOST_WIDTH and width & (width - 1) == 0


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
    moved: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes `[T, B, tokens, heads, d]` of the output, the last codes of the probabilities, both counts `[T, samples]`.

    `q`, `k` and `v` are int8 codes `[T, B, tokens, heads, d]`, of fewer heads for `k` and `v` where queries share them.
    The mask `[masks, queries, keys]` is added to the scores, sample b getting mask `b % masks`. B may be a multiple of
    the samples: windows of an image, say. `in_place` puts the last codes of the probabilities where the first were, if
    these lie as tiles need it. `moved` are the spikes `[T, samples]` of `q`, `k` and `v`: where all are zero, codes are
    taken to be those of the step before, and programs of neurons that have come to rest compute nothing.
    """
    steps, batch, queries, heads, width = q.shape
    keys, shared = k.shape[2:4]
    out = torch.empty(q.shape, dtype=torch.int8, device=q.device)
    q, k, o_before = q.contiguous(), k.contiguous(), o.tracer.contiguous()
    p_before = _padded(p.tracer.flatten(0, 1), 16)
    p_counts, o_counts = torch.zeros(2, steps, samples, device=q.device)
    seen = torch.empty(1, 1, 4, device=q.device) if mask is None else _padded(mask, 4)
    halves = _halves(v)  # tensor cores want the keys of int8 values side by side, those of halves as they lie

    def tiles(x: Tensor, channels: int, size: int) -> TensorDescriptor:
        return TensorDescriptor.from_tensor(x.view(-1, x.shape[-3], channels), [1, size, width])

    def square(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
        return TensorDescriptor.from_tensor(x, [1, rows, columns])

    def of_keys(rows: int, size: int) -> tuple[TensorDescriptor, ...]:
        return tiles(k, shared * width, size), tiles(halves, shared * width, size), square(seen, rows, size)

    channels = heads * width
    moves = [x.contiguous() for x in moved] or [p_counts] * 3
    scales = (p_counts, o_counts, p.scale, o.scale, score_factor, mix_factor, *moves)
    counts = (steps, batch, samples, heads, heads // shared, queries, keys, len(seen))
    limits = (*_limits(p, max_spike)[1:], *_limits(o, max_spike))
    fixed = {
        "with_mask": mask is not None, "ternary": max_spike == 1 and not p.held and not o.held,
        "resting": len(moved) > 0, "width": width,
        "num_warps": WARPS, "num_stages": STAGES, "enable_fp_fusion": False,
    }  # fmt: skip
    at_once = keys <= MOST_KEYS
    p_last = p_before if in_place else torch.empty_like(p_before) if at_once else p_before.clone()

    def launch(begin: int, programs: int, rows: int) -> None:
        own, outputs = tiles(q, channels, rows), (tiles(o_before, channels, rows), tiles(out, channels, rows))
        if at_once:
            size, whole, tail = _key_tiles(keys, rows)
            _attention_kernel[programs, batch * heads](
                own, *of_keys(rows, size), square(p_before, rows, size), square(p_last, rows, size),
                *of_keys(rows, tail or size), square(p_before, rows, tail or size), square(p_last, rows, tail or size),
                *outputs, *scales, begin, *counts, *limits, tiles=whole, tail=tail, ragged=keys % size > 0,
                query_tile=rows, key_tile=size, **fixed,
            )  # fmt: skip
        else:
            _long_kernel[programs, batch * heads](
                own, *of_keys(rows, KEYS), p_last, *outputs, *scales, begin, *counts, p_last.shape[-1], *limits,
                query_tile=rows, key_tile=KEYS, **fixed,
            )  # fmt: skip

    with torch.cuda.device_of(q):
        _side_by_side([partial(launch, *part) for part in _query_tiles(queries)], q.device)
    return out, p_last[..., :keys].view(p.tracer.shape), p_counts, o_counts


def _halves(codes: Tensor) -> Tensor:
    codes = codes.contiguous()
    out = torch.empty(codes.shape, dtype=torch.float16, device=codes.device)
    _halves_kernel[(triton.cdiv(codes.numel(), 8192),)](codes, out, codes.numel(), block=8192)
    return out


def _query_tiles(queries: int) -> list[tuple[int, int, int]]:
    """Where tiles of queries begin, how many there are, and of what size: a smaller one for the last few queries.

    Example:
        >>> _query_tiles(197), _query_tiles(256), _query_tiles(100), _query_tiles(9)
        ([(0, 3, 64), (192, 1, 16)], [(0, 4, 64)], [(0, 2, 64)], [(0, 1, 16)])
    """
    whole, left = divmod(queries, QUERIES)
    if left > QUERIES // 2:
        return [(0, whole + 1, QUERIES)]
    last = [(whole * QUERIES, 1, triton.next_power_of_2(max(left, 16)))] if left else []
    return [(0, whole, QUERIES)] * (whole > 0) + last


def _side_by_side(launches: list[Callable[[], None]], device: torch.device) -> None:
    """Several kernels at the same time: where the programs of the first no longer fill the GPU, those of others do."""
    if device.type != "cuda":
        for launch in launches:
            launch()
        return
    here, *others = torch.cuda.current_stream(device), *(_stream(device, i) for i in range(1, len(launches)))
    for other in others:
        other.wait_stream(here)
    for stream, launch in zip([here, *others], launches, strict=True):
        with torch.cuda.stream(stream):
            launch()
    for other in others:
        here.wait_stream(other)


@cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _key_tiles(keys: int, rows: int) -> tuple[int, int, int]:
    """How large tiles of keys are, how many there are, and how wide a narrow one after them is: for a few, or none.

    Few queries take all keys as one tile: they wait for fewer of them, and have the registers.

    Example:
        >>> _key_tiles(197, 64), _key_tiles(256, 64), _key_tiles(40, 64), _key_tiles(9, 64), _key_tiles(197, 16)
        ((64, 3, 16), (64, 4, 0), (64, 1, 0), (64, 0, 16), (256, 1, 0))
    """
    if rows < QUERIES:
        return triton.next_power_of_2(max(keys, 16)), 1, 0
    whole, left = divmod(keys, KEYS)
    if left > KEYS // 2:
        return KEYS, whole + 1, 0
    return KEYS, whole, triton.next_power_of_2(max(left, 16)) if left else 0


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
