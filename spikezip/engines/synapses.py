"""Products on the integer grid: exact sums of codes times integers, and the scale and bias that follow.

`totals` is linear in the codes, so that an engine may call it with codes (all at once) or with spikes (what this step
adds). `output` turns running totals into running values: `y = total · (s_in · s_w) + b`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikezip.ops import grid
from spikezip.program.analysis import source
from spikezip.program.freeze import Frozen
from spikezip.program.nodes import Convolution, Grid, Linear, Matmul, Site, Weight

Totals = tuple[Tensor, ...]


@dataclass(frozen=True)
class Part:
    """A weight matrix `[out, in]` whose product with codes is exact when summed in `dtype`."""

    weight: Tensor
    dtype: torch.dtype


class Synapse:
    """A linear or convolutional product of a site's codes with weights.

    Convolutions are products of what their kernel sees: no kernel of a library can then round on the way.
    """

    def __init__(self, network: Frozen, node: Linear | Convolution) -> None:
        self.node = node
        site = source(network.program, node.x)
        weight = network.program[node.weight]
        assert isinstance(site, Site)
        assert isinstance(weight, Weight)
        self.site, self.largest = site, site.largest
        step = network.step_size(site.name)
        self.dtype = step.dtype
        self.factor: Tensor | None
        if weight.bits is None:
            matrix = network.tensors[weight.key]
            matrix = matrix * step if step.ndim else matrix
            self.parts = [Part(matrix.flatten(1), matrix.dtype)]
            self.factor = None if step.ndim else step
        else:
            codes, scale = network.codes(weight.key)
            self.parts = integer_parts(codes.flatten(1), weight.bits, site.largest, node.name)
            self.factor = scale if step.ndim else step * scale
        self.bias = _bias(network, node)
        self.kernel = weight.shape[2:]

    def totals(self, codes: Tensor) -> Totals:
        """The exact sums for these codes, or spikes: one tensor for each part of the weights, channels last."""
        node = self.node
        if isinstance(node, Linear):
            return tuple(grid.linear(codes, part.weight, part.dtype, self.largest) for part in self.parts)
        rows = windows(codes, node, self.kernel)
        if node.groups == 1:
            return tuple(grid.linear(rows, part.weight, part.dtype, self.largest) for part in self.parts)
        return tuple(_grouped(rows, part, node.groups) for part in self.parts)

    def output(self, totals: Totals) -> Tensor:
        """Values from running totals."""
        total = totals[0]
        for low in totals[1:]:  # 16 bits are 256 times the upper half, plus the lower
            first = self.parts[0].dtype
            total = total.to(first) * 256 + low
        if total.dtype == torch.int32:
            total = total.to(self.parts[0].dtype)
        if self.factor is not None:
            total = total * self.factor.to(total.dtype)
        return _with_bias(self.node, total.to(self.dtype), self.bias)


def integer_parts(codes: Tensor, bits: int, largest_code: int, what: str) -> list[Part]:
    """Integer weights as int8 matrices with their accumulators: one for 8 bits, high and low half for 16.

    Example:
        >>> [part.weight for part in integer_parts(torch.tensor([[300, -1]]), 16, 31, "a layer")]
        [tensor([[1, 0]], dtype=torch.int8), tensor([[44, -1]], dtype=torch.int8)]
    """
    matrices = grid.halves(codes.to(torch.float32)) if bits == 16 else (codes,)
    return [Part(m.to(torch.int8), _accumulator(m, largest_code, what)) for m in matrices]


def _accumulator(matrix: Tensor, largest_code: int, what: str) -> torch.dtype:
    # What int8 weights can reach at all is known without looking at them, which would make a GPU wait.
    bound = matrix.shape[1] * 128 * largest_code
    if bound >= 2**24:
        bound = grid.linear_bound(matrix, largest_code)
    return grid.accumulator(bound, f"the product {what}")


def windows(x: Tensor, node: Convolution, kernel: tuple[Any, ...]) -> Tensor:
    """What a convolution sees at each place, as rows: `[B, C, …]` → `[B, out…, C·kernel]`, groups one after another."""
    pads = [p for pair in reversed(node.padding) for p in pair]
    if any(pads):
        x = torch.nn.functional.pad(x, pads)
    dims = len(kernel)
    for i, (size, stride, dilation) in enumerate(zip(kernel, node.stride, node.dilation, strict=True)):
        x = x.unfold(2 + i, dilation * (size - 1) + 1, stride)
        x = x[..., ::dilation] if dilation > 1 else x
    # [B, C, out…, kernel…]
    places = range(2, 2 + dims)
    x = x.permute(0, *places, 1, *range(2 + dims, 2 + 2 * dims))
    return x.flatten(1 + dims)


def _grouped(rows: Tensor, part: Part, groups: int) -> Tensor:
    """Sums of a convolution in groups: each sees its own channels."""
    flat = rows.unflatten(-1, (groups, -1)).flatten(0, -3).transpose(0, 1)  # [groups, rows, in]
    weight = part.weight.unflatten(0, (groups, -1)).transpose(1, 2)  # [groups, in, out]
    total = torch.matmul(flat.to(part.dtype), weight.to(part.dtype))
    return total.transpose(0, 1).reshape(*rows.shape[:-1], -1)


def input_layer(network: Frozen, node: Linear | Convolution, x: Tensor) -> Tensor:
    """A product that sees floats: evaluated once per input, in fixed point, where its weights are integers."""
    weight = network.program[node.weight]
    assert isinstance(weight, Weight)
    codes, scale = (network.tensors[weight.key], None) if weight.bits is None else network.codes(weight.key)
    matrix = codes.flatten(1).to(torch.float64)
    if scale is None:
        wide = x.to(torch.float64)
    else:
        wide = grid.fixed_point(x, grid.linear_bound(matrix, 1), f"the input of {node.name}")
    rows = wide if isinstance(node, Linear) else windows(wide, node, weight.shape[2:])
    if isinstance(node, Linear) or node.groups == 1:
        total = torch.nn.functional.linear(rows, matrix)
    else:
        total = _grouped(rows, Part(matrix, torch.float64), node.groups)
    if scale is not None:
        total = total * (scale.to(torch.float64) * 2.0**-grid.INPUT_FRACTION_BITS)
    return _with_bias(node, total.to(node.dtype), _bias(network, node))


def _bias(network: Frozen, node: Linear | Convolution) -> Tensor | None:
    if node.bias is None:
        return None
    bias = network.program[node.bias]
    assert isinstance(bias, Weight)
    return network.tensors[bias.key]


def _with_bias(node: Linear | Convolution, y: Tensor, bias: Tensor | None) -> Tensor:
    """What a product gives, from values that have their channels last."""
    y = y if bias is None else y + bias
    return y if isinstance(node, Linear) else y.movedim(-1, 1)


class Pair:
    """A product of the codes of two sites, or of a site and a constant on a grid."""

    def __init__(self, network: Frozen, node: Matmul, constants: Mapping[str, Any]) -> None:
        self.node = node
        (left, left_largest), (right, right_largest) = (_operand(network, name, constants) for name in (node.a, node.b))
        self.dtype = network.dtype
        self.factor = left * right * node.scaling
        self.largest, self.bound = max(left_largest, right_largest), left_largest * right_largest

    def accumulator(self, depth: int) -> torch.dtype:
        """What holds sums over `depth` products of codes exactly."""
        return torch.promote_types(grid.accumulator(depth * self.bound, f"the product {self.node.name}"), self.dtype)

    def total(self, a: Tensor, b: Tensor) -> Tensor:
        return grid.matmul(a, b, self.accumulator(a.shape[-1]), self.largest)

    def output(self, total: Tensor) -> Tensor:
        return (total * self.factor.to(total.dtype)).to(self.dtype)


def _operand(network: Frozen, name: str, constants: Mapping[str, Any]) -> tuple[Tensor, int]:
    """The scale of an operand, and its largest code."""
    found = source(network.program, name)
    if isinstance(found, Site):
        return network.step_size(found.name), found.largest
    if isinstance(found, Weight):
        return network.codes(found.key)[1], grid.reference.LARGEST_WEIGHT[found.bits or 8]
    if isinstance(found, Grid):
        return constants[f"{found.name}.scale"], grid.reference.LARGEST_WEIGHT[found.bits]
    # A float constant, where weights are not on a grid.
    return torch.ones((), dtype=network.dtype, device=network.device), 1
