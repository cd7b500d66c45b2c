"""A watch over functional calls: a product of activations outside every rule is an error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from spikezip.errors import CoverageError
from spikezip.quant.attention import QuantAttention
from spikezip.quant.synapse import QuantInput, QuantSynapse

_PRODUCTS = frozenset(
    {
        torch.matmul,
        torch.mm,
        torch.bmm,
        torch.baddbmm,
        torch.addmm,
        torch.einsum,
        torch.conv1d,
        torch.conv2d,
        F.linear,
        F.conv1d,
        F.conv2d,
        F.scaled_dot_product_attention,
        Tensor.matmul,
        Tensor.__matmul__,
        Tensor.__rmatmul__,
        Tensor.mm,
        Tensor.bmm,
    }
)


class _ProductWatch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.stack: list[tuple[str, bool]] = [("the model", False)]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        where, allowed = self.stack[-1]
        if func in _PRODUCTS and not allowed:
            raise CoverageError(
                f"{where} calls {getattr(func, '__name__', func)} in functional code, where no site can be placed: "
                "its operands would not be spikes. The architecture's table needs a rule for it."
            )
        return func(*args, **(kwargs or {}))


@contextmanager
def watching_products(qann: nn.Module, constants: list[str]) -> Iterator[None]:
    """Inside the block, a product outside the quantized layers and the modules that compute constants is an error."""
    watch = _ProductWatch()
    handles = []
    for name, module in qann.named_modules():
        if not name:
            continue
        own = isinstance(module, (QuantSynapse, QuantAttention, QuantInput)) or name in constants

        def enter(module: nn.Module, args: Any, name: str = name, own: bool = own) -> None:
            watch.stack.append((name, own or watch.stack[-1][1]))

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            watch.stack.pop()

        handles += [
            module.register_forward_pre_hook(enter, prepend=True),
            module.register_forward_hook(leave),
        ]
    try:
        with watch:
            yield
    finally:
        for handle in handles:
            handle.remove()
