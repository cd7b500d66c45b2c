"""Quantized network → spiking network: one table of what becomes what, one walk."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from spikezip.errors import CalibrationError, ConfigError
from spikezip.quant.attention import QuantAttention
from spikezip.quant.embedding import QuantEmbedding
from spikezip.quant.model import QuantizedModel
from spikezip.quant.site import Site
from spikezip.quant.synapse import QuantConv1D, QuantInput, QuantLinear, QuantSynapse
from spikezip.simulate.model import SpikingModel, adopt_spiking
from spikezip.spiking.attention import SITES, Attention
from spikezip.spiking.embedding import SpikingEmbedding
from spikezip.spiking.hooks import SITE_IN, SITE_OUT, attach_hooks
from spikezip.spiking.neuron import Neuron
from spikezip.spiking.synapse import SpikingInput, SpikingLinear

Neurons = dict[str, Neuron]


def convert(qann: QuantizedModel, *, float_weights: bool = False) -> SpikingModel:
    """The spiking network of a quantized one. It keeps a frozen copy of its own; the quantized network stays untouched.

    `float_weights` leaves the weights where the grid has put them, but as floats, as other tools have them. Sums then
    round, in another order than those of the quantized network, and codes differ: `verify` counts them.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.quantize(transformers.ViTModel(vit))
        >>> snn = spikezip.convert(spikezip.calibrate(qann, torch.randn(2, 3, 32, 32)))
        >>> snn.get_submodule("layers.0.attention.q_proj")
        SpikingLinear(8 → 8, bits=8, reads 'layers.0.layernorm_before')
    """
    if not isinstance(qann, QuantizedModel):
        raise ConfigError(f"convert takes what spikezip.quantize returns, not {type(qann).__name__}")
    waiting = [name for name, site in qann.sites.items() if not site.is_ready()]
    if waiting:
        raise CalibrationError(
            f"{len(waiting)} of {len(qann.sites)} sites have no scale yet, {waiting[0]!r} first: "
            "call spikezip.calibrate(qann, batches) or train the network"
        )
    for name, site in qann.sites.items():
        wrong = site.scale[~((site.scale > 0) & site.scale.isfinite())]
        if wrong.numel():
            raise CalibrationError(f"site {name!r} has the scale {float(wrong.flatten()[0])}; it must be positive")
    snn = build(qann)
    if float_weights:
        _leave_grid(snn)
    return snn


@torch.no_grad()
def build(qann: QuantizedModel) -> SpikingModel:
    """`convert` without its checks, which also makes the empty network that a checkpoint is loaded into."""
    model = copy.deepcopy(qann)
    model.eval()
    neurons: Neurons = {
        name: Neuron(name, site.scale.detach().clone(), site.lo, site.hi, site.entry, site.by_channel)
        for name, site in model.sites.items()
    }
    tied = _tied_tables(model)
    # Children first, so that a replaced layer takes its sites, already replaced, along.
    for name, module in reversed(list(model.named_modules())):
        handler = HANDLERS.get(type(module))
        if handler is None:
            continue
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, handler(module, neurons))
    for table, product in tied:  # one table in memory and on disk, as it was
        for part in ("codes", "scale"):
            setattr(model.get_submodule(table), part, getattr(model.get_submodule(product), part))
    model.requires_grad_(False)
    return adopt_spiking(_plain(model), qann.quant_config, qann.canonical)


@torch.no_grad()
def _leave_grid(snn: SpikingModel) -> None:
    for module in snn.modules():
        if isinstance(module, (SpikingLinear, SpikingInput)):  # a table is looked up: nothing is summed
            module.leave_grid()
    snn.quant_config = replace(snn.quant_config, weight_bits=None)


def _neuron(site: Site, neurons: Neurons) -> Neuron:
    return neurons[site.name]


def _linear(layer: QuantSynapse, neurons: Neurons) -> nn.Module:
    codes, scale = layer.grid_weight()
    source = neurons[layer.source.name]
    bias = None if layer.bias is None else layer.bias.detach().clone()
    new = SpikingLinear(layer.name, codes.clone(), scale, bias, layer.weight_bits, source)
    return _with_sites(new, layer)


def _input(layer: QuantInput, neurons: Neurons) -> nn.Module:
    codes, scale = layer.grid_weight()
    bias = None if layer.bias is None else layer.bias.detach().clone()
    new = SpikingInput(layer.name, codes.clone(), scale, bias, layer.weight_bits, layer.geometry())
    return _with_sites(new, layer)


def _embedding(table: QuantEmbedding, neurons: Neurons) -> nn.Module:
    codes, scale = table.grid_weight()
    new = SpikingEmbedding(table.name, codes, scale, table.embedding_bits, table.padding_idx)
    return _with_sites(new, table)


def _tied_tables(model: nn.Module) -> list[tuple[str, str]]:
    """Names of embeddings and of the products that have the same table, on the same grid."""
    # A scale per input channel goes into the product's integers, which then differ from those of the table.
    products = {
        id(m.weight): name
        for name, m in model.named_modules()
        if isinstance(m, QuantSynapse) and not m.source.by_channel
    }
    tables = {name: id(m.weight) for name, m in model.named_modules() if isinstance(m, QuantEmbedding)}
    return [(name, products[weight]) for name, weight in tables.items() if weight in products]


def _attention(attention: QuantAttention, neurons: Neurons) -> Attention:
    return Attention(**{s: neurons[getattr(attention, s).name] for s in SITES})


HANDLERS: dict[type, Callable[[Any, Neurons], nn.Module]] = {
    Site: _neuron,
    QuantLinear: _linear,
    QuantConv1D: _linear,
    QuantInput: _input,
    QuantEmbedding: _embedding,
    QuantAttention: _attention,
}


def _with_sites(new: nn.Module, old: nn.Module) -> nn.Module:
    for child in (SITE_OUT, SITE_IN):
        if hasattr(old, child):
            new.add_module(child, getattr(old, child))
    attach_hooks(new)
    return new


def _plain(model: QuantizedModel) -> nn.Module:
    """Back to the Hugging Face class, before the spiking class is mixed in."""
    for attribute in ("quant_config", "canonical", "constants"):
        model.__dict__.pop(attribute, None)
    model.__class__ = type(model).own_class
    return model
