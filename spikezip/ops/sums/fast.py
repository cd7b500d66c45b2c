"""Who computes sums: a compiled loop for rows of float32 on the CPU, else the reference. The bits are the same."""

import torch
from torch import Tensor

from spikezip.ops.compiled import numba_is_here
from spikezip.ops.sums import reference


def total(x: Tensor, dims: tuple[int, ...], keepdim: bool = False, parts: int = 1) -> Tensor:
    """The sum along `dims`, in float64, in no order; `parts` as in the reference."""
    last = x.ndim > 0 and {d % x.ndim for d in dims} == {x.ndim - 1}
    if last and x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() and numba_is_here():
        from spikezip.ops.sums import compiled  # only where it is used: importing the library must not need numba

        summed = compiled.row_totals(x.detach())
        return summed.unsqueeze(-1) if keepdim else summed
    return reference.total(x, dims, keepdim, parts)


def mean(x: Tensor, dims: tuple[int, ...], keepdim: bool = False, parts: int = 1) -> Tensor:
    """The mean along `dims`, in float64, in no order.

    Example:
        >>> mean(torch.tensor([[0.5, 0.25, -1.0]]), (1,))
        tensor([-0.0833], dtype=torch.float64)
    """
    summed = total(x, dims, keepdim, parts)
    count = x.numel() // max(summed.numel(), 1)
    return summed / torch.full_like(summed, count)
