"""Elementary functions made of single IEEE operations, in float64: the same bits on every device (README.md).

A function takes a tensor of float32 or float64 numbers (integers are taken as float32), computes in float64, and rounds
once to the type of its input (`_rounded`): where one calls another, nothing is rounded in between. Functions that begin
with an underscore take float64 and give float64.
"""

from collections.abc import Callable
from functools import cache, wraps
from math import inf, nan, pi

import numpy as np
import torch
from torch import Tensor

from spikezip.ops.bits import power_of_two
from spikezip.ops.compiled import LEAST

# Constants. Polynomials have their highest coefficient first (made by the script in README.md).

LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
LN2_HI, LN2_LO = 0.6931471806019545, -4.2009150726810846e-11  # the first has 32 bits: k·LN2_HI is exact
LOG10E = 0.4342944819032518
ROOT_HALF = 0.7071067811865476
ROOT_2_PI = 0.7978845608028654  # √(2/π)
CUBE = 0.044715  # of gelu_tanh

EXP = (
    2.510038549551032e-08, 2.7620088445409746e-07, 2.7557268459997064e-06, 2.4801521295954376e-05,
    0.00019841269863053618, 0.0013888888917213717, 0.008333333333330062, 0.04166666666662413, 0.16666666666666669,
    0.5000000000000001,
)  # fmt: skip
LOG = (
    0.14616585424888623, 0.15331710618210773, 0.18182889455674947, 0.22222211130259878, 0.2857142862600327,
    0.39999999999899444, 0.666666666666667,
)  # fmt: skip
ERF = (
    1.4725865480556744e-06, -1.4845849259707869e-05, 0.00012053335124353741, -0.0008548297753674966,
    0.00522397737302147, -0.026866170632887928, 0.11283791670925353, -0.37612638903183476, 1.1283791670955126,
)  # fmt: skip
ERFC = (
    -6.606630030954918e-09, 7.461551723360206e-09, 1.0506935915995339e-07, -9.314264318554981e-08,
    -8.268845944455933e-07, 1.4445805985487228e-06, 4.683431327222623e-06, -1.887396165570362e-05,
    -3.6314238931910024e-06, 0.00017681785329035966, -0.0004550534645094846, -0.00028096004828847605,
    0.00611205575389842, -0.02637005317568621, 0.07638151490204452, -0.17401093725244177, 0.3308515878783134,
    -0.5408538313128007, 0.7732087022652312, -0.9765487290808864, 1.095995661000491,
)  # fmt: skip
SIN = (
    1.5917988979397435e-10, -2.5051129896450185e-08, 2.7557316093198404e-06, -0.00019841269836740532,
    0.008333333333330936, -0.16666666666666666,
)  # fmt: skip
COS = (
    -1.136789634714201e-11, 2.0875885001628906e-09, -2.7557315555381283e-07, 2.480158729366189e-05,
    -0.0013888888888880734, 0.04166666666666664, -0.5,
)  # fmt: skip

EXP_BOUND = 800.0  # beyond ±800 exp overflows or vanishes, and stays there
# From here on 2^k, as one factor made of the bits of an exponent, is 0 or infinite.
EXP_LEAST, EXP_LARGEST = -709.0, 709.75
ERF_BOUND = 0.5  # below, erf is a polynomial
ERFC_BOUND, ERFC_CENTRE = 28.0, 4.0  # erfc(28) vanishes; at 4 the variable of its polynomial is 0
WHOLE_BOUND = 64  # whole powers up to this one are products

# Added to a float64 and taken away again, it rounds to the nearest whole number.
NEAREST, NEAREST_BITS = 1.5 * 2.0**52, 0x4338000000000000
ONE_BITS, ROOT_HALF_BITS, MANTISSA_BITS = 0x3FF0000000000000, 0x3FE6A09E667F3BCD, 0x000FFFFFFFFFFFFF

_HALF_PI_PARTS = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)  # two of 33 bits, and the rest
_QUADRANTS_BOUND = 2.0**20  # up to here, products with the first two parts are exact
_TWO_OVER_PI_PLACES = 1200
_TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe1deb1cb129a73e"
    "e88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b7"
    "4f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b",
    16,
)


# --- how a function meets a tensor


def in_memory_order(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The values of `x` in one row, an empty tensor like `x`, and a row for its values: both rows in memory's order.

    Only a tensor with gaps or overlaps is copied.

    Example:
        >>> values, result, row = in_memory_order(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t())
        >>> row.copy_(values)
        tensor([1., 2., 3., 4.])
        >>> result
        tensor([[1., 3.],
                [2., 4.]])
    """
    order = sorted(range(x.ndim), key=x.stride, reverse=True)
    if not x.permute(order).is_contiguous():
        x, order = x.contiguous(), list(range(x.ndim))
    result = torch.empty_like(x)
    return x.permute(order).reshape(-1), result, result.permute(order).view(-1)


def _rounded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A float64 function as one of any tensor, rounded once. On the CPU in blocks that stay in a core's cache."""

    @wraps(function)
    def rounded(x: Tensor, *given: float, **named: float) -> Tensor:
        x = x.detach()
        x = x if x.is_floating_point() else x.to(torch.float32)
        block = LEAST * torch.get_num_threads()
        if x.device.type != "cpu" or x.numel() <= block:
            return function(x.to(torch.float64), *given, **named).to(x.dtype)
        values, result, row = in_memory_order(x)
        for start in range(0, values.numel(), block):
            row[start : start + block] = function(values[start : start + block].to(torch.float64), *given, **named)
        return result

    return rounded


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    result = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        result.mul_(x).add_(coefficient)
    return result


# --- exponentials


@_rounded
def exp(x: Tensor) -> Tensor:
    """`e^x`."""
    s, k = _halved_exp(x.clamp(-EXP_BOUND, EXP_BOUND))
    return _scaled(s + 1, k)


@_rounded
def expm1(x: Tensor) -> Tensor:
    """`e^x − 1`, exact near 0 too.

    Example:
        >>> expm1(torch.tensor([0.0, 1e-10]))
        tensor([0.0000e+00, 1.0000e-10])
    """
    s, k = _halved_exp(x.clamp(-60, EXP_BOUND))
    result = torch.where(k == 0, s, _scaled(s + 1, k) - 1)
    return torch.where(x == 0, x, result)  # −0 stays −0


@_rounded
def exp2(x: Tensor) -> Tensor:
    """`2^x`."""
    x = x.clamp(-1100, 1100)
    k = _nearest(x)
    return _scaled(_exp_rest((x - k) * LN2) + 1, k.to(torch.int64))


def _nearest(x: Tensor) -> Tensor:
    """The nearest whole number, the even one of two: of −0 it makes 0, which `torch.round` does not."""
    return (x + NEAREST).sub_(NEAREST)


def _halved_exp(x: Tensor) -> tuple[Tensor, Tensor]:
    """`s` and a whole `k` with `e^x = (1 + s) · 2^k`."""
    k = _nearest(x * LOG2E)
    r = (x - k * LN2_HI) - k * LN2_LO
    return _exp_rest(r), k.to(torch.int64)


def _exp_rest(r: Tensor) -> Tensor:
    """`e^r − 1` between ±ln 2/2."""
    return r + (r * r) * _polynomial(r, EXP)


def _scaled(x: Tensor, k: Tensor) -> Tensor:
    """`x · 2^k` in two steps: one factor alone might be too large or too small for a float64."""
    half = k >> 1
    return x * power_of_two(half, torch.float64) * power_of_two(k - half, torch.float64)


# --- logarithms


@_rounded
def log(x: Tensor) -> Tensor:
    """The natural logarithm."""
    tiny = x < 2.0**-1022  # floats that have lost bits; zero and negative ones too, whose result is replaced
    bits = torch.where(tiny, x * 2.0**54, x).view(torch.int64) + (ONE_BITS - ROOT_HALF_BITS)
    e = ((bits >> 52) - 1023).to(torch.float64) - torch.where(tiny, 54.0, 0.0)
    f = ((bits & MANTISSA_BITS) + ROOT_HALF_BITS).view(torch.float64) - 1
    s = f / (f + 2)
    z = s * s
    of_mantissa = s * 2 + s * (z * _polynomial(z, LOG))
    result = e * LN2_HI + (e * LN2_LO + of_mantissa)
    result = torch.where((x > 0) & (x < inf), result, x)  # infinity, and what is no number
    return torch.where(x == 0, -inf, torch.where(x < 0, nan, result))


@_rounded
def log1p(x: Tensor) -> Tensor:
    """`log(1 + x)`, exact near 0 too.

    Example:
        >>> log1p(torch.tensor([1e-10, 1.0]))
        tensor([1.0000e-10, 6.9315e-01])
    """
    u = x + 1
    of_u = log(u)
    result = torch.where((u > 0) & (u < inf), of_u + (x - (u - 1)) / u, of_u)
    return torch.where(u == 1, x, result)  # −0 stays −0


@_rounded
def log2(x: Tensor) -> Tensor:
    """The logarithm to the base of 2."""
    return log(x) * LOG2E


@_rounded
def log10(x: Tensor) -> Tensor:
    """The logarithm to the base of 10."""
    return log(x) * LOG10E


# --- roots and powers


def root(x: Tensor) -> Tensor:
    """The square root, rounded as IEEE asks. (On CPUs, torch's may be off by one in the last place.)"""
    x = x.detach()
    x = x if x.is_floating_point() else x.to(torch.float32)
    if x.device.type != "cpu":
        return x.sqrt()
    result = torch.empty_like(x)
    with np.errstate(invalid="ignore"):
        np.sqrt(x.numpy(), out=result.numpy())
    return result


@_rounded
def inverse_root(x: Tensor) -> Tensor:
    """One over the square root."""
    return 1 / root(x)


def power(x: Tensor, y: float | Tensor) -> Tensor:
    """`x^y`, with the special cases of `torch.pow`; a product for whole powers up to 64. The type is that of `x`.

    Example:
        >>> power(torch.tensor([2.0, -3.0]), 3.0)
        tensor([  8., -27.])
        >>> power(torch.tensor(2.0), torch.tensor([-1.0, 0.5, 0.1]))
        tensor([0.5000, 1.4142, 1.0718])
    """
    if not isinstance(y, Tensor):
        return _power(x, float(y))
    x = x.detach() if x.is_floating_point() else x.detach().to(torch.float32)
    numbers, exponents = torch.broadcast_tensors(x.to(torch.float64), y.detach().to(x.device, torch.float64))
    return _powers(numbers, exponents).to(x.dtype)


@_rounded
def _power(x: Tensor, y: float) -> Tensor:
    if abs(y) == 0.5:
        return root(x) if y > 0 else inverse_root(x)
    if not (y == y // 1 and abs(y) <= WHOLE_BOUND):
        return _power_by_logarithm(x, torch.full_like(x, y))
    result, square = torch.ones_like(x), x
    for bit in range(int(abs(y)).bit_length()):
        square = square * square if bit else square
        result = result * square if int(abs(y)) >> bit & 1 else result
    return 1 / result if y < 0 else result


def _powers(x: Tensor, y: Tensor) -> Tensor:
    """As `_power`, for an exponent to each number."""
    whole = (y == y.floor()) & (y.abs() <= WHOLE_BOUND)
    n = torch.where(whole, y.abs(), 0).to(torch.int64)
    product, square = torch.ones_like(x), x
    for bit in range(WHOLE_BOUND.bit_length()):
        square = square * square if bit else square
        product = torch.where((n >> bit & 1) == 1, product * square, product)
    product = torch.where(y < 0, 1 / product, product)
    result = torch.where(whole, product, _power_by_logarithm(x, y))
    result = torch.where(y == 0.5, root(x), result)
    return torch.where(y == -0.5, inverse_root(x), result)


def _power_by_logarithm(x: Tensor, y: Tensor) -> Tensor:
    size = exp(y * log(x.abs()))
    whole = y == y.floor()
    odd = whole & (y * 0.5 != (y * 0.5).floor())
    result = torch.where(odd & x.signbit(), -size, size)
    result = torch.where((x < 0) & (x > -inf) & ~whole, nan, result)
    return torch.where((x == 1) | ((x == -1) & y.isinf()), 1.0, result)


# --- activations


@_rounded
def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    e = expm1(x.abs() * -2)
    return torch.copysign(-e / (e + 2), x)


@_rounded
def sigmoid(x: Tensor) -> Tensor:
    """`1/(1 + e^−x)`."""
    return 1 / (exp(-x) + 1)


@_rounded
def silu(x: Tensor) -> Tensor:
    """`x · sigmoid(x)`."""
    return x * sigmoid(x)


@_rounded
def erf(x: Tensor) -> Tensor:
    """The error function."""
    size = x.abs()
    large = torch.copysign(1 - _upper_erfc(size), x)
    return torch.where(size < ERF_BOUND, x * _polynomial(x * x, ERF), large)


@_rounded
def erfc(x: Tensor) -> Tensor:
    """`1 − erf(x)`, exact for large numbers too.

    Example:
        >>> erfc(torch.tensor([0.0, 5.0]))
        tensor([1.0000e+00, 1.5375e-12])
    """
    upper = _upper_erfc(x.abs())
    return torch.where(x < 0, 2 - upper, upper)


@_rounded
def gelu(x: Tensor) -> Tensor:
    """`x · Φ(x)`, with the distribution function of the normal distribution."""
    return (x * 0.5) * erfc(x * -ROOT_HALF)


@_rounded
def gelu_tanh(x: Tensor) -> Tensor:
    """The form of GELU that is made of a hyperbolic tangent."""
    u = (x + ((x * x) * x) * CUBE) * ROOT_2_PI
    return x * sigmoid(u * 2)


@_rounded
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """`log(1 + e^(βx))/β`; `x` itself where `βx` is above the threshold.

    Example:
        >>> softplus(torch.tensor([-1.0, 0.0, 30.0]))
        tensor([ 0.3133,  0.6931, 30.0000])
    """
    y = x * beta
    # By a tensor: a GPU would multiply with the reciprocal of a plain number.
    return torch.where(y > threshold, x, _log1p_exp(y) / torch.full_like(y, beta))


@_rounded
def log_sigmoid(x: Tensor) -> Tensor:
    """The logarithm of the sigmoid.

    Example:
        >>> log_sigmoid(torch.tensor([-100.0, 0.0]))
        tensor([-100.0000,   -0.6931])
    """
    return -_log1p_exp(-x)


@_rounded
def mish(x: Tensor) -> Tensor:
    """`x · tanh(log(1 + e^x))`."""
    return x * tanh(_log1p_exp(x))


@_rounded
def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    """`scale · x` above 0, else `scale · alpha · (e^(input_scale · x) − 1)`: ELU, SELU and CELU.

    Example:
        >>> elu(torch.tensor([-1.0, 2.0]), scale=2.0)
        tensor([-1.2642,  4.0000])
    """
    return torch.where(x > 0, x * scale, expm1(x * input_scale) * (alpha * scale))


def _upper_erfc(y: Tensor) -> Tensor:
    """`erfc(y)` for `y ≥ 0`."""
    y = y.clamp(max=ERFC_BOUND)
    inverse = 1 / (y + ERFC_CENTRE)
    t = (y - ERFC_CENTRE) * inverse
    return exp(-(y * y)) * (inverse * _polynomial(t, ERFC))


def _log1p_exp(y: Tensor) -> Tensor:
    return y.clamp(min=0) + log1p(exp(-y.abs()))


# --- circular and hyperbolic functions


@_rounded
def sin(x: Tensor) -> Tensor:
    """The sine, for numbers of any size.

    Example:
        >>> sin(torch.tensor([0.0, 1.0, 1e30]))
        tensor([ 0.0000,  0.8415, -0.7912])
    """
    return _sin_cos(x)[0]


@_rounded
def cos(x: Tensor) -> Tensor:
    """The cosine, for numbers of any size."""
    return _sin_cos(x)[1]


@_rounded
def tan(x: Tensor) -> Tensor:
    """The tangent, for numbers of any size."""
    sine, cosine = _sin_cos(x)
    return sine / cosine


@_rounded
def sinh(x: Tensor) -> Tensor:
    """The hyperbolic sine."""
    s, k = _halved_exp(x.abs().clamp(max=EXP_BOUND))
    half = _scaled(s + 1, k - 1)  # e^|x|/2, which overflows later than e^|x|
    return torch.copysign(torch.where(k == 0, (s + s / (s + 1)) * 0.5, half - 0.25 * (1 / half)), x)


@_rounded
def cosh(x: Tensor) -> Tensor:
    """The hyperbolic cosine."""
    s, k = _halved_exp(x.abs().clamp(max=EXP_BOUND))
    half = _scaled(s + 1, k - 1)
    return half + 0.25 * (1 / half)


def _sin_cos(x: Tensor) -> tuple[Tensor, Tensor]:
    r, quadrant = _quadrant(x)
    z = r * r
    sine = r * (z * _polynomial(z, SIN) + 1)
    cosine = z * _polynomial(z, COS) + 1
    swapped = (quadrant & 1) == 1
    first, second = torch.where(swapped, cosine, sine), torch.where(swapped, sine, cosine)
    return torch.where((quadrant & 2) == 2, -first, first), torch.where((quadrant + 1 & 2) == 2, -second, second)


def _quadrant(x: Tensor) -> tuple[Tensor, Tensor]:
    """`r` within ±π/4 and a whole number `k` with `x = r + k · π/2`, up to multiples of 4 in `k`."""
    k = _nearest(x * (2 / pi))
    first, second, third = _HALF_PI_PARTS
    r = ((x - k * first) - k * second) - k * third
    quadrant = k.to(torch.int64)
    large = (x.abs() > _QUADRANTS_BOUND) & (x.abs() < inf)
    if x.device.type == "cpu" and not bool(large.any()):  # (a GPU would have to be waited for)
        return r, quadrant
    far, far_quadrant = _far_quadrant(torch.where(large, x, _QUADRANTS_BOUND))
    return torch.where(large, far, r), torch.where(large, far_quadrant, quadrant)


def _far_quadrant(x: Tensor) -> tuple[Tensor, Tensor]:
    """As `_quadrant`, for large numbers: the mantissa times `2^e · 2/π` modulo 4, in integers of 24 bits a limb."""
    bits = x.view(torch.int64)
    exponent = bits >> 52 & 2047
    mantissa = bits & MANTISSA_BITS | 1 << 52
    window = _windows(x.device)
    row = exponent - _EXPONENT_OF_FIRST
    factor = [limb[row] for limb in window]
    mantissa_limbs = [mantissa & _LIMB, mantissa >> 24 & _LIMB, mantissa >> 48]
    product, carry = [], torch.zeros_like(bits)
    for i in range(_LIMBS):
        for j, limb in enumerate(mantissa_limbs[: i + 1]):
            carry = carry + limb * factor[i - j]
        product.append(carry & _LIMB)
        carry = carry >> 24
    high = (product[6] << 24) + product[5]  # in units of 2^-46
    quadrant = high + (1 << 45) >> 46
    rest = (high - (quadrant << 46)).to(torch.float64) * 2.0**-46
    rest = rest + ((product[4] << 24) + product[3]).to(torch.float64) * 2.0**-94
    rest = rest + ((product[2] << 24) + product[1]).to(torch.float64) * 2.0**-142
    rest = rest * (pi / 2)
    return torch.where(x < 0, -rest, rest), torch.where(x < 0, -quadrant, quadrant)


_LIMB, _LIMBS = (1 << 24) - 1, 7  # of which two bits count whole quadrants
_EXPONENT_OF_FIRST = 1023 + 20  # as it stands in the bits of 2^20


@cache
def _windows(device: torch.device) -> Tensor:
    """`2^(e−52) · 2/π` modulo 4 for e from 20 on, in limbs `[7, exponents]` from the lowest, on a device."""
    places = 24 * _LIMBS - 2
    rows = [_TWO_OVER_PI >> (_TWO_OVER_PI_PLACES - (e - 52) - places) for e in range(20, 1024)]
    return torch.tensor([[row >> 24 * i & _LIMB for row in rows] for i in range(_LIMBS)], device=device)
