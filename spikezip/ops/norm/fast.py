"""Who computes LayerNorm: a kernel on a GPU, a compiled loop on the CPU, or the reference. The bits are the same."""

from typing import Any

import torch
from torch import Tensor

from spikezip.ops import grid, kernels, neuron
from spikezip.ops.compiled import numba_is_here
from spikezip.ops.neuron import Neurons
from spikezip.ops.norm import reference


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm over the last dimension, the same function in training, in a quantized network and in every engine.

    Example:
        >>> layer_norm(torch.tensor([[1.0, 3.0]]), torch.tensor([1.0, 2.0]), None, 0.0)
        tensor([[-1.,  2.]])
    """
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        result: Tensor = _LayerNorm.apply(x, weight, bias, eps)
        return result
    return _forward(x, weight, bias, eps)[0]


def walk_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    neurons: Neurons,
    added: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Neurons behind a LayerNorm of `[T, rows, channels]`: what it reads, and as `neuron.walk` of its output.

    With `added`, it reads `x` plus the values of codes: int8 `[T, rows, channels]` and their scale.

    Example:
        >>> x, half = torch.tensor([[[1.0, 3.0]]]), torch.tensor(0.5)
        >>> neurons = Neurons(torch.zeros(2, dtype=torch.int8), half, -4, 7, max_spike=8, samples=1)
        >>> walk_norm(x, torch.tensor([1.0, 2.0]), None, 0.0, neurons)[1].tolist()
        [[-2, 4]]
        >>> walk_norm(x, None, None, 0.0, neurons, (torch.ones(1, 1, 2).char(), half))[0].tolist()
        [[[1.5, 3.5]]]
    """
    if takes(x, weight, bias):
        from spikezip.ops.norm import triton  # only where it is used: importing the library must not need it

        return triton.walk_norm(x, weight, bias, eps, neurons, added)
    x = x if added is None else grid.add_scaled(x, *added)
    return x, *neuron.walk(layer_norm(x, weight, bias, eps).view(len(x), -1), neurons)


def takes(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the kernels take these: float32 on a GPU, and not too many channels.

    Example:
        >>> takes(torch.zeros(2, 3), None, None)
        False
    """
    floats = all(t is None or t.dtype == torch.float32 for t in (x, weight, bias))
    return floats and x.shape[-1] <= reference.LARGEST and kernels.on_gpu(x, weight, bias)


def _forward(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm, and mean and inverse deviation of each row for backward."""
    if takes(x, weight, bias):
        from spikezip.ops.norm import triton

        return triton.layer_norm(x, weight, bias, eps)
    fits = x.dtype == torch.float32 and x.device.type == "cpu" and 0 < x.shape[-1] <= reference.LARGEST
    if fits and x.numel() and numba_is_here():
        from spikezip.ops.norm import compiled  # only where it is used: importing the library must not need numba

        return compiled.layer_norm(x, weight, bias, eps)
    mean, deviation = reference.moments(x, eps)
    return reference.normalise(x, mean, deviation, weight, bias), mean, deviation


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        y, mean, deviation = _forward(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, mean, deviation)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight, mean, deviation = ctx.saved_tensors
        if takes(x, weight, None):
            from spikezip.ops.norm import triton

            grads = triton.backward(grad, x, weight, mean, deviation)
        else:
            grads = _backward(grad, x, weight, mean, deviation)
        grad_x, grad_weight, grad_bias = (
            g if needed else None for g, needed in zip(grads, ctx.needs_input_grad, strict=False)
        )
        return grad_x, grad_weight, grad_bias, None


def _backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, deviation: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for `x`, the weight and the bias."""
    even = (x - mean) * deviation
    weighted = grad if weight is None else grad * weight
    middle, slope = weighted.mean(dim=-1, keepdim=True), (weighted * even).mean(dim=-1, keepdim=True)
    rows = tuple(range(x.ndim - 1))
    return (weighted - middle - even * slope) * deviation, (grad * even).sum(rows), grad.sum(rows)
