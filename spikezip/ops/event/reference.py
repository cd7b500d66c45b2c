"""What events add: running products from the change of the codes, instead of from the codes."""

import torch
from torch import Tensor

from spikezip.ops import grid


def linear(sums: Tensor, before: Tensor, now: Tensor, weight: Tensor) -> Tensor:
    """`A_t·Wᵀ` from `A_{t−1}·Wᵀ`: each input that changed adds its column of the weights, times its spike.

    Example:
        >>> weight = torch.tensor([[3, 4], [5, 6]], dtype=torch.int8)
        >>> before, now = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.0]])
        >>> linear(before @ weight.float().t(), before, now, weight)
        tensor([[ 7., 11.]])
    """
    return sums + grid.reference.linear(now - before, weight, sums.dtype)


def matmul(sums: Tensor, a_before: Tensor, a: Tensor, b_before: Tensor, b: Tensor) -> Tensor:
    """`A_t·B_t = A_{t−1}·B_{t−1} + dA·B_t + A_{t−1}·dB`: SESA with two products, both with spikes on one side.

    Example:
        >>> A, B = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [1.0]])
        >>> matmul(A @ B, A, A + 1, B, B - 1) == (A + 1) @ (B - 1)
        tensor([[True]])
    """
    return sums + torch.matmul(a - a_before, b) + torch.matmul(a_before, b - b_before)
