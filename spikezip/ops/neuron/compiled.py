"""A chunk of steps through a layer of neurons as a compiled loop: read the running sums once, write the tracers once.

A quotient `u · (1/s)` in float32 decides all codes but near-ties (error bound in `../rounding/README.md`). A row that
holds one is done again, by the reference's own rule in float64. What follows is small integers.
"""

import numpy as np
import torch
from torch import Tensor

from spikezip.ops.compiled import jit, share
from spikezip.ops.rounding.fast import tie_margin

BLOCK = 1024  # neurons: what is carried from step to step stays in the first cache
_MAGIC = np.float32(3 * 2**22)  # added to a small float32 and taken away again, it rounds to the nearest integer


# Rows of the table that a block reads its channels' constants from: one array, since every further one makes it harder
# for the compiler to see that none overlaps with another.
_INVERSE, _SCALE, _FACTOR, _BIAS = range(4)


@jit
def _row(u, table, state, lo, hi, most, limit, codes):
    """One step of a block in float32: the spikes, or −1 if a near-tie (or a NaN) was met.

    Written so that it becomes vector code: few arrays, no calls, no sum of floats.
    """
    # Beyond the first and the last code there is nothing to decide, and so no tie.
    least, largest = lo - np.float32(0.25), hi + np.float32(0.25)
    fired, ties = np.int32(0), np.int32(0)
    for i in range(u.size):
        quotient = u[i] * table[_INVERSE, i]
        quotient = least if quotient < least else quotient
        quotient = largest if quotient > largest else quotient
        code = (quotient + _MAGIC) - _MAGIC
        ties |= np.int32(0) if abs(quotient - code) < limit else np.int32(1)
        spike = code - state[i]
        spike = -most if spike < -most else spike
        spike = most if spike > most else spike
        now = state[i] + spike
        state[i] = now
        codes[i] = np.int8(now)
        fired += abs(np.int32(spike))
    return np.int32(-1) if ties else fired


@jit
def _row_of_product(total, table, u):
    """The running sums of integer sums: each product and each sum is rounded, as torch does it."""
    for i in range(u.size):
        u[i] = np.float32(total[i]) * table[_FACTOR, i] + table[_BIAS, i]


@jit
def _row_by_the_rule(u, table, before, state, lo, hi, most, codes):
    """As `_row` in float64, as the reference has it: the spikes, or −1 if a NaN was met."""
    fired = np.int32(0)
    for i in range(u.size):
        code = np.floor(np.float64(u[i]) / np.float64(table[_SCALE, i]) + 0.5)
        if np.isnan(code):
            return np.int32(-1)
        wanted = np.float32(min(max(code, np.float64(lo)), np.float64(hi))) - before[i]
        spike = min(max(wanted, -most), most)
        state[i] = before[i] + spike
        codes[i] = np.int8(state[i])
        fired += np.int32(abs(spike))
    return fired


@jit
def _blocks(u, total, tracer, constants, lo, hi, most, limit, each, first, last, codes, counts):
    """Blocks `first … last` of neurons through all steps; False if a NaN was met.

    Either the running sums `u` are given, or, if that is empty, the integer sums `total` they are made of. All steps
    lie one after another in one dimension: of such an array numba knows that a part of it lies in one piece, and makes
    vector code.
    """
    per_sample = -(-each // BLOCK)
    state, before = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    sums = np.empty(BLOCK, np.float32)
    table = np.empty((4, BLOCK), np.float32)
    channels, of_product = constants.shape[1], u.size == 0
    neurons = tracer.size
    for row in range(4):
        table[row] = constants[row, 0]
    for block in range(first, last):
        sample = block // per_sample
        start = sample * each + (block % per_sample) * BLOCK
        size = min(BLOCK, (sample + 1) * each - start)
        if channels > 1:
            channel, done = start % channels, 0
            while done < size:  # a stretch of channels, up to the last
                stretch = min(size - done, channels - channel)
                for row in range(4):
                    for i in range(stretch):
                        table[row, done + i] = constants[row, channel + i]
                done, channel = done + stretch, 0
        for i in range(size):
            state[i] = tracer[start + i]
        for t in range(counts.shape[0]):
            here = t * neurons + start
            if of_product:
                _row_of_product(total[here : here + size], table, sums[:size])
                row_u = sums[:size]
            else:
                row_u = u[here : here + size]
            now = codes[here : here + size]
            for i in range(size):  # (an assignment of slices would make a copy first)
                before[i] = state[i]
            fired = _row(row_u, table, state, lo, hi, most, limit, now)
            if fired < 0:
                fired = _row_by_the_rule(row_u, table, before, state, lo, hi, most, now)
                if fired < 0:
                    return False
            counts[t, sample] += fired
    return True


def walk(
    u: Tensor,
    tracer: Tensor,
    scale: Tensor,
    lo: int,
    hi: int,
    max_spike: int,
    samples: int,
    after: tuple[Tensor, Tensor | None] | None = None,
) -> tuple[Tensor, Tensor] | None:
    """As `fast.walk`, for contiguous sums on the CPU, int8 tracers and scales with a normal inverse.

    None if a sum is NaN: no integer stands for that.

    Example:
        >>> u = torch.tensor([[2.2, -1.0], [2.2, -1.0], [2.2, 0.0]])
        >>> walk(u, torch.zeros(2, dtype=torch.int8), torch.tensor(1.0), -4, 3, 1, samples=2)[0].tolist()
        [[1, -1], [2, -1], [2, 0]]
    """
    steps, neurons = u.shape
    each = neurons // samples
    pieces = -(-each // BLOCK) * samples
    codes = torch.empty(u.shape, dtype=torch.int8)
    counts: list[Tensor] = []
    finite: list[bool] = []
    limits = (np.float32(lo), np.float32(hi), np.float32(min(max_spike, hi - lo)), np.float32(0.5 - tie_margin(lo, hi)))
    constants = _constants(scale, after)
    floats, integers = (u.view(-1), _NO_INTEGERS) if after is None else (_NO_FLOATS, u.view(-1))
    given = (floats.numpy(), integers.numpy(), tracer.contiguous().numpy(), constants.numpy(), *limits, each)
    written = codes.view(-1).numpy()

    def work(first: int, last: int) -> None:
        own = torch.zeros(steps, samples, dtype=torch.int64)
        counts.append(own)
        finite.append(_blocks(*given, first, last, written, own.numpy()))

    share(work, pieces, u.numel())
    return (codes, torch.stack(counts).sum(dim=0)) if all(finite) else None


_NO_FLOATS, _NO_INTEGERS = torch.empty(0), torch.empty(0, dtype=torch.int32)


def _constants(scale: Tensor, after: tuple[Tensor, Tensor | None] | None) -> Tensor:
    """The table's rows `[4, channels]`; one channel stands for all of them, where they are alike."""
    scale = scale.reshape(-1)
    factor, bias = (torch.ones_like(scale), None) if after is None else after
    bias = torch.full_like(factor, -0.0) if bias is None else bias  # adding −0 changes nothing
    channels = max(len(scale), len(factor))
    return torch.stack([row.expand(channels) for row in (1 / scale, scale, factor, bias)])
