"""What follows a product: a kernel on the GPU, compiled loops or plain torch elsewhere, equal bit for bit."""

import torch
from torch import Tensor

from spikezip.errors import InputError
from spikezip.ops import kernels
from spikezip.ops.compiled import numba_is_here


def scale_bias(total: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """What follows a product of integers: `total · scale + bias`, rounded after the product and after the sum.

    Sums may come as int32; they are below 2^24, so that float32 holds them. Scale and bias have one number for each
    channel.

    Example:
        >>> scale_bias(torch.tensor([[3.0, 4.0]]), torch.tensor([0.5, 0.25]), torch.tensor([1.0, 1.0]))
        tensor([[2.5000, 2.0000]])
    """
    check_channels(total, scale, bias)
    if _on_gpu(total, scale, bias):
        from spikezip.ops.grid import triton  # only where it is used: importing the library must not need it

        return triton.scale_bias(total, scale, bias)
    if not total.is_floating_point() and total.device.type == "cpu" and scale.dtype == torch.float32:
        if total.dtype == torch.int32 and numba_is_here() and total.is_contiguous():
            from spikezip.ops.grid import compiled

            return compiled.scale_bias(total, scale, bias)
        total = total.to(scale.dtype).mul_(scale)
        return total if bias is None else total.add_(bias)
    scaled = total.mul(scale)
    return scaled if bias is None else scaled.add(bias)


def add_scaled(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """`x + codes · scale` for one scale, rounded after the product and after the sum.

    Example:
        >>> add_scaled(torch.tensor([1.0, 2.0]), torch.tensor([3, -4], dtype=torch.int8), torch.tensor(0.5))
        tensor([2.5000, 0.0000])
    """
    if codes.dtype == torch.int8 and x.dtype == torch.float32:
        if _on_gpu(x, scale):
            from spikezip.ops.grid import triton

            return triton.add_scaled(x, codes, scale)
        if x.device.type == "cpu" and numba_is_here() and x.is_contiguous() and codes.is_contiguous():
            from spikezip.ops.grid import compiled

            return compiled.add_scaled(x, codes, scale)
    return x + codes * scale


def scaled_gradient(grad: Tensor, scale: Tensor, dtype: torch.dtype, with_sum: bool) -> tuple[Tensor, Tensor | None]:
    """What a product's backward pass begins with: `grad · scale` in `dtype`, and the sum over the rows if wanted.

    The sum is the gradient of the bias; in which order it adds, is left to the device.

    Example:
        >>> scaled_gradient(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.5, 2.0]), torch.bfloat16, True)
        (tensor([[0.5000, 4.0000],
                [1.5000, 8.0000]], dtype=torch.bfloat16), tensor([4., 6.]))
    """
    if _on_gpu(grad, scale):
        from spikezip.ops.grid import triton

        return triton.scaled_gradient(grad, scale, dtype, with_sum)
    return (grad * scale).to(dtype), grad.sum(dim=0) if with_sum else None


def check_channels(total: Tensor, scale: Tensor, bias: Tensor | None) -> None:
    """Raise unless scale and bias hold one element for each channel of the sums.

    Example:
        >>> check_channels(torch.zeros(2, 3), torch.ones(3), torch.zeros(2))
        Traceback (most recent call last):
        spikezip.errors.InputError: a bias of shape [2] does not fit sums of shape [2, 3]: give [3]
    """
    for name, given in (("scale", scale), ("bias", bias)):
        if given is not None and given.shape != total.shape[-1:]:
            raise InputError(
                f"a {name} of shape {list(given.shape)} does not fit sums of shape {list(total.shape)}: "
                f"give {list(total.shape[-1:])}"
            )


def _on_gpu(*tensors: Tensor | None) -> bool:
    """Whether the kernels take these: float32 on a CUDA device, with Triton installed."""
    return all(t is None or t.dtype == torch.float32 for t in tensors) and kernels.on_gpu(*tensors)
