"""Steps of a layer of neurons, and of a product with the neurons that read it, as compiled loops.

A quotient `u · (1/s)` in float32 decides all codes but near-ties (error bound in `../rounding/README.md`). A run that
holds one is done again, by the reference's own rule in float64. What follows is small integers. Both loops have these
steps written out: a call for every row and step would cost up to twice as much where little fires.

Indices are unsigned where they are sums: numba takes a signed one for possibly negative, and makes no vector code.
Integers are cast after every operation, since numba would go on in 64 bits.
"""

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
def _fire(sums, length, table, limits, each, before, codes, counts):
    """One step of a layer whose running inputs are `sums · factor + bias`: 1 if neurons are behind their codes, else 0.

    −1 if a neuron was given no number. Neurons stand in runs of `length`, and each run has the constants of the table:
    its rows are factor, bias, 1/s and s. From the tracer `before` it makes the next, `codes`. Spikes are added to
    `counts`, one number for each sample of `each` neurons.
    """
    lo, hi, most, limit = limits
    least, largest = lo - np.float32(0.25), hi + np.float32(0.25)  # beyond these there is nothing to decide
    down, up = np.int16(-most), np.int16(most)
    size, constants = _U(length), table.reshape(-1)
    bias, inverse, scale = size, size + size, size + size + size
    spikes = np.empty(length, np.int16)
    behind = np.int16(0)
    for r in range(before.size // length):
        place = _U(r) * size
        ties = np.int32(0)
        for i in range(size):
            u = np.float32(sums[place + i]) * constants[i] + constants[bias + i]
            quotient, code = _quick(u, constants[inverse + i], least, largest)
            ties |= np.int32(0) if abs(quotient - code) < limit else np.int32(1)
            spikes[i] = np.int16(np.int32(code))
        if ties:  # near-ties, or a NaN: all of the run again, by the rule of the reference
            for i in range(size):
                u = np.float32(sums[place + i]) * constants[i] + constants[bias + i]
                exact = _exact(u, constants[scale + i])
                if np.isnan(exact):
                    return -1
                spikes[i] = np.int16(min(max(exact, np.float64(lo)), np.float64(hi)))
        fired = np.int32(0)
        for i in range(size):
            last, code = np.int16(before[place + i]), spikes[i]
            spike = min(max(np.int16(code - last), down), up)
            now = np.int16(last + spike)
            codes[place + i] = np.int8(now)
            behind = np.int16(behind | np.int16(code - now))
            fired = np.int32(fired + np.int32(np.int16(abs(spike))))
        counts[r * length // each] += fired
    return 1 if behind else 0


@jit
def fire_steps(sums, at, length, table, limits, held, awake, codes, counts):
    """Steps of a layer by `_fire`: 1 if neurons are behind their codes after them, else 0; −1 if one got no number.

    In step t its sums are number `at[t]` of `sums` `[…, neurons]`, of which −1 says that it has been at rest so far. It
    is looked at if they are others than before, or some neuron is behind, or may be: if it is `awake`. In the first
    `held` steps nothing fires. `codes` `[1 + steps, neurons]` begin with the tracers before; `counts` are
    `[steps, samples]`.
    """
    neurons, flat, late = sums.shape[1], sums.reshape(-1), awake
    for t in range(at.size):
        before, now = codes[t * neurons : (t + 1) * neurons], codes[(t + 1) * neurons : (t + 2) * neurons]
        late |= at[t] >= 0 if t == 0 else at[t] != at[t - 1]
        if late and t >= held:
            here = flat[at[t] * neurons : (at[t] + 1) * neurons]
            behind = _fire(here, length, table, limits, neurons // counts.shape[1], before, now, counts[t])
            if behind < 0:
                return -1
            late = behind > 0
        else:
            for i in range(neurons):
                now[i] = before[i]
    return 1 if late else 0


@jit
def walk(inputs, changed, columns, sums, table, limits, held, awake, codes, counts):
    """A product and its neurons through all steps: 0 if none is behind its code then, else 1.

    −1 if a neuron was given no number. Every row goes through all steps before the next one has its turn: its sums and
    tracers stay in the first cache, the weights in the second.

    In step t inputs change to the next ones of `inputs` `[…, rows, in]`, if `changed[t]`. Each that did adds its
    weights, a row of `columns` `[in, out]`, times its change, to the `sums` `[rows, out]`. Neurons follow by the rule
    of `_fire`, with `table`, `limits`, `codes` and `counts` as there; in the first `held` steps none fires. `awake`:
    some may be behind before.
    """
    lo, hi, most, limit = limits
    least, largest = lo - np.float32(0.25), hi + np.float32(0.25)  # beyond these there is nothing to decide
    lowest, highest = np.int16(-most), np.int16(most)
    steps, (rows, outputs), width = counts.shape[0], sums.shape, columns.shape[0]
    size, row_of_table, weights = _U(outputs), _U(table.shape[1]), columns.reshape(-1)
    bias, inverse, scale = row_of_table, row_of_table + row_of_table, row_of_table + row_of_table + row_of_table
    constants, totals, flat = table.reshape(-1), sums.reshape(-1), inputs.reshape(-1)
    words = flat.view(np.uint64)  # of eight inputs each
    up, down = np.empty(width + 1, np.int32), np.empty(width + 1, np.int32)  # one more: it is written, and not kept
    far = np.empty(width + 1, np.int32)
    part, state, target = np.empty(outputs, np.int16), np.empty(outputs, np.int16), np.empty(outputs, np.int16)
    late = 0
    for r in range(rows):
        total, now, must, sample = _U(r * outputs), r * width, awake, r * counts.shape[1] // rows
        for j in range(size):
            state[j] = codes[total + j]
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
                counts[t, sample] += fired
            place = _U((t + 1) * sums.size) + total
            for j in range(size):
                codes[place + j] = np.int8(state[j])
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
