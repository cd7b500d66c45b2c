"""Sums of rows as compiled loops: vector code, since sums of integers may be taken in any order."""

import numpy as np
import torch
from torch import Tensor

from spikezip.ops.compiled import jit, share
from spikezip.ops.intrinsics import bits_of64, float64_of
from spikezip.ops.sums.reference import BITS

_REST, _FINITE = np.int32(0x7FFFFFFF), np.int32(0x7F800000)
_MAGIC = np.float64(3 * 2**51)  # added to a small float64, it leaves a whole number in the lowest bits
_MAGIC_BITS = np.int64(0x4338 << 48)


@jit
def largest(bits):
    """The bits of the largest magnitude of a row of float32."""
    most = np.int32(0)
    for i in range(bits.size):
        b = np.int32(bits[i] & _REST)
        most = b if b > most else most
    return most


@jit
def _whole_sum(x, power):
    summed = np.int64(0)
    for i in range(x.size):
        summed += bits_of64(np.float64(x[i]) * power + _MAGIC) - _MAGIC_BITS
    return summed


@jit
def _rows(x, bits, first, last, out):
    for row in range(first, last):
        most = largest(bits[row])
        if most >= _FINITE:
            summed = np.float64(0)
            for i in range(x.shape[1]):
                summed += np.float64(x[row, i]) if bits[row, i] & _FINITE == _FINITE else 0.0
            out[row] = summed
            continue
        # 2^(e−1) ≤ most < 2^e; numbers below 2^-126 have no exponent of their own.
        exponent = np.int64(most >> 23) - 126
        if most < 0x00800000:
            exponent = np.int64(-149)
            while most:
                most >>= 1
                exponent += 1
            exponent = exponent if exponent > -149 else np.int64(0)
        summed = _whole_sum(x[row], float64_of(np.int64(np.int64(BITS - exponent + 1023) << 52)))
        out[row] = np.float64(summed) * float64_of(np.int64(np.int64(exponent - BITS + 1023) << 52))


def row_totals(x: Tensor) -> Tensor:
    """As `reference.total` along the last dimension, for float32 on the CPU."""
    x = x.contiguous()
    rows = x.view(-1, x.shape[-1])
    out = torch.empty(len(rows), dtype=torch.float64)
    given, result = (rows.numpy(), rows.view(torch.int32).numpy()), out.numpy()
    share(lambda first, last: _rows(*given, first, last, result), len(rows), rows.numel())
    return out.view(x.shape[:-1])
