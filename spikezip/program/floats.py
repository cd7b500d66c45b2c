"""The values of a program's nodes in floats: how a network computes before it is quantized."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spikezip.ops import grid, sums
from spikezip.program.functions import evaluate
from spikezip.program.nodes import Convolution, Function, Linear, Matmul, Node, Ref, Rows, map_arguments
from spikezip.program.sizes import Bindings, Size


def function_value(node: Function, values: Mapping[str, Any], sizes: Bindings, device: torch.device) -> Any:
    """The value of a function, given those of all nodes that it reads and what the symbols stand for."""

    def bound(x: Any) -> Any:
        if isinstance(x, Ref):
            return values[x.name]
        return x.at(sizes) if isinstance(x, Size) else x

    args, kwargs = map_arguments(node.args, bound), map_arguments(node.kwargs, bound)
    return evaluate(node.op, args, kwargs, node.dtype, device)


def float_value(node: Node, values: Mapping[str, Any], sizes: Bindings, device: torch.device) -> Any:
    """The value of a function or of a product of floats, which is summed without an order.

    A convolution of floats is summed by torch in float64: its last bits may depend on the machine.
    """
    if isinstance(node, Function):
        return function_value(node, values, sizes, device)
    if isinstance(node, Rows):
        rows = values[node.x]
        codes, scale = grid.weight_grid(rows.reshape(-1, rows.shape[-1]), node.bits)
        return (codes * scale[:, None]).view(rows.shape)
    if isinstance(node, Matmul):
        y = sums.matmul(values[node.a], values[node.b])
        return (y if node.scaling == 1 else y * node.scaling).to(node.dtype)
    if isinstance(node, Linear):
        x = values[node.x]
        y = sums.matmul(torch.atleast_2d(x), values[node.weight].T).view(*x.shape[:-1], -1)
        return (y if node.bias is None else y + _wide(values[node.bias])).to(node.dtype)
    return plain_product(node, lambda name: _wide(values[name])).to(node.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.float64) if x.is_floating_point() else x


def plain_product(node: Node, value: Callable[[str], Tensor]) -> Tensor:
    """A product in the dtype of its operands, by torch's own kernels."""
    if isinstance(node, Matmul):
        y = torch.matmul(value(node.a), value(node.b))
        return y if node.scaling == 1 else y * node.scaling
    assert isinstance(node, (Linear, Convolution))
    x, weight = value(node.x), value(node.weight)
    bias = None if node.bias is None else value(node.bias)
    if isinstance(node, Linear):
        return F.linear(x, weight, bias)
    pads = [p for pair in reversed(node.padding) for p in pair]
    x = F.pad(x, pads) if any(pads) else x
    function: Any = (F.conv1d, F.conv2d, F.conv3d)[len(node.stride) - 1]
    result: Tensor = function(x, weight, bias, node.stride, 0, node.dilation, node.groups)
    return result
