"""The rounding rule, decided in float64."""

import torch
from torch import Tensor


def code(u: Tensor, scale: Tensor, lo: int, hi: int) -> Tensor:
    """The integer code of `u` at a site: `clamp(floor(u/s + 1/2), lo, hi)`, as a float tensor of `u`'s dtype.

    Example:
        >>> code(torch.tensor([-0.30, 0.24, 0.25, 9.0]), torch.tensor(0.5), -2, 1)
        tensor([-1.,  0.,  1.,  1.])
    """
    quotient = u.to(torch.float64) / scale.to(torch.float64)
    return quotient.add_(0.5).floor_().clamp_(lo, hi).to(u.dtype)
