"""The layers of a quantized network: Hugging Face's own, taught to compute on the grid in `eval()`.

A layer is adopted by giving it a subclass of its class: parameters, names, hooks and tied weights stay as they are.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from spikezip.execution import current
from spikezip.ops import grid
from spikezip.quant.lsq import on_grid
from spikezip.quant.site import Site
from spikezip.spiking.attention import Attention, masked_softmax
from spikezip.spiking.synapse import Part, apply_synapse, input_conv, integer_parts, link


class QuantSynapse(nn.Module):
    """What adopted layers share: where they read from, and their weights as `[out, in]` integers."""

    name: str
    weight_bits: int | None
    source: Site
    weight: Tensor
    bias: Any  # a Parameter or None; torch declares it one way for Linear, another for Conv1D

    def matrix(self) -> Tensor:
        """The weight as `[out, in]`."""
        return self.weight

    def grid_weight(self) -> tuple[Tensor, Tensor | None]:
        """Integer weights and their scales; with float weights, those and None."""
        if self.weight_bits is None:
            return self.matrix().detach(), None
        return grid.weight_grid(self.matrix(), self.weight_bits)

    def forward(self, x: Tensor) -> Tensor:
        if not self.source.on_grid():
            return F.linear(x, on_grid(self.matrix(), self.weight_bits), self.bias)
        codes, scale = self.grid_weight()
        if self.weight_bits is None:
            parts = [Part(codes, codes.dtype)]
        else:
            parts = integer_parts(codes, self.weight_bits, self.source.largest, self.name)
        return apply_synapse(self, x, self.source, parts, scale, self.bias)


class QuantLinear(QuantSynapse, nn.Linear):
    """`nn.Linear` of a quantized network."""


class QuantConv1D(QuantSynapse, Conv1D):
    """GPT-2's `Conv1D`, a linear layer whose weight is `[in, out]`."""

    def matrix(self) -> Tensor:
        return self.weight.t()


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
        if not self.entry_site.on_grid():
            weight = on_grid(self.weight, self.weight_bits)
            return F.conv2d(x, weight, self.bias, **self.geometry())
        return current().inject(self, x, self.evaluate)

    def evaluate(self, x: Tensor) -> Tensor:
        codes, scale = self.grid_weight()
        return input_conv(x, codes, scale, self.bias, self.geometry(), self.name)


class QuantAttention(Attention):
    """Attention of a quantized network: on the grid in `eval()`, fake quantization in `train()`."""

    q: Site

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float,
        groups: int = 1,
        dropout: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        if self.q.on_grid():
            return super().forward(query, key, value, mask, scaling, groups)
        q, k, v = self.q(query), self.k(key), self.v(value)
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        scores = torch.matmul(q, k.transpose(2, 3)) * scaling
        p = self.p(masked_softmax(scores, mask))
        mixed = torch.matmul(F.dropout(p, dropout, self.training), v)
        return self.o(mixed.transpose(1, 2).contiguous()), p


def adopt_linear(layer: Any, name: str, bits: int | None, source: Site) -> None:
    """Make an `nn.Linear` or `Conv1D` a synapse of a quantized network that reads from `source`."""
    layer.__class__ = QuantConv1D if isinstance(layer, Conv1D) else QuantLinear
    layer.name, layer.weight_bits = name, bits
    link(layer, source)


def adopt_input(layer: Any, name: str, bits: int | None, entry: Site) -> None:
    """Make a convolution the input layer of a quantized network, in front of the site `entry`."""
    layer.__class__ = QuantInput
    layer.name, layer.weight_bits = name, bits
    object.__setattr__(layer, "entry_site", entry)
