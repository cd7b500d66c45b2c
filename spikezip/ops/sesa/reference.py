"""The three products of SESA."""

import torch
from torch import Tensor


def step(a_spike: Tensor, b_spike: Tensor, a_tracer: Tensor, b_tracer: Tensor) -> Tensor:
    """What this step's spikes add to `A·B`; the tracers include this step (paper, eq. for AA multiplication).

    Example:
        >>> A, B = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [1.0]])
        >>> a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0], [-1.0]])
        >>> step(a, b, A, B) == A @ B - (A - a) @ (B - b)
        tensor([[True]])
    """
    return torch.matmul(a_tracer, b_spike) + torch.matmul(a_spike, b_tracer) - torch.matmul(a_spike, b_spike)
