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
def _quick(u, inverse, least, largest):
    """The quotient that decides a code, cut to what can matter, and the nearest whole number."""
    quotient = u * inverse
    quotient = least if quotient < least else quotient
    quotient = largest if quotient > largest else quotient
    return quotient, (quotient + _MAGIC) - _MAGIC


@jit
def _exact(u, scale):
    """The code before it is cut to the levels, by the rule of the reference."""
    return np.floor(np.float64(u) / np.float64(scale) + 0.5)


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
            quotient, code = _quick(u, constants[inverse + i], least, largest)
            ties |= np.int32(0) if abs(quotient - code) < limit else np.int32(1)
            spikes[i] = np.int16(np.int32(code))
        if ties:  # near-ties, or a NaN: all of the run again, by the rule of the reference
            for i in range(size):
                u = np.float32(sums[begin + i]) * constants[factor + i] + constants[bias + i]
                exact = _exact(u, constants[scale + i])
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
def fire_steps(sums, at, starts, length, table, channels, lo, hi, most, limit, held, awake, codes, values, counts):
    """Steps of a layer by `fire`: whether neurons are behind after them, or −1 if one was given no number.

    In step t its sums are number `at[t]` of `sums` `[…, size]`, of which −1 says that it has been at rest so far. It is
    looked at if they are others than before, or some neuron is behind, or may be: if it is `awake`. In the first `held`
    steps nothing fires. `codes` `[1 + steps, neurons]` begin with the tracers before; there may be no room for `values`
    `[steps, neurons]`; `counts` are `[steps, samples]`.
    """
    neurons, flat = starts.size * length, sums.reshape(-1)
    nowhere, nothing = np.empty(0, np.int64), np.empty(0, np.int16)
    size, late = sums.shape[1], awake
    for t in range(at.size):
        before, now = codes[t * neurons : (t + 1) * neurons], codes[(t + 1) * neurons : (t + 2) * neurons]
        some = values[t * neurons : (t + 1) * neurons] if values.size else values
        late |= at[t] >= 0 if t == 0 else at[t] != at[t - 1]
        if late and t >= held:
            here = flat[at[t] * size : (at[t] + 1) * size]
            _, behind, found = fire(
                here, starts, length, table, channels, lo, hi, most, limit, neurons // counts.shape[1], before, now,
                some, counts[t], nowhere, nothing,
            )  # fmt: skip
            if found == -2:
                return -1
            late = behind != 0
        else:  # values are made where something fires, and there only
            for i in range(neurons):
                now[i] = before[i]
    return 1 if late else 0


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


@jit
def walk(
    inputs, changed, columns, sums, places, samples, table, limits, held, awake, codes, values, counts, first, last
):  # fmt: skip
    """Rows `first … last` of a product and its neurons through all steps: 0 if none is behind its code then, else 1.

    −1 if a neuron was given no number. Every row goes through all steps before the next one has its turn: its sums and
    tracers stay in the first cache, the weights in the second.

    In step t inputs change to the next ones of `inputs` `[…, rows, in]`, if `changed[t]`. Each that did adds its
    weights, a row of `columns` `[in, out]`, times its change, to the `sums` `[rows, out]`. Neurons follow by the rule
    of `fire`, whose `table` this is; in the first `held` steps none fires. `awake`: some may be behind before.
    Row r has its neurons in pieces of equal length at `places[r]` of `codes` `[1 + steps, neurons]`, which begin with
    the tracers before, and belongs to sample `samples[r]` of the spikes in `counts` `[steps, samples]`. There may be
    no room for `values`.
    """
    lo, hi, most, limit = limits
    least, largest = lo - np.float32(0.25), hi + np.float32(0.25)  # beyond these there is nothing to decide
    lowest, highest = np.int16(-most), np.int16(most)
    steps, (rows, outputs), width = counts.shape[0], sums.shape, columns.shape[0]
    size, row_of_table, weights = _U(outputs), _U(table.shape[1]), columns.reshape(-1)
    bias, inverse, scale = row_of_table, row_of_table + row_of_table, row_of_table + row_of_table + row_of_table
    constants, totals, flat = table.reshape(-1), sums.reshape(-1), inputs.reshape(-1)
    words = flat.view(np.uint64)  # of eight inputs each
    neurons, pieces = rows * outputs, places.shape[1]
    length = outputs // pieces
    up, down = np.empty(width + 1, np.int32), np.empty(width + 1, np.int32)  # one more: it is written, and not kept
    far = np.empty(width + 1, np.int32)
    part, state, target = np.empty(outputs, np.int16), np.empty(outputs, np.int16), np.empty(outputs, np.int16)
    late = 0
    for r in range(first, last):
        total, now, must = _U(r * outputs), r * width, awake
        for piece in range(pieces):
            for i in range(length):
                state[piece * length + i] = codes[places[r, piece] + i]
        for t in range(steps):
            moved = False
            if changed[t]:
                before, now = now, now + rows * width
                more = 0
                if most == 1:
                    rising, falling = _changes(words, flat, _U(before), _U(now), _U(width), up, down)
                else:
                    rising, falling, more = _all_changes(words, flat, _U(before), _U(now), _U(width), up, down, far)
                moved = rising + falling + more > 0
                done = 0
                while done < max(rising, falling):
                    for j in range(size):
                        part[j] = 0
                    _add_up(weights, down, done, min(falling, done + _TOGETHER), size, part)
                    for j in range(size):
                        part[j] = np.int16(-part[j])
                    _add_up(weights, up, done, min(rising, done + _TOGETHER), size, part)
                    for j in range(size):
                        totals[total + j] += part[j]
                    done += _TOGETHER
                for event in range(more):
                    i = _U(far[event])
                    spike = np.int32(np.int32(flat[_U(now) + i]) - np.int32(flat[_U(before) + i]))
                    for j in range(size):
                        totals[total + j] += np.int32(spike * np.int32(weights[i * size + j]))
            fired = np.int32(0)
            if t < held:
                must = True
            elif moved or must:
                ties = np.int32(0)
                for j in range(size):
                    u = np.float32(totals[total + j]) * constants[j] + constants[bias + j]
                    quotient, code = _quick(u, constants[inverse + j], least, largest)
                    ties |= np.int32(0) if abs(quotient - code) < limit else np.int32(1)
                    target[j] = np.int16(np.int32(code))
                if ties:  # near-ties, or a NaN: all of the row again, by the rule of the reference
                    for j in range(size):
                        u = np.float32(totals[total + j]) * constants[j] + constants[bias + j]
                        exact = _exact(u, constants[scale + j])
                        if np.isnan(exact):
                            return -1
                        target[j] = np.int16(min(max(exact, np.float64(lo)), np.float64(hi)))
                behind = np.int16(0)
                for j in range(size):
                    spike = min(max(np.int16(target[j] - state[j]), lowest), highest)
                    state[j] = np.int16(state[j] + spike)
                    behind = np.int16(behind | np.int16(target[j] - state[j]))
                    fired = np.int32(fired + np.int32(np.int16(abs(spike))))
                must = behind != 0
                counts[t, samples[r]] += fired
            for piece in range(pieces):
                place, channel = _U((t + 1) * neurons + places[r, piece]), _U(piece * length)
                for i in range(_U(length)):
                    codes[place + i] = np.int8(state[channel + i])
                if values.size:
                    place = _U(t * neurons + places[r, piece])
                    for i in range(_U(length)):
                        values[place + i] = np.float32(state[channel + i]) * constants[scale + channel + i]
        late |= must
    return late


_TOGETHER = 124  # so many weights to be added, and as many to be taken away, fit into 16 bits: 124 · (127 + 128)


@jit
def _changes(words, flat, before, now, width, up, down):
    """List the inputs that have risen and those that have fallen, by 1; returns how many of each."""
    rising, falling = 0, 0
    eight, older, newer = _U(8), before >> _U(3), now >> _U(3)
    for word in range(width >> _U(3)):
        if words[newer + word] != words[older + word]:
            for i in range(word * eight, word * eight + eight):
                x, was = flat[now + i], flat[before + i]
                up[rising], down[falling] = i, i  # without a jump, which nobody could foretell
                rising += np.int64(x > was)
                falling += np.int64(x < was)
    return rising, falling


@jit
def _all_changes(words, flat, before, now, width, up, down, far):
    """As `_changes`; those by more than 1 are listed apart."""
    rising, falling, more = 0, 0, 0
    eight, older, newer = _U(8), before >> _U(3), now >> _U(3)
    for word in range(width >> _U(3)):
        if words[newer + word] != words[older + word]:
            for i in range(word * eight, word * eight + eight):
                change = np.int16(np.int16(flat[now + i]) - np.int16(flat[before + i]))
                up[rising], down[falling], far[more] = i, i, i
                rising += np.int64(change == 1)
                falling += np.int64(change == -1)
                more += np.int64(abs(change) > 1)
    return rising, falling, more


@jit
def _add_up(weights, chosen, first, last, size, part):
    """Add up rows of the weights, four at a time: the sums so far are fetched and put back only so often."""
    event = first
    while event + 4 <= last:
        a, b = _U(chosen[event]) * size, _U(chosen[event + 1]) * size
        c, d = _U(chosen[event + 2]) * size, _U(chosen[event + 3]) * size
        for j in range(size):
            one = np.int16(np.int16(weights[a + j]) + np.int16(weights[b + j]))
            other = np.int16(np.int16(weights[c + j]) + np.int16(weights[d + j]))
            part[j] = np.int16(part[j] + np.int16(one + other))
        event += 4
    while event < last:
        a = _U(chosen[event]) * size
        for j in range(size):
            part[j] = np.int16(part[j] + np.int16(weights[a + j]))
        event += 1
