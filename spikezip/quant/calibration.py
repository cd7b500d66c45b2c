"""Scales from data, without training, for a network that is a program."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.walk import sizes_of
from spikezip.errors import InputError
from spikezip.program.batch import Batch, as_batches
from spikezip.program.floats import float_value, function_value, plain_product
from spikezip.program.freeze import on_grid
from spikezip.program.nodes import Function, Grid, Input, Node, Rows, Site, Values, Weight
from spikezip.quant.network import QuantizedNetwork
from spikezip.quant.observer import RangeObserver


@torch.no_grad()
def calibrate(qann: QuantizedNetwork, batches: Iterable[Batch] | Batch) -> QuantizedNetwork:
    """Set the scale of every site from what float activations look like on `batches`; returns the same network.

    A few batches are enough. Each scale minimises the squared quantization error on a sample of what its site saw.
    """
    observers = {name: RangeObserver(name, site.lo, site.hi, site.by_channel) for name, site in qann.sites.items()}
    seen = False
    for batch in as_batches(batches):
        with torch.autocast(qann.device.type, enabled=False):
            observe(qann, qann.prepare(batch), observers)
        seen = True
    if not seen:
        raise InputError("calibrate needs at least one batch")
    for name, observer in observers.items():
        qann.set_scale(name, observer.best_scale())
    return qann


def observe(qann: QuantizedNetwork, batch: Mapping[str, Any], observers: Mapping[str, RangeObserver]) -> None:
    """One pass with weights on their grid and activations in floats; sites look on."""
    program, tensors = qann.program, qann.tensors()
    sizes = sizes_of(program, batch)
    device = next(iter(tensors.values())).device
    values: dict[str, Any] = {}

    def value(node: Node) -> Any:
        if isinstance(node, Input):
            return batch[node.name]
        if isinstance(node, Weight):
            return tensors[node.key]
        if isinstance(node, Site):
            u: Tensor = values[node.u]
            u = u.clamp(min=0) if node.lo == 0 else u
            observers[node.name].see(u)
            return u
        if isinstance(node, Values):
            return values[node.codes]
        if isinstance(node, Grid):  # a scale per channel that is multiplied in is not known yet
            weight = values[node.weight]
            if node.site is not None:
                return weight
            codes, scale = on_grid(weight, node, None)
            return codes * (scale.view(-1, *[1] * (weight.ndim - 1)) if node.rows else scale)
        if isinstance(node, Function):
            return function_value(node, values, sizes, device)
        if isinstance(node, Rows):
            return float_value(node, values, sizes, device)
        return plain_product(node, values.__getitem__)

    for node in program.nodes:
        values[node.name] = value(node)
