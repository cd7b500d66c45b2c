"""Who computes softmax: a kernel on a GPU, a compiled loop on the CPU, or the reference. The bits are the same."""

from typing import Any

import torch
from torch import Tensor

from spikezip.ops import kernels
from spikezip.ops.compiled import numba_is_here
from spikezip.ops.softmax import reference


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension, the same function in training, in a quantized network and in every engine.

    Example:
        >>> softmax(torch.zeros(1, 2))
        tensor([[0.5000, 0.5000]])
    """
    if x.requires_grad and torch.is_grad_enabled():
        result: Tensor = _Softmax.apply(x)
        return result
    return _forward(x)


def _forward(x: Tensor) -> Tensor:
    if x.dtype == torch.float32 and kernels.on_gpu(x):
        from spikezip.ops.softmax import triton  # only where it is used: importing the library must not need it

        return triton.softmax(x)
    if x.dtype == torch.float32 and x.device.type == "cpu" and numba_is_here():
        from spikezip.ops.softmax import compiled

        return compiled.softmax(x)
    return reference.softmax(x)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        p = _forward(x)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        result: Tensor = torch._softmax_backward_data(grad, p, -1, p.dtype)
        return result
