"""The layers of a quantized network: Hugging Face's own, taught to compute on the grid in `eval()`.

A layer is adopted by giving it a subclass of its class: parameters, names, hooks and tied weights stay as they are.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from spikezip.errors import CoverageError
from spikezip.execution import current
from spikezip.ops import grid
from spikezip.quant.lsq import on_grid
from spikezip.quant.products import grid_conv, grid_linear
from spikezip.quant.site import Site
from spikezip.spiking.synapse import Part, apply_synapse, input_conv, integer_parts, link


class QuantSynapse(nn.Module):
    """What adopted layers share: where they read from, and their weights as `[out, in]` integers."""

    name: str
    weight_bits: int | None
    source: Site
    weight: Tensor
    bias: Any  # a Parameter or None; torch declares it one way for Linear, another for Conv1D
    transposed = False  # whether the parameter is `[in, out]`
    plain_glue = True  # whether nothing but a change of shape can happen between site and product (no dropout)

    def matrix(self) -> Tensor:
        """The weight as `[out, in]`."""
        return self.weight.t() if self.transposed else self.weight

    def grid_weight(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor | None]:
        """Integer weights, in `dtype` if 8 bits allow it, and their scales; with float weights, those and None.

        A source with a scale per channel cannot take it out of the sum: its scales are part of the weights.
        """
        matrix = self.matrix().detach()
        if self.source.per_channel:
            matrix = matrix * self.source.step_size
        if self.weight_bits is None:
            return matrix, None
        return grid.weight_grid(matrix, self.weight_bits, dtype if self.weight_bits == 8 else None)

    def forward(self, x: Tensor) -> Tensor:
        if self.source.on_grid():
            codes, scale = self.grid_weight()
            if self.weight_bits is None:
                parts = [Part(codes, codes.dtype)]
            else:
                parts = integer_parts(codes, self.weight_bits, self.source.largest, self.name)
            return apply_synapse(self, self.source.read(x), self.source, parts, scale, self.bias)
        if self.source.training and self.weight_bits is not None:
            arrived = self.arrived(x)
            if arrived is not None:
                return grid_linear(self, x, arrived)
        return F.linear(x, on_grid(self.matrix(), self.weight_bits), self.bias)

    def arrived(self, x: Tensor) -> Tensor | None:
        """In training: the codes that `x` consists of; None if dropout took some of them away."""
        codes = self.source.kept(x)
        if codes is None and self.plain_glue:
            codes = (x.detach() / self.source.step_size).round_()
        return codes


class QuantLinear(QuantSynapse, nn.Linear):
    """`nn.Linear` of a quantized network."""


class QuantConv1D(QuantSynapse, Conv1D):
    """GPT-2's `Conv1D`, a linear layer whose weight is `[in, out]`."""

    transposed = True


class QuantInput(nn.Conv2d):
    """The convolution that sees the float input (patch embedding)."""

    name: str
    weight_bits: int | None
    entry_site: Site

    def geometry(self) -> dict[str, Any]:
        """The arguments that `conv2d` needs beside weight and bias."""
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }

    def grid_weight(self) -> tuple[Tensor, Tensor | None]:
        if self.weight_bits is None:
            return self.weight.detach(), None
        return grid.weight_grid(self.weight, self.weight_bits)

    def forward(self, x: Tensor) -> Tensor:
        if self.entry_site.on_grid():
            return current().inject(self, x, self.evaluate)
        if self.entry_site.training and self.weight_bits is not None:
            return grid_conv(self, x)
        return F.conv2d(x, on_grid(self.weight, self.weight_bits), self.bias, **self.geometry())

    def evaluate(self, x: Tensor, check: bool = True) -> Tensor:
        codes, scale = self.grid_weight()
        return input_conv(x, codes, scale, self.bias, self.geometry(), self.name, check)


def adopt_linear(layer: Any, name: str, bits: int | None, source: Site) -> None:
    """Make an `nn.Linear` or `Conv1D` a synapse of a quantized network that reads from `source`."""
    layer.__class__ = QuantConv1D if isinstance(layer, Conv1D) else QuantLinear
    layer.name, layer.weight_bits = name, bits
    link(layer, source)


def adopt_input(layer: Any, name: str, bits: int | None, entry: Site) -> None:
    """Make a convolution the input layer of a quantized network, in front of the site `entry`."""
    if layer.padding == "valid":
        layer.padding = (0, 0)
    if isinstance(layer.padding, str):
        raise CoverageError(f"the input layer {name!r} has padding={layer.padding!r}: give it numbers, such as (1, 1)")
    layer.__class__ = QuantInput
    layer.name, layer.weight_bits = name, bits
    object.__setattr__(layer, "entry_site", entry)
