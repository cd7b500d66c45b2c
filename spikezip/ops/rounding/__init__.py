"""Which code does a value get? One rule for the quantized network and for every engine (derivation in README.md)."""

import torch
from torch import Tensor

from spikezip.ops.rounding import fast, reference
from spikezip.ops.rounding.reference import representable

__all__ = ["code", "fast", "reference", "representable"]


def code(u: Tensor, scale: Tensor, lo: int, hi: int) -> Tensor:
    """The integer code of `u` at a site, by the fastest implementation that equals the reference.

    Example:
        >>> code(torch.tensor([-0.30, 0.24, 0.25, 9.0]), torch.tensor(0.5), -2, 1)
        tensor([-1.,  0.,  1.,  1.])
    """
    u = u.detach()  # codes are integers: no gradient goes through here (training has its own, in quant.lsq)
    if u.dtype == torch.float32 and u.device.type == "cpu" and scale.ndim == 0:
        return fast.code(u, scale, lo, hi)
    return reference.code(u, scale, lo, hi)
