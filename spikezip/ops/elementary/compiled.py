"""Elementary functions of float32 tensors on the CPU, as compiled loops. Equal to the reference.

The loops become vector code: their bodies have no branch, and all that they call is inlined. A power of two is one
factor here, where the reference has two. They differ only where `e^x` is no normal float64: as float32 the results are
0 or infinite with either (README.md).
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from torch import Tensor

from spikezip.ops.compiled import jit, share
from spikezip.ops.elementary.reference import (
    CUBE,
    ERF,
    ERF_BOUND,
    ERFC,
    ERFC_BOUND,
    ERFC_CENTRE,
    EXP,
    EXP_LARGEST,
    EXP_LEAST,
    LN2_HI,
    LN2_LO,
    LOG,
    LOG2E,
    MANTISSA_BITS,
    NEAREST,
    NEAREST_BITS,
    ONE_BITS,
    ROOT_2_PI,
    ROOT_HALF,
    ROOT_HALF_BITS,
    in_memory_order,
)
from spikezip.ops.intrinsics import bits_of64, float64_of

_SIGN = np.int64(-(2**63))
_OFFSET = ONE_BITS - ROOT_HALF_BITS


def compute(name: str, x: Tensor, *given: float) -> Tensor:
    """The function of that name in the reference, of a float32 tensor on the CPU."""
    values, result, row = in_memory_order(x)
    loop, source, target = _LOOPS[name], values.numpy(), row.numpy()
    if len(source):
        share(lambda first, last: loop(source[first:last], target[first:last], *given), len(source), len(source))
    return result


# --- what the loops are made of: float64 functions, inlined however long they are

_part = njit(forceinline=True, error_model="numpy")


def _polynomial(coefficients: tuple[float, ...]) -> Any:
    """A polynomial, written out: a loop inside of a loop would keep the outer one from becoming vector code."""

    def typed(_, x):
        def generate(context, builder, signature, args):
            values = [context.get_constant(types.float64, coefficient) for coefficient in coefficients]
            result = values[0]
            for value in values[1:]:
                result = builder.fadd(builder.fmul(result, args[0]), value)
            return result

        return types.float64(types.float64), generate

    return intrinsic(typed)


_of_exp, _of_log, _of_erf, _of_erfc = _polynomial(EXP), _polynomial(LOG), _polynomial(ERF), _polynomial(ERFC)


@_part
def _halved_exp(x):
    """`s`, a whole number k, and `2^k`, with `e^x = (1 + s) · 2^k`."""
    shifted = x * LOG2E + NEAREST
    k = shifted - NEAREST
    r = (x - k * LN2_HI) - k * LN2_LO
    s = r + (r * r) * _of_exp(r)
    return s, k, float64_of((bits_of64(shifted) - NEAREST_BITS + 1023) << 52)


@_part
def _exp(x):
    x = EXP_LEAST if x < EXP_LEAST else x
    x = EXP_LARGEST if x > EXP_LARGEST else x
    s, _, factor = _halved_exp(x)
    return (s + 1.0) * factor


@_part
def _log(x):
    bits = bits_of64(x) + _OFFSET
    e = float64_of((bits >> 52) + NEAREST_BITS) - (NEAREST + 1023.0)
    f = float64_of((bits & MANTISSA_BITS) + ROOT_HALF_BITS) - 1.0
    s = f / (f + 2.0)
    z = s * s
    return e * LN2_HI + (e * LN2_LO + (s * 2.0 + s * (z * _of_log(z))))


@_part
def _sigmoid(x):
    return 1.0 / (_exp(-x) + 1.0)


@_part
def _signed(size, x):
    return float64_of((bits_of64(size) & ~_SIGN) | (bits_of64(x) & _SIGN))


@_part
def _upper_erfc(y):
    y = ERFC_BOUND if y > ERFC_BOUND else y
    inverse = 1.0 / (y + ERFC_CENTRE)
    t = (y - ERFC_CENTRE) * inverse
    return _exp(-(y * y)) * (inverse * _of_erfc(t))


# --- loops; a result is rounded when it is stored


@jit
def _loop_of_exp(x, out):
    for i in range(x.size):
        out[i] = _exp(np.float64(x[i]))


@jit
def _loop_of_log(x, out):
    for i in range(x.size):
        wide = np.float64(x[i])
        result = _log(wide)
        result = wide if wide == np.inf else result
        result = result if wide > 0.0 else np.nan
        out[i] = -np.inf if wide == 0.0 else result


@jit
def _loop_of_root(x, out):
    for i in range(x.size):
        out[i] = np.sqrt(x[i])


@jit
def _loop_of_inverse_root(x, out):
    for i in range(x.size):
        out[i] = 1.0 / np.sqrt(np.float64(x[i]))


@jit
def _loop_of_tanh(x, out):
    for i in range(x.size):
        wide = np.float64(x[i])
        y = abs(wide) * -2.0
        y = -60.0 if y < -60.0 else y
        s, k, factor = _halved_exp(y)
        e = s if k == 0.0 else (s + 1.0) * factor - 1.0
        out[i] = _signed(-e / (e + 2.0), wide)


@jit
def _loop_of_sigmoid(x, out):
    for i in range(x.size):
        out[i] = _sigmoid(np.float64(x[i]))


@jit
def _loop_of_silu(x, out):
    for i in range(x.size):
        wide = np.float64(x[i])
        out[i] = wide * _sigmoid(wide)


@jit
def _loop_of_erf(x, out):
    for i in range(x.size):
        wide = np.float64(x[i])
        size = abs(wide)
        large = _signed(1.0 - _upper_erfc(size), wide)
        out[i] = wide * _of_erf(wide * wide) if size < ERF_BOUND else large


@jit
def _loop_of_gelu(x, out):
    for i in range(x.size):
        wide = np.float64(x[i])
        y = wide * -ROOT_HALF
        upper = _upper_erfc(abs(y))
        upper = 2.0 - upper if y < 0.0 else upper
        out[i] = (wide * 0.5) * upper


@jit
def _loop_of_gelu_tanh(x, out):
    for i in range(x.size):
        wide = np.float64(x[i])
        u = (wide + ((wide * wide) * wide) * CUBE) * ROOT_2_PI
        out[i] = wide * _sigmoid(u * 2.0)


@jit
def _loop_of_softplus(x, out, beta, threshold):
    for i in range(x.size):
        wide = np.float64(x[i])
        y = wide * beta
        e = _exp(-abs(y))
        u = e + 1.0
        above = _log(u) + (e - (u - 1.0)) / u
        above = e if u == 1.0 else above
        positive = 0.0 if y < 0.0 else y
        out[i] = wide if y > threshold else (positive + above) / beta


_LOOPS = {
    "exp": _loop_of_exp,
    "log": _loop_of_log,
    "root": _loop_of_root,
    "inverse_root": _loop_of_inverse_root,
    "tanh": _loop_of_tanh,
    "sigmoid": _loop_of_sigmoid,
    "silu": _loop_of_silu,
    "erf": _loop_of_erf,
    "gelu": _loop_of_gelu,
    "gelu_tanh": _loop_of_gelu_tanh,
    "softplus": _loop_of_softplus,
}
