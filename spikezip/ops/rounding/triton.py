"""The rounding rule inside GPU kernels: in float32, and still the reference's decision for every input.

A quotient in float64 is dear on a GPU. Here a product with `1/s` gives a code that is wrong by one at most, and the
rest `u − s·k` tells: near a boundary it fits into a float32, so that one fused multiply-add gives it exactly (README.md
has the proof). A ternary neuron needs not even the code: the rest at its tracer says whether to go up or down.
"""

import triton
import triton.language as tl


@triton.jit
def unit(scale):
    """A scale as `m · 2^e` with `1 ≤ m < 2`: returns `m`, and two powers of two whose product is `2^-e`.

    Inputs are multiplied with both. A power of two changes no rounding, and afterwards nothing here can become too
    small to be exact. There are two, since for the smallest scales one would be too large for a float32.
    """
    tiny = scale < 1.1754943508222875e-38  # 2^-126: below, floats lose bits
    first = tl.where(tiny, 16777216.0, 1.0)
    scale = scale * first
    exponent = tl.minimum((scale.to(tl.int32, bitcast=True) >> 23) & 255, 253)
    second = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    return scale * second, first, second


@triton.jit
def code_of_unit(u, scale, lo, hi):
    """The code of `u`, once it and its scale are multiplied with the powers of `unit`. A NaN gets some code."""
    code = tl.floor(u * tl.math.div_rn(1.0, scale) + 0.5)
    rest = tl.fma(code, -scale, u)
    half = scale * 0.5
    code += tl.where(rest >= half, 1.0, 0.0) - tl.where(rest < -half, 1.0, 0.0)
    return tl.minimum(tl.maximum(code, lo), hi)


@triton.jit
def next_spike(u, tracer, scale, lo, hi, max_spike, ternary: tl.constexpr, above: tl.constexpr = False):
    """What a neuron fires in a step, for the running sum `u` in the powers of `unit`: the whole of the neuron.

    `above` says that no sum lies below `lo`.
    """
    if ternary:
        half = scale * 0.5
        u = tl.minimum(u, hi * scale)  # so that a neuron at its highest code does not rise
        if not above:
            u = tl.maximum(u, lo * scale)
        rest = tl.fma(tracer, -scale, u)  # the membrane, but for half a threshold
        return tl.where(rest >= half, 1.0, 0.0) - tl.where(rest < -half, 1.0, 0.0)
    return tl.minimum(tl.maximum(code_of_unit(u, scale, lo, hi) - tracer, -max_spike), max_spike)


@triton.jit
def exact_fma(x, factor, y):
    """`x · factor + y`, for products that need no rounding: fused with the sum or not, the result is the same."""
    return tl.fma(x, factor, y)


@triton.jit
def to_code(tracer):
    """A tracer as int8: the lowest bits of such a float are a whole number, and a sum is cheaper than a conversion."""
    return (tracer + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)
