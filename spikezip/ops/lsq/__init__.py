"""LSQ, the quantizer that trains: codes and values forward, two gradients backward (derivation in README.md).

Each function takes the fastest implementation that equals the reference: a kernel on the GPU, pieces on the CPU.
"""

from types import ModuleType

import torch
from torch import Tensor

from spikezip.ops import kernels
from spikezip.ops.lsq import fast, reference

__all__ = ["backward", "fast", "forward", "quantize", "reference"]


def forward(u: Tensor, scale: Tensor, lo: int, hi: int, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """The integer codes of `u`; `scale` holds one element, or one per channel (the last dimension).

    Example:
        >>> forward(torch.tensor([[0.3, 0.3]]), torch.tensor([0.5, 0.1]), -4, 3, torch.int8)
        tensor([[1, 3]], dtype=torch.int8)
    """
    codes: Tensor = _best(u, scale).quantize(u, scale, lo, hi, out_dtype, with_values=False)[1]
    return codes


def quantize(
    u: Tensor, scale: Tensor, lo: int, hi: int, codes_dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """The values `code · scale` (float32, or float64 for float64 `u`) and the codes, in one pass.

    Example:
        >>> quantize(torch.tensor([0.3, -9.0]), torch.tensor(0.5), -4, 3, torch.int8)
        (tensor([ 0.5000, -2.0000]), tensor([ 1, -4], dtype=torch.int8))
    """
    values, codes = _best(u, scale).quantize(u, scale, lo, hi, codes_dtype)
    return values, codes


def backward(grad: Tensor, u: Tensor, scale: Tensor, lo: int, hi: int) -> tuple[Tensor, Tensor]:
    """The gradients for `u` (in its dtype) and for the scale (in its shape), from that for the values.

    Example:
        >>> backward(torch.ones(2), torch.tensor([0.3, 5.0]), torch.tensor(0.5), -2, 1)
        (tensor([1., 0.]), tensor(0.9899))
    """
    grad_u, grad_scale = _best(u, scale, grad).backward(grad, u, scale, lo, hi)
    return grad_u, grad_scale


def _best(u: Tensor, scale: Tensor, grad: Tensor | None = None) -> ModuleType:
    """The module whose functions suit these tensors."""
    wide = torch.float64 in (u.dtype, u.dtype if grad is None else grad.dtype)
    if not wide and kernels.on_gpu(u):
        from spikezip.ops.lsq import triton  # only where it is used: importing the library must not need it

        return triton
    narrow = u.dtype == torch.float32 and (grad is None or grad.dtype == torch.float32)
    if u.device.type == "cpu" and narrow and scale.numel() == 1:
        return fast
    return reference
