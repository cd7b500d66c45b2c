"""LayerNorm as compiled loops. Each does one thing, so that it becomes vector code."""

import numpy as np
import torch
from torch import Tensor

from spikezip.ops.compiled import jit, share
from spikezip.ops.intrinsics import float32_of
from spikezip.ops.sums.compiled import largest

_LEAST, _MOST, _BIAS = np.int32(50), np.int32(250), np.int32(23)  # of exponents as bits have them: 127 stands for 2^0
_INFINITE, _ONE = np.int32(0x7F800000), np.float32(1)


@jit
def _sums(x, power):
    first, second = np.int64(0), np.int64(0)
    for i in range(x.size):
        q = np.int64(np.int32(x[i] * power))
        first += q
        second += q * q
    return first, second


@jit
def _normalise(x, mean, deviation, weight, bias, out):
    for i in range(x.size):
        out[i] = ((x[i] - mean) * deviation) * weight[i] + bias[i]


@jit
def _rows(x, bits, weight, bias, share_of_one, eps, first, last, out, means, deviations):
    for row in range(first, last):
        most = largest(bits[row])
        exponent = min(max(np.int32(most >> _BIAS), _LEAST), _MOST)
        power = float32_of(np.int32((np.int32(277) - exponent) << _BIAS))  # 2^(24−e), with 2^e above the largest
        unit = np.float64(float32_of(np.int32((exponent - _BIAS) << _BIAS)))
        summed, squares = _sums(x[row], power)
        mean = np.float64(summed) * share_of_one
        variance = np.float64(squares) * share_of_one - mean * mean
        spread = (variance if variance > 0.0 else 0.0) * unit * unit + eps
        middle = np.float32(mean * unit) if most < _INFINITE else np.float32(np.nan)
        narrow = np.float32(spread)
        deviation = _ONE / np.float32(np.sqrt(np.float64(narrow))) if narrow < np.inf else np.float32(np.nan)
        _normalise(x[row], middle, deviation, weight, bias, out[row])
        means[row], deviations[row] = middle, deviation


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.layer_norm`, for float32 on the CPU; also the mean and inverse deviation of each row."""
    x = x.contiguous()
    columns = x.shape[-1]
    rows = x.view(-1, columns)
    out = torch.empty_like(rows)
    means, deviations = torch.empty(2, *x.shape[:-1], 1)
    # Copies: the memory of a parameter that NumPy has seen can no longer be resized, as sharded training does it.
    weight = torch.ones(columns) if weight is None else weight.detach().clone(memory_format=torch.contiguous_format)
    # Adding −0 changes nothing, not even the sign of a zero.
    bias = torch.full((columns,), -0.0) if bias is None else bias.detach().clone(memory_format=torch.contiguous_format)
    given = (rows.numpy(), rows.view(torch.int32).numpy(), weight.numpy(), bias.numpy(), 1 / columns, eps)
    result = (out.numpy(), means.view(-1).numpy(), deviations.view(-1).numpy())
    share(lambda first, last: _rows(*given, first, last, *result), len(rows), rows.numel())
    return out.view(x.shape), means, deviations
