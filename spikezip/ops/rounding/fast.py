"""The rounding rule on the CPU: float32 everywhere, float64 only where a near-tie shows up. Equal to the reference."""

import torch
from torch import Tensor

from spikezip.ops.rounding import reference

# Values handled at a time: small enough for all intermediate results to stay in a core's cache.
BLOCK = 1 << 18
# Near-ties are looked for in rows of this many values; only a row that holds one is searched.
_ROW = 1 << 10


def tie_margin(lo: int, hi: int) -> float:
    """Quotients closer to a boundary than this are decided in float64 (error bound in README.md).

    Example:
        >>> tie_margin(-16, 15) == 2.0**-23 * 18
        True
    """
    return 2.0**-23 * (max(abs(lo), abs(hi)) + 2)


def make_scratch(size: int) -> Tensor:
    """Working memory for blocks of up to `size` values: whole rows, and zeros where a block does not reach."""
    return torch.zeros(-(-size // _ROW) * _ROW, dtype=torch.float32)


def has_inverse(scale: Tensor) -> bool:
    """Whether `1/s` is a normal float32, of every scale if there are several: the error bound supposes that.

    Example:
        >>> has_inverse(torch.tensor(0.1)), has_inverse(torch.tensor([0.1, 2.0**-149]))
        (True, False)
    """
    if scale.ndim:
        least, largest = scale.aminmax()
        return float(least) >= 2.0**-125 and float(largest) <= 2.0**125
    return 2.0**-125 <= float(scale) <= 2.0**125


def round_block(u: Tensor, scale: Tensor, inverse: Tensor, lo: int, hi: int, out: Tensor, scratch: Tensor) -> None:
    """Codes of the values `u`, a contiguous block, into `out`; `scratch` comes from `make_scratch`."""
    distance = scratch[: u.numel()]
    torch.mul(u, inverse, out=distance)
    torch.round(distance, out=out)
    # How far a quotient is from its code: 0 in the middle, 1/2 at a boundary.
    distance.sub_(out).abs_()
    limit = 0.5 - tie_margin(lo, hi)
    furthest = scratch.view(-1, _ROW).amax(dim=1)
    if not float(furthest.amax()) < limit:  # a NaN comes this way, too
        for row in (~(furthest < limit)).nonzero().flatten().tolist():
            here = slice(row * _ROW, min((row + 1) * _ROW, u.numel()))
            ties = (~(distance[here] < limit)).nonzero().flatten() + here.start
            out[ties] = reference.code(u[ties], scale, lo, hi)
    out.clamp_(lo, hi)


def code(u: Tensor, scale: Tensor, lo: int, hi: int) -> Tensor:
    """As `reference.code`, for float32 `u` on the CPU."""
    if not has_inverse(scale):
        return reference.code(u, scale, lo, hi)
    flat = u.contiguous().view(-1)
    result = torch.empty_like(flat)
    scratch = make_scratch(min(BLOCK, flat.numel()))
    inverse = 1 / scale
    for start in range(0, flat.numel(), BLOCK):
        block = flat[start : start + BLOCK]
        if block.numel() < BLOCK < flat.numel():
            scratch.zero_()  # the last block is shorter
        round_block(block, scale, inverse, lo, hi, result[start : start + BLOCK], scratch)
    return result.view(u.shape)
