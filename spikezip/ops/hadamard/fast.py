"""Who computes the transform: a compiled loop on the CPU, or the reference. The bits are the same."""

from collections.abc import Sequence

import torch
from torch import Tensor

from spikezip.ops.compiled import numba_is_here
from spikezip.ops.hadamard import reference


def hadamard(x: Tensor, block: int, skip: Sequence[int] = ()) -> Tensor:
    """The Walsh–Hadamard transform of the last dimension, in blocks; see the reference.

    Example:
        >>> hadamard(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), block=4)
        tensor([[ 2.,  6.,  4., -8.]])
    """
    plain = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    if not plain or not numba_is_here() or (x.requires_grad and torch.is_grad_enabled()):
        return reference.hadamard(x, block, skip)
    from spikezip.ops.hadamard import compiled  # only where it is used: importing the library must not need it

    return compiled.hadamard(x, block, skip)
