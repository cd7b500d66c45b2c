"""Products of codes with integer weights, exact in floating-point units (derivation in README.md)."""

from spikezip.ops.grid.fast import add_scaled, linear, matmul, scale_bias, scaled_gradient, weight_grid
from spikezip.ops.grid.reference import (
    INPUT_FRACTION_BITS,
    WEIGHT_BITS,
    accumulator,
    fixed_point,
    halves,
    linear_bound,
)

__all__ = [
    "INPUT_FRACTION_BITS",
    "WEIGHT_BITS",
    "accumulator",
    "add_scaled",
    "fixed_point",
    "halves",
    "linear",
    "linear_bound",
    "matmul",
    "scale_bias",
    "scaled_gradient",
    "weight_grid",
]
