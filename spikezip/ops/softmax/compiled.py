"""Softmax as compiled loops. Each does one thing, so that it becomes vector code."""

import numpy as np
import torch
from torch import Tensor

from spikezip.ops.compiled import jit, share
from spikezip.ops.intrinsics import bits_of32, float32_of
from spikezip.ops.softmax import reference

_LOG2_E, _MAGIC, _LOWEST = (np.float32(x) for x in (reference.LOG2_E, reference.MAGIC, reference.LOWEST))
_HIGH, _LOW = np.float32(reference.LN2_HIGH), np.float32(reference.LN2_LOW)
_C0, _C1, _C2, _C3, _C4 = (np.float32(c) for c in reference.POLYNOMIAL)
_UNIT, _SMALL, _ONE = np.float32(reference.UNIT), np.float64(1 / reference.UNIT), np.float32(1)
_EXPONENT, _MANTISSA, _SIGN = np.int32(0x3F800000), np.int32(23), np.int32(31)
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
def _exponentials(x, most, out):
    for i in range(x.size):
        d = x[i] - most
        b = d - x[i]
        low = (x[i] - (d - b)) - (most + b)
        rounded = d * _LOG2_E + _MAGIC  # its lowest bits are k
        k = rounded - _MAGIC
        r = ((d - k * _HIGH) - k * _LOW) + low
        e = ((r * r) * ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) + r) + _ONE
        power = float32_of(np.int32(np.int32(bits_of32(rounded) << _MANTISSA) + _EXPONENT))
        out[i] = np.float32(0) if d < _LOWEST else e * power


@jit
def _row_factor(e):
    high, low = np.int64(0), np.int64(0)
    wrong = np.int32(0)
    for i in range(e.size):
        scaled = e[i] * _UNIT
        whole = (scaled + _MAGIC) - _MAGIC
        high += np.int64(np.int32(whole))
        low += np.int64(np.int32(((scaled - whole) * _UNIT + _MAGIC) - _MAGIC))
        wrong |= np.int32(0) if e[i] == e[i] else np.int32(1)
    if wrong:
        return np.float32(np.nan)
    return _UNIT / np.float32(np.float64(high) + np.float64(low) * _SMALL)


@jit
def _multiply(x, factor):
    for i in range(x.size):
        x[i] = x[i] * factor


@jit
def _rows(x, bits, first, last, out):
    for row in range(first, last):
        e = out[row]
        _exponentials(x[row], _largest(bits[row]), e)
        _multiply(e, _row_factor(e))


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
