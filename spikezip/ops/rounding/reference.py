"""The rounding rule, decided in float64."""

import torch
from torch import Tensor


def representable(scale: Tensor) -> Tensor:
    """The scale with the 24 bits of a float32, in its own dtype.

    In a float64 network too, `s·k` and `s/2` are then exact, and a value that lies on a boundary by construction (a
    probability of one half, say) is decided alike by the quotient here and by the membrane of a neuron.

    Example:
        >>> representable(torch.tensor(0.1, dtype=torch.float64)) == torch.tensor(0.1)
        tensor(True)
    """
    return scale.to(torch.float32).to(scale.dtype)


def code(u: Tensor, scale: Tensor, lo: int, hi: int) -> Tensor:
    """The integer code of `u` at a site: `clamp(floor(u/s + 1/2), lo, hi)`, as a float tensor of `u`'s dtype."""
    quotient = u.to(torch.float64) / scale.to(torch.float64)
    return quotient.add_(0.5).floor_().clamp_(lo, hi).to(u.dtype)
