"""LSQ on the CPU: piece by piece, so that what is computed in between stays in cache. Equal to the reference."""

import torch
from torch import Tensor

from spikezip.ops import rounding
from spikezip.ops.lsq import reference
from spikezip.ops.lsq.reference import TILE, TILES

# Values handled at a time: whole chunks of the ordered sum.
PIECE = 32 * TILE * TILES


def quantize(
    u: Tensor, scale: Tensor, lo: int, hi: int, codes_dtype: torch.dtype = torch.float32, with_values: bool = True
) -> tuple[Tensor, Tensor]:
    """As `reference.quantize`, for float32 values on the CPU and one scale."""
    reference.check_codes_dtype(codes_dtype, lo, hi)
    codes = rounding.code(u, scale.reshape(()), lo, hi)
    narrow = codes.to(codes_dtype)
    return codes * scale.detach().reshape(()).float() if with_values else narrow, narrow


def backward(grad: Tensor, u: Tensor, scale: Tensor, lo: int, hi: int) -> tuple[Tensor, Tensor]:
    """As `reference.backward`, for float32 values on the CPU and one scale."""
    if u.numel() <= TILE:  # nothing to gain
        return reference.backward(grad, u, scale, lo, hi)
    reference.check_shapes(u, scale, grad)
    flat, flat_grad, step = u.contiguous().view(-1), grad.contiguous().view(-1), scale.reshape(()).float()
    grad_u = torch.empty_like(flat)
    chunks = -(-u.numel() // (TILE * TILES))
    terms = torch.zeros(min(PIECE, chunks * TILE * TILES), dtype=torch.float64)
    totals = []
    for start in range(0, u.numel(), PIECE):
        here = slice(start, start + PIECE)
        slope = flat[here] / step
        outside = ~((slope >= lo) & (slope <= hi))
        inside_slope = slope.add(0.5).floor_().sub_(slope)
        slope = torch.where(outside, slope.clamp_(lo, hi), inside_slope)
        grad_u[here].copy_(flat_grad[here]).masked_fill_(outside, 0.0)
        count = slope.numel()
        terms[:count].copy_(flat_grad[here]).mul_(slope)
        terms[count:].zero_()  # the last piece is shorter
        used = -(-count // (TILE * TILES))
        totals.append(reference.add_tiles(terms.view(-1, TILES, TILE)[:used]))
    total = reference.last_sum(reference.halve(torch.cat(totals)), TILE)
    return grad_u.view(u.shape), reference.finish(total, scale, reference.share(u, scale, hi))
