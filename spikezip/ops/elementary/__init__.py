"""Elementary functions made of single IEEE operations: the same bits on every device (derivation in README.md).

Those of float32 tensors that networks use most are computed by a compiled loop on the CPU and by a kernel on a GPU, all
others by the reference. All have the same bits.
"""

from collections.abc import Callable
from functools import wraps

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
    tan,
)

__all__ = [
    "cos", "cosh", "elu", "erf", "erfc", "exp", "exp2", "expm1", "gelu", "gelu_tanh", "inverse_root", "log",
    "log1p", "log2", "log10", "log_sigmoid", "mish", "power", "root", "sigmoid", "silu", "sin", "sinh", "softplus",
    "tan", "tanh",
]  # fmt: skip


def _fastest(name: str) -> Callable[..., Tensor]:
    """The function of that name in the reference, computed by whoever is fastest."""
    plain: Callable[..., Tensor] = getattr(reference, name)

    @wraps(plain)
    def function(x: Tensor, *given: float) -> Tensor:
        # Imported only where they are used: importing the library needs neither numba nor Triton.
        if x.dtype == torch.float32 and x.device.type == "cpu" and numba_is_here():
            from spikezip.ops.elementary import compiled

            return compiled.compute(name, x.detach(), *given)
        if x.dtype == torch.float32 and kernels.on_gpu(x):
            from spikezip.ops.elementary import triton

            return triton.compute(name, x.detach(), *given)
        return plain(x, *given)

    return function


exp = _fastest("exp")
log = _fastest("log")
root = _fastest("root")
inverse_root = _fastest("inverse_root")
tanh = _fastest("tanh")
sigmoid = _fastest("sigmoid")
silu = _fastest("silu")
erf = _fastest("erf")
gelu = _fastest("gelu")
gelu_tanh = _fastest("gelu_tanh")
_softplus = _fastest("softplus")


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """As `reference.softplus`."""
    return _softplus(x, beta, threshold)
