"""Scales from data, without training, for a network that is a program."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.walk import sizes_of
from spikezip.errors import InputError
from spikezip.program.batch import Batch, as_batches
from spikezip.program.floats import function_value, plain_product
from spikezip.program.nodes import Function, Grid, Input, Node, Site, Values, Weight
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
        _observe(qann, qann.prepare(batch), observers)
        seen = True
    if not seen:
        raise InputError("calibrate needs at least one batch")
    for name, observer in observers.items():
        qann.set_scale(name, observer.best_scale())
    return qann


def _observe(qann: QuantizedNetwork, batch: Mapping[str, Any], observers: Mapping[str, RangeObserver]) -> None:
    """One pass in floats; sites look on."""
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
        if isinstance(node, (Grid, Values)):
            return values[node.reads[0]]
        if isinstance(node, Function):
            return function_value(node, values, sizes, device)
        return plain_product(node, values.__getitem__)

    for node in program.nodes:
        values[node.name] = value(node)
