"""Who computes softmax: the kernel without an order on a GPU, torch elsewhere."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spikezip.ops import kernels


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension, the same function in training, in a quantized network and in every engine.

    On a GPU it is `reference.softmax`, with the GPU's own exponential, so that it can be computed inside larger kernels
    too. On the CPU it is torch's, which handles a row the same way wherever it lies.

    Example:
        >>> softmax(torch.zeros(1, 2))
        tensor([[0.5000, 0.5000]])
    """
    if x.dtype == torch.float32 and kernels.on_gpu(x):
        result: Tensor = _Softmax.apply(x)
        return result
    return F.softmax(x, dim=-1)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        from spikezip.ops.softmax import triton  # only where it is used: importing the library must not need it

        p = triton.softmax(x)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        weighted = p * grad
        return weighted - p * weighted.sum(dim=-1, keepdim=True)
