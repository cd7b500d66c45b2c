"""Softmax as compiled loops. Each does one thing, so that it becomes vector code."""

import numpy as np
import torch
from torch import Tensor

from spikezip.ops.compiled import jit, share
from spikezip.ops.intrinsics import bits_of32, bits_of64, float32_of
from spikezip.ops.softmax import reference

_LOG2_E, _LN2, _MAGIC = (np.float32(x) for x in (reference.LOG2_E, reference.LN2, reference.MAGIC))
_HIGH, _LOW = np.float32(reference.LN2_HIGH), np.float32(reference.LN2_LOW)
_C0, _C1, _C2, _C3 = (np.float32(c) for c in reference.POLYNOMIAL)
_LARGE, _LOWEST, _UNITS = (np.float32(x) for x in (reference.LARGE, reference.LOWEST, reference.UNITS))
_ONE, _HALF, _MANTISSA, _SIGN = np.float32(1), np.float32(0.5), np.int32(23), np.int32(31)
_WHOLE = np.float64(1.5 * 2**52)  # added to a whole number, it leaves that in the lowest bits
_REST = np.int32(0x7FFFFFFF)


@jit
def _largest(bits):
    """The largest of a row of float32, from their bits: integers in the same order. A NaN may be taken for a number."""
    most = np.int32(-(2**31))
    for i in range(bits.size):
        b = np.int32(bits[i] ^ np.int32((bits[i] >> _SIGN) & _REST))
        most = b if b > most else most
    return float32_of(np.int32(most ^ np.int32((most >> _SIGN) & _REST)))


@jit
def _reduced(x):
    shifted = x * _LOG2_E + _MAGIC  # its lowest bits are k
    k = shifted - _MAGIC
    return shifted, k, (x - k * _HIGH) - k * _LOW


@jit
def _near_one(r):
    return ((r * r) * (((_C0 * r + _C1) * r + _C2) * r + _C3) + r) + _ONE


@jit
def _exponentials(x, most, out):
    shift = np.float32(0) if abs(most) < _LARGE else most
    at_most, k_most, r_most = _reduced(most - shift)
    lowest = (k_most + _LOWEST) * _LN2
    bits = np.int32(bits_of32(_UNITS / _near_one(r_most)) - np.int32(bits_of32(at_most) << _MANTISSA))
    for i in range(x.size):
        y = x[i] - shift
        low = y < lowest
        shifted, k, r = _reduced(lowest if low else y)
        e = _near_one(r) * float32_of(np.int32(np.int32(bits_of32(shifted) << _MANTISSA) + bits))
        out[i] = np.float32(0) if k - k_most <= _LOWEST else e


@jit
def _row_factor(e, most):
    total, wrong = np.int64(0), np.int32(0)
    for i in range(e.size):
        total += bits_of64(np.float64(np.floor(e[i] + _HALF)) + _WHOLE)
        wrong |= np.int32(0) if e[i] == e[i] else np.int32(1)
    if wrong or not abs(most) < np.inf:
        return np.float32(np.nan)
    return _ONE / np.float32(total - e.size * bits_of64(_WHOLE))


@jit
def _multiply(x, factor):
    for i in range(x.size):
        x[i] = x[i] * factor


@jit
def _rows(x, bits, first, last, out):
    for row in range(first, last):
        e, most = out[row], _largest(bits[row])
        _exponentials(x[row], most, e)
        _multiply(e, _row_factor(e, most))


def softmax(x: Tensor) -> Tensor:
    """As `reference.softmax`, for float32 on the CPU.

    Example:
        >>> softmax(torch.tensor([0.0, 0.0, float("-inf")]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        rows = x.view(-1, x.shape[-1])
        given, result = (rows.numpy(), rows.view(torch.int32).numpy()), out.view(rows.shape).numpy()
        share(lambda first, last: _rows(*given, first, last, result), len(rows), rows.numel())
    return out
