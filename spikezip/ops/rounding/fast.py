"""The rounding rule on the CPU: float32 everywhere, float64 only at near-ties. Equal to the reference."""

from torch import Tensor

from spikezip.ops.rounding import reference


def code(u: Tensor, scale: Tensor, lo: int, hi: int) -> Tensor:
    """As `reference.code`, for float32 `u` on the CPU.

    Example:
        >>> import torch
        >>> code(torch.tensor([-0.30, 0.24, 0.25, 9.0]), torch.tensor(0.5), -2, 1)
        tensor([-1.,  0.,  1.,  1.])
    """
    flat = u.contiguous().view(-1)
    quotient = (flat / scale).clamp_(lo - 1, hi + 1)
    result = (quotient + 0.5).floor_()
    # How far the quotient is from its code: 0 in the middle, 1/2 at a boundary. Clamping keeps the error bound fixed.
    distance = quotient.sub_(result).abs_()
    error = 2.0**-22 * (max(abs(lo), abs(hi)) + 2)
    ties = (distance > 0.5 - error).nonzero().squeeze(1)
    result.clamp_(lo, hi)
    if ties.numel():
        result[ties] = reference.code(flat[ties], scale, lo, hi)
    return result.view(u.shape)
