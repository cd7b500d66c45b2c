"""One step of a layer of neurons, and what its events add to products, as compiled loops.

Indices are unsigned where they are sums: numba takes a signed one for possibly negative, and makes no vector code.
Integers are cast after every operation, since numba would go on in 64 bits.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

import numpy as np

from spikezip.ops.compiled import jit

_MAGIC = np.float32(3 * 2**22)  # added to a small float32 and taken away again, it rounds to the nearest integer
_U = np.uint64


@jit
def fire(sums, starts, length, table, channels, lo, hi, most, limit, each, before, codes, values, counts, at, by):
    """One step of a layer whose running inputs are `sums · factor + bias`: spikes fired, neurons behind, events found.

    Neurons stand in runs of `length`; run r reads its sums from `starts[r]` on, and its constants from that place's
    channel on: the table has rows for factor, bias, 1/s and s. From the tracer `before` it makes the next, `codes`,
    and, unless there is no room for them, `values`, which are `s·S`. Spikes are added to `counts`, one number for each
    sample of `each` neurons. Places and spikes of those that fired go into `at` and `by`; −1 events were found where
    there is no room for them, −2 if a neuron was given no number. Not 0 neurons are behind if some tracer has not
    reached its code yet.
    """
    least, largest = lo - np.float32(0.25), hi + np.float32(0.25)  # beyond these there is nothing to decide
    down, up = np.int16(-most), np.int16(most)
    size, row = _U(length), _U(table.shape[1])
    constants = table.reshape(-1)
    spikes = np.empty(length, np.int16)
    fired, behind, found = 0, np.int16(0), 0
    for r in range(starts.size):
        begin, place = _U(starts[r]), _U(r) * size
        factor = _U(starts[r] % channels)
        bias, inverse, scale = factor + row, factor + row + row, factor + row + row + row
        ties = np.int32(0)
        for i in range(size):
            u = np.float32(sums[begin + i]) * constants[factor + i] + constants[bias + i]
            quotient = u * constants[inverse + i]
            quotient = least if quotient < least else quotient
            quotient = largest if quotient > largest else quotient
            code = (quotient + _MAGIC) - _MAGIC
            ties |= np.int32(0) if abs(quotient - code) < limit else np.int32(1)
            spikes[i] = np.int16(np.int32(code))
        if ties:  # near-ties, or a NaN: all of the run again, by the rule of the reference
            for i in range(size):
                u = np.float32(sums[begin + i]) * constants[factor + i] + constants[bias + i]
                exact = np.floor(np.float64(u) / np.float64(constants[scale + i]) + 0.5)
                if np.isnan(exact):
                    return 0, 0, -2
                spikes[i] = np.int16(min(max(exact, np.float64(lo)), np.float64(hi)))
        here = np.int32(0)
        for i in range(size):
            last, code = np.int16(before[place + i]), spikes[i]
            spike = min(max(np.int16(code - last), down), up)
            now = np.int16(last + spike)
            codes[place + i] = np.int8(now)
            spikes[i] = spike
            behind = np.int16(behind | np.int16(code - now))
            here = np.int32(here + np.int32(np.int16(abs(spike))))
        if values.size:
            for i in range(size):
                values[place + i] = np.float32(codes[place + i]) * constants[scale + i]
        if here:
            fired += here
            counts[r * length // each] += here
            if found >= 0:
                if found + here > at.size:
                    found = -1
                else:
                    for i in range(length):
                        if spikes[i] != 0:
                            at[found], by[found] = r * length + i, spikes[i]
                            found += 1
    return fired, behind, found


@jit
def add_columns(at, by, together, weight, sums):
    """`sums += spikes · weight`: each event adds its row of `weight` [in, out] to the sums `[rows, out]` of its row.

    Up to `together` events of a row are added up in 16 bits before they reach the sums.
    """
    inputs, outputs = weight.shape[0], _U(weight.shape[1])
    columns, totals = weight.reshape(-1), sums.reshape(-1)
    part = np.empty(weight.shape[1], np.int16)
    event = 0
    while event < at.size:
        row = at[event] // inputs
        end, total = (row + 1) * inputs, _U(row) * outputs
        stop = min(at.size, event + together)
        for j in range(outputs):
            part[j] = 0
        while event < stop and at[event] < end:
            column, spike = _U(at[event] - row * inputs) * outputs, by[event]
            for j in range(outputs):
                part[j] = np.int16(part[j] + np.int16(np.int16(columns[column + j]) * spike))
            event += 1
        for j in range(outputs):
            totals[total + j] += part[j]


@jit
def add_left(at, by, b, sums):
    """`sums += dA·B`, batched: events of A `[H, M, K]`, codes B `[H, K, N]`, sums `[H, M, N]`."""
    rows, inner = sums.shape[1], b.shape[1]
    for event in range(at.size):
        row, k = divmod(at[event], inner)
        head, m = divmod(row, rows)
        for n in range(sums.shape[2]):
            sums[head, m, n] += by[event] * b[head, k, n]


@jit
def add_right(at, by, flipped, a, sums):
    """`sums += A·dB`, batched: codes A `[H, M, K]`, events of B `[H, K, N]`; `flipped` if B lies as `[H, N, K]`."""
    inner, columns = a.shape[2], sums.shape[2]
    for event in range(at.size):
        row, last = divmod(at[event], inner if flipped else columns)
        head, first = divmod(row, columns if flipped else inner)
        k, n = (last, first) if flipped else (first, last)
        for m in range(sums.shape[1]):
            sums[head, m, n] += by[event] * a[head, m, k]
