"""Elementary functions of float32 tensors as a GPU kernel. Equal to the reference.

Plain numbers take the type of the tensor that stands on their left: float64, everywhere here. A power of two is one
factor, as in the compiled loops. Kernels are compiled without fused operations.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from spikezip.ops.elementary import reference
from spikezip.ops.elementary.reference import in_memory_order

BLOCK, WARPS = 1024, 4

_EXP, _EXP_SIZE = tl.constexpr(reference.EXP), tl.constexpr(len(reference.EXP))
_LOG, _LOG_SIZE = tl.constexpr(reference.LOG), tl.constexpr(len(reference.LOG))
_ERF, _ERF_SIZE = tl.constexpr(reference.ERF), tl.constexpr(len(reference.ERF))
_ERFC, _ERFC_SIZE = tl.constexpr(reference.ERFC), tl.constexpr(len(reference.ERFC))
_LOG2E, _LN2_HI, _LN2_LO = (tl.constexpr(c) for c in (reference.LOG2E, reference.LN2_HI, reference.LN2_LO))
_EXP_LEAST, _EXP_LARGEST = tl.constexpr(reference.EXP_LEAST), tl.constexpr(reference.EXP_LARGEST)
_NEAREST, _NEAREST_BITS = tl.constexpr(reference.NEAREST), tl.constexpr(reference.NEAREST_BITS)
_OFFSET = tl.constexpr(reference.ONE_BITS - reference.ROOT_HALF_BITS)
_ROOT_HALF_BITS, _MANTISSA_BITS = tl.constexpr(reference.ROOT_HALF_BITS), tl.constexpr(reference.MANTISSA_BITS)
_ERF_BOUND, _ERFC_BOUND = tl.constexpr(reference.ERF_BOUND), tl.constexpr(reference.ERFC_BOUND)
_ERFC_CENTRE, _MINUS_ROOT_HALF = tl.constexpr(reference.ERFC_CENTRE), tl.constexpr(-reference.ROOT_HALF)
_SIGN = tl.constexpr(-(2**63))
_CUBE, _ROOT_2_PI = tl.constexpr(reference.CUBE), tl.constexpr(reference.ROOT_2_PI)


@triton.jit
def _polynomial(x, coefficients: tl.constexpr, size: tl.constexpr):
    result = x * coefficients[0] + coefficients[1]
    for i in tl.static_range(2, size):
        result = result * x + coefficients[i]
    return result


@triton.jit
def _halved_exp(x):
    """`s`, a whole number k, and `2^k`, with `e^x = (1 + s) · 2^k`."""
    shifted = x * _LOG2E + _NEAREST
    k = shifted - _NEAREST
    r = (x - k * _LN2_HI) - k * _LN2_LO
    s = r + (r * r) * _polynomial(r, _EXP, _EXP_SIZE)
    factor = (shifted.to(tl.int64, bitcast=True) - _NEAREST_BITS + 1023) << 52
    return s, k, factor.to(tl.float64, bitcast=True)


@triton.jit
def _exp(x):
    x = tl.where(x < _EXP_LEAST, _EXP_LEAST, x)
    x = tl.where(x > _EXP_LARGEST, _EXP_LARGEST, x)
    s, _, factor = _halved_exp(x)
    return (s + 1.0) * factor


@triton.jit
def _log(x):
    """The logarithm of a normal number."""
    bits = x.to(tl.int64, bitcast=True) + _OFFSET
    e = ((bits >> 52) - 1023).to(tl.float64)
    f = ((bits & _MANTISSA_BITS) + _ROOT_HALF_BITS).to(tl.float64, bitcast=True) - 1.0
    s = f / (f + 2.0)
    z = s * s
    return e * _LN2_HI + (e * _LN2_LO + (s * 2.0 + s * (z * _polynomial(z, _LOG, _LOG_SIZE))))


@triton.jit
def _sigmoid(x):
    return 1.0 / (_exp(-x) + 1.0)


@triton.jit
def _tanh(x):
    y = tl.abs(x) * -2.0
    s, k, factor = _halved_exp(tl.where(y < -60.0, -60.0, y))
    e = tl.where(k == 0.0, s, (s + 1.0) * factor - 1.0)
    return _signed(e / (e + 2.0), x)


@triton.jit
def _signed(size, x):
    bits = tl.abs(size).to(tl.int64, bitcast=True) | (x.to(tl.int64, bitcast=True) & _SIGN)
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def _upper_erfc(y):
    y = tl.where(y > _ERFC_BOUND, _ERFC_BOUND, y)
    inverse = 1.0 / (y + _ERFC_CENTRE)
    t = (y - _ERFC_CENTRE) * inverse
    return _exp(-(y * y)) * (inverse * _polynomial(t, _ERFC, _ERFC_SIZE))


@triton.jit
def _erf(x):
    size = tl.abs(x)
    return tl.where(size < _ERF_BOUND, x * _polynomial(x * x, _ERF, _ERF_SIZE), _signed(1.0 - _upper_erfc(size), x))


@triton.jit
def _gelu(x):
    y = x * _MINUS_ROOT_HALF
    upper = _upper_erfc(tl.abs(y))
    return (x * 0.5) * tl.where(y < 0.0, 2.0 - upper, upper)


@triton.jit
def _softplus(x, beta, threshold):
    y = x * beta
    e = _exp(-tl.abs(y))
    u = e + 1.0
    above = tl.where(u == 1.0, e, _log(u) + (e - (u - 1.0)) / u)
    return tl.where(y > threshold, x, (tl.where(y < 0.0, 0.0, y) + above) / beta)


@triton.jit
def _kernel(x_ptr, out_ptr, wide_ptr, size, name: tl.constexpr, block: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    narrow = tl.load(x_ptr + place, mask=place < size, other=0.0)
    x = narrow.to(tl.float64)
    if name == "exp":
        result = _exp(x)
    elif name == "log":
        result = tl.where((x > 0.0) & (x < float("inf")), _log(x), x)
        result = tl.where(x < 0.0, float("nan"), tl.where(x == 0.0, float("-inf"), result))
    elif name == "root":
        result = tl.math.sqrt_rn(narrow)
    elif name == "inverse_root":
        result = 1.0 / tl.sqrt(x)
    elif name == "tanh":
        result = _tanh(x)
    elif name == "sigmoid":
        result = _sigmoid(x)
    elif name == "silu":
        result = x * _sigmoid(x)
    elif name == "erf":
        result = _erf(x)
    elif name == "gelu":
        result = _gelu(x)
    elif name == "gelu_tanh":
        u = (x + ((x * x) * x) * _CUBE) * _ROOT_2_PI
        result = x * _sigmoid(u * 2.0)
    else:
        tl.static_assert(name == "softplus")
        result = _softplus(x, tl.load(wide_ptr), tl.load(wide_ptr + 1))
    tl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), mask=place < size)


def compute(name: str, x: Tensor, *given: float) -> Tensor:
    """The function of that name in the reference, of a float32 tensor on a GPU (or interpreted, anywhere)."""
    values, result, row = in_memory_order(x)
    if len(values):
        with torch.cuda.device_of(x):
            _kernel[(triton.cdiv(len(values), BLOCK),)](
                values, row, _wide(given, x.device), len(values), name=name, block=BLOCK, num_warps=WARPS,
                enable_fp_fusion=False,
            )  # fmt: skip
    return result


@lru_cache(maxsize=256)
def _wide(given: tuple[float, ...], device: torch.device) -> Tensor:
    """Further arguments as float64: plain numbers would reach the kernel as float32."""
    return torch.tensor(given, dtype=torch.float64, device=device)
