"""Who computes an elementary function: a compiled loop, a GPU kernel, or the reference. All have the same bits."""

import torch
from torch import Tensor

from spikezip.ops import kernels
from spikezip.ops.compiled import numba_is_here
from spikezip.ops.elementary import reference
from spikezip.ops.elementary.reference import (
    cos,
    cosh,
    elu,
    erfc,
    exp2,
    expm1,
    log1p,
    log2,
    log10,
    log_sigmoid,
    mish,
    power,
    sin,
    sinh,
    softsign,
    tan,
)

__all__ = [
    "cos",
    "cosh",
    "elu",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "gelu",
    "gelu_tanh",
    "inverse_root",
    "log",
    "log1p",
    "log2",
    "log10",
    "log_sigmoid",
    "mish",
    "power",
    "root",
    "sigmoid",
    "silu",
    "sin",
    "sinh",
    "softplus",
    "softsign",
    "tan",
    "tanh",
]


def _fastest(name: str, x: Tensor, *given: float) -> Tensor:
    result: Tensor
    if x.dtype == torch.float32 and x.device.type == "cpu" and numba_is_here():
        from spikezip.ops.elementary import compiled  # only where it is used: importing the library must not need it

        result = compiled.compute(name, x.detach(), *given)
    elif x.dtype == torch.float32 and kernels.on_gpu(x):
        from spikezip.ops.elementary import triton

        result = triton.compute(name, x.detach(), *given)
    else:
        result = getattr(reference, name)(x, *given)
    return result


def exp(x: Tensor) -> Tensor:
    """As `reference.exp`.

    Example:
        >>> exp(torch.tensor([0.0, 1.0]))
        tensor([1.0000, 2.7183])
    """
    return _fastest("exp", x)


def log(x: Tensor) -> Tensor:
    """As `reference.log`.

    Example:
        >>> log(torch.tensor([1.0, 10.0, 0.0]))
        tensor([0.0000, 2.3026,   -inf])
    """
    return _fastest("log", x)


def root(x: Tensor) -> Tensor:
    """As `reference.root`.

    Example:
        >>> root(torch.tensor([4.0, 2.0]))
        tensor([2.0000, 1.4142])
    """
    return _fastest("root", x)


def inverse_root(x: Tensor) -> Tensor:
    """As `reference.inverse_root`.

    Example:
        >>> inverse_root(torch.tensor([4.0, 2.0]))
        tensor([0.5000, 0.7071])
    """
    return _fastest("inverse_root", x)


def tanh(x: Tensor) -> Tensor:
    """As `reference.tanh`.

    Example:
        >>> tanh(torch.tensor([-20.0, 0.0, 0.5]))
        tensor([-1.0000,  0.0000,  0.4621])
    """
    return _fastest("tanh", x)


def sigmoid(x: Tensor) -> Tensor:
    """As `reference.sigmoid`.

    Example:
        >>> sigmoid(torch.tensor([0.0, 2.0]))
        tensor([0.5000, 0.8808])
    """
    return _fastest("sigmoid", x)


def silu(x: Tensor) -> Tensor:
    """As `reference.silu`.

    Example:
        >>> silu(torch.tensor([0.0, 2.0]))
        tensor([0.0000, 1.7616])
    """
    return _fastest("silu", x)


def erf(x: Tensor) -> Tensor:
    """As `reference.erf`.

    Example:
        >>> erf(torch.tensor([0.0, 0.5, 2.0]))
        tensor([0.0000, 0.5205, 0.9953])
    """
    return _fastest("erf", x)


def gelu(x: Tensor) -> Tensor:
    """As `reference.gelu`.

    Example:
        >>> gelu(torch.tensor([-1.0, 1.0]))
        tensor([-0.1587,  0.8413])
    """
    return _fastest("gelu", x)


def gelu_tanh(x: Tensor) -> Tensor:
    """As `reference.gelu_tanh`.

    Example:
        >>> gelu_tanh(torch.tensor([-1.0, 1.0]))
        tensor([-0.1588,  0.8412])
    """
    return _fastest("gelu_tanh", x)


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """As `reference.softplus`.

    Example:
        >>> softplus(torch.tensor([-1.0, 0.0, 30.0]))
        tensor([ 0.3133,  0.6931, 30.0000])
    """
    return _fastest("softplus", x, beta, threshold)
