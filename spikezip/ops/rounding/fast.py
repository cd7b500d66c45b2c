"""The rounding rule on the CPU: float32 everywhere, float64 only where a near-tie shows up. Equal to the reference."""

import torch
from torch import Tensor

from spikezip.ops.rounding import reference

# Values handled at a time: small enough for all intermediate results to stay in a core's cache.
BLOCK = 1 << 16


def tie_margin(lo: int, hi: int) -> float:
    """Quotients closer to a boundary than this are decided in float64 (error bound in README.md, doubled).

    Example:
        >>> tie_margin(-16, 15) == 2.0**-22 * 18
        True
    """
    return 2.0**-22 * (max(abs(lo), abs(hi)) + 2)


def has_inverse(scale: Tensor) -> bool:
    """Whether `1/s` is a normal float32, which the error bound supposes.

    Example:
        >>> has_inverse(torch.tensor(0.1)), has_inverse(torch.tensor(2.0**-149))
        (True, False)
    """
    return 2.0**-125 <= float(scale) <= 2.0**125


def round_block(u: Tensor, scale: Tensor, inverse: Tensor, lo: int, hi: int, out: Tensor, scratch: Tensor) -> None:
    """Codes of the values `u`, a contiguous block, into `out`; `scratch` is overwritten."""
    torch.mul(u, inverse, out=scratch)
    torch.round(scratch, out=out)
    # How far a quotient is from its code: 0 in the middle, 1/2 at a boundary. A NaN fails the comparison as well.
    smallest, largest = torch.aminmax(scratch.sub_(out))
    limit = 0.5 - tie_margin(lo, hi)
    if not (float(smallest) > -limit and float(largest) < limit):
        ties = (scratch.abs_() >= limit).nonzero().squeeze(1)
        out[ties] = reference.code(u[ties], scale, lo, hi)
    out.clamp_(lo, hi)


def code(u: Tensor, scale: Tensor, lo: int, hi: int) -> Tensor:
    """As `reference.code`, for float32 `u` on the CPU.

    Example:
        >>> code(torch.tensor([-0.30, 0.24, 0.25, 9.0]), torch.tensor(0.5), -2, 1)
        tensor([-1.,  0.,  1.,  1.])
    """
    if not has_inverse(scale):
        return reference.code(u, scale, lo, hi)
    flat = u.contiguous().view(-1)
    result = torch.empty_like(flat)
    scratch = torch.empty(min(BLOCK, flat.numel()), dtype=flat.dtype)
    inverse = 1 / scale
    for start in range(0, flat.numel(), BLOCK):
        block = flat[start : start + BLOCK]
        round_block(block, scale, inverse, lo, hi, result[start : start + BLOCK], scratch[: block.numel()])
    return result.view(u.shape)
