"""A step of attention inside a GPU kernel, for a block of queries: scores, softmax, both layers of neurons, the mix.

In two forms. With all scores at once, tracers of the probabilities stay in registers from step to step. In passes over
the keys there may be any number of them, and tracers lie in the memory, or rather in the cache.
"""

import triton
import triton.language as tl

from spikezip.ops.rounding.triton import next_spike, to_code
from spikezip.ops.softmax.triton import exponentials, of_rows, row_factor, sums, whole_sum


@triton.jit
def nothing():
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
def _walk_and_mix(e, factor, packed, v_tiles, now, first_key, shared, mixed, fired, scale, hi, max_spike,
    ternary: tl.constexpr, shift: tl.constexpr, key_tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Neurons of a tile of probabilities, and what they add to the mix and to the spikes of each query.

    The tracers of the tile lie in one byte of the packed ones: so they stay in registers from step to step.
    """
    before = ((packed >> shift) & 255).to(tl.float32)
    spike = next_spike(e * factor, before, scale, 0.0, hi, max_spike, ternary, True)
    # The lowest bits of such a float are a whole number.
    packed += ((spike + 12582912.0).to(tl.int32, bitcast=True) - 1262485504) << shift
    v = v_tiles.load([now, first_key, shared]).reshape(key_tile, width)
    mixed = tl.dot((before + spike).to(tl.float16), v, mixed, out_dtype=tl.float32)
    return mixed, packed, fired + tl.sum(tl.abs(spike), axis=1)


@triton.jit
def _not_a_number(factor, with_mask: tl.constexpr, query_tile: tl.constexpr):
    """Zeros to count from; NaN for a row of nothing but minus infinity, or with a mask that is not a number."""
    if with_mask:
        return tl.sum(tl.where(factor == factor, 0.0, factor), axis=1)
    return tl.zeros((query_tile,), dtype=tl.float32)


@triton.jit
def store_codes(tracer, out_tiles, now, first_query, own, query_tile: tl.constexpr, width: tl.constexpr):
    out_tiles.store([now, first_query, own], to_code(tracer).reshape(1, query_tile, width))


@triton.jit
def pack(tracer, query_tile: tl.constexpr, width: tl.constexpr):
    """Tracers of neighbours in one register, 16 bits each: what is held from step to step must leave room for the rest.

    The lowest bits of such floats are whole numbers.
    """
    low, high = tl.split((tracer + 12582912.0).to(tl.int32, bitcast=True).reshape(query_tile, width // 2, 2))
    return (low & 65535) | (high << 16)


@triton.jit
def unpack(packed, query_tile: tl.constexpr, width: tl.constexpr):
    return tl.join((packed << 16) >> 16, packed >> 16).reshape(query_tile, width).to(tl.float32)


@triton.jit
def _fire(mixed, factor, tracer, scale, lo, hi, largest, out_tiles, now, first_query, own, counts_ptr,
    ternary: tl.constexpr, query_tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Neurons of the mix: their codes and counts are stored. Returns their tracers, and what they fired together."""
    spike = next_spike(mixed * factor, tracer, scale, lo, hi, largest, ternary, False)
    tracer += spike
    store_codes(tracer, out_tiles, now, first_query, own, query_tile, width)
    fired = tl.sum(tl.sum(tl.abs(spike), axis=1), axis=0)
    tl.atomic_add(counts_ptr, fired, sem="relaxed")
    return tracer, fired


@triton.jit
def _any_moves(q_moved_ptr, k_moved_ptr, v_moved_ptr, at):
    """Whether queries, keys or values change in a step. A count that is not a number differs from zero."""
    return (tl.load(q_moved_ptr + at) != 0.0) | (tl.load(k_moved_ptr + at) != 0.0) | (tl.load(v_moved_ptr + at) != 0.0)


@triton.jit
def last_move(q_moved_ptr, k_moved_ptr, v_moved_ptr, steps, samples, counted):
    """The number of steps up to the last one in which a sample's queries, keys or values change: one at least."""
    until = steps
    some = _any_moves(q_moved_ptr, k_moved_ptr, v_moved_ptr, (until - 1) * samples + counted)
    while (until > 1) & (some == 0):
        until -= 1
        some = _any_moves(q_moved_ptr, k_moved_ptr, v_moved_ptr, (until - 1) * samples + counted)
    return until


@triton.jit
def step_at_once(
    step, packed, last, o_tracer, q_tiles, k_tiles, v_tiles, mask_tiles, k_tails, v_tails, mask_tails,
    out_tiles, p_counts_ptr, o_counts_ptr, sample, batch, samples, counted, which_mask, first_query, own,
    shared, keys, score_factor, mix_factor, power, spoilt, p_scale, p_hi, p_max_spike, p_held, o_scale, o_lo,
    o_hi, o_max_spike, o_held, with_mask: tl.constexpr, ternary: tl.constexpr,
    tiles: tl.constexpr, tail: tl.constexpr, ragged: tl.constexpr, query_tile: tl.constexpr, key_tile: tl.constexpr,
    width: tl.constexpr,
):  # fmt: skip
    """A step with all scores at once. Returns the tracers, and what was fired; a NaN if something is not a number."""
    now = step * batch + sample
    q = q_tiles.load([now, first_query, own]).reshape(query_tile, width)
    most = tl.full((query_tile, 1), float("-inf"), dtype=tl.float32)
    x = nothing()
    for j in tl.static_range(tiles):
        scores, most = _scores(
            q, k_tiles, mask_tiles, now, which_mask, first_query, j * key_tile, shared, keys, score_factor,
            most, with_mask, ragged and j == tiles - 1, query_tile, key_tile, width,
        )  # fmt: skip
        x += (scores,)
    if tail:
        scores, most = _scores(
            q, k_tails, mask_tails, now, which_mask, first_query, tiles * key_tile, shared, keys, score_factor,
            most, with_mask, True, query_tile, tail, width,
        )  # fmt: skip
        x += (scores,)
    e = nothing()
    shift, lowest, bits = of_rows(most)
    low, nearly = tl.zeros((query_tile, 1), dtype=tl.int32), tl.zeros((query_tile, 1), dtype=tl.float32)
    for j in tl.static_range(tiles + (tail > 0)):
        e += (exponentials(x[j], shift, lowest, bits),)
        some_low, some_nearly = sums(e[j])
        low += some_low
        nearly += some_nearly
    factor = row_factor(whole_sum(low, nearly), most) * power
    largest = tl.where(step >= p_held, p_max_spike, 0.0)
    mixed = tl.zeros((query_tile, width), dtype=tl.float32)
    fired = _not_a_number(factor, with_mask, query_tile)
    for j in tl.static_range(tiles):
        mixed, packed, fired = _walk_and_mix(
            e[j], factor, packed, v_tiles, now, j * key_tile, shared, mixed, fired, p_scale, p_hi, largest,
            ternary, 8 * j, key_tile, width,
        )  # fmt: skip
    if tail:
        mixed, last, fired = _walk_and_mix(
            e[tiles], factor, last, v_tails, now, tiles * key_tile, shared, mixed, fired, p_scale, p_hi, largest,
            ternary, 0, tail, width,
        )  # fmt: skip
    p_fired = tl.sum(fired, axis=0) + spoilt
    tl.atomic_add(p_counts_ptr + step * samples + counted, p_fired, sem="relaxed")
    o_tracer, o_fired = _fire(
        mixed, mix_factor, unpack(o_tracer, query_tile, width), o_scale, o_lo, o_hi,
        tl.where(step >= o_held, o_max_spike, 0.0), out_tiles,
        now, first_query, own, o_counts_ptr + step * samples + counted, ternary, query_tile, width,
    )  # fmt: skip
    return packed, last, pack(o_tracer, query_tile, width), p_fired + o_fired


@triton.jit
def step_in_passes(
    step, o_tracer, tracers, row, pitch, q_tiles, k_tiles, v_tiles, mask_tiles, out_tiles, p_counts_ptr,
    o_counts_ptr, sample, batch, samples, counted, which_mask, first_query, own, shared, queries, keys,
    score_factor, mix_factor, power, spoilt, p_scale, p_hi, p_max_spike, p_held, o_scale, o_lo, o_hi,
    o_max_spike, o_held, with_mask: tl.constexpr, ternary: tl.constexpr,
    query_tile: tl.constexpr, key_tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """A step in three passes over the keys. Returns the tracers of the output, and what was fired."""
    now = step * batch + sample
    q = q_tiles.load([now, first_query, own]).reshape(query_tile, width)
    most = tl.full((query_tile, 1), float("-inf"), dtype=tl.float32)
    for first_key in range(0, keys, key_tile):
        _, most = _scores(
            q, k_tiles, mask_tiles, now, which_mask, first_query, first_key, shared, keys, score_factor, most,
            with_mask, True, query_tile, key_tile, width,
        )  # fmt: skip
    shift, lowest, bits = of_rows(most)
    total = tl.zeros((query_tile, 1), dtype=tl.float64)
    for first_key in range(0, keys, key_tile):
        x, _ = _scores(
            q, k_tiles, mask_tiles, now, which_mask, first_query, first_key, shared, keys, score_factor, most,
            with_mask, True, query_tile, key_tile, width,
        )  # fmt: skip
        low, nearly = sums(exponentials(x, shift, lowest, bits))
        total += whole_sum(low, nearly)
    factor = row_factor(total, most) * power
    largest = tl.where(step >= p_held, p_max_spike, 0.0)
    mixed = tl.zeros((query_tile, width), dtype=tl.float32)
    fired = _not_a_number(factor, with_mask, query_tile)
    for first_key in range(0, keys, key_tile):
        x, _ = _scores(
            q, k_tiles, mask_tiles, now, which_mask, first_query, first_key, shared, keys, score_factor, most,
            with_mask, True, query_tile, key_tile, width,
        )  # fmt: skip
        column = (first_key + tl.arange(0, key_tile))[None, :]
        inside = (row < queries) & (column < pitch)  # not at the last key: a thread moves 16 bytes at once
        before = tl.load(tracers + column, mask=inside, other=0).to(tl.int32)
        mixed, tracer, fired = _walk_and_mix(
            exponentials(x, shift, lowest, bits), factor, before, v_tiles, now, first_key, shared, mixed, fired,
            p_scale, p_hi, largest, ternary, 0, key_tile, width,
        )  # fmt: skip
        tl.store(tracers + column, tracer.to(tl.int8), mask=inside)
    p_fired = tl.sum(fired, axis=0) + spoilt
    tl.atomic_add(p_counts_ptr + step * samples + counted, p_fired, sem="relaxed")
    o_tracer, o_fired = _fire(
        mixed, mix_factor, o_tracer, o_scale, o_lo, o_hi, tl.where(step >= o_held, o_max_spike, 0.0), out_tiles,
        now, first_query, own, o_counts_ptr + step * samples + counted, ternary, query_tile, width,
    )  # fmt: skip
    tl.debug_barrier()  # the tracers are read again, perhaps by another thread
    return o_tracer, p_fired + o_fired
