"""A model → its frozen network, for tests of the engines."""

from typing import Any

import torch
from torch import nn

from spikezip.engines.walk import sizes_of
from spikezip.program.capture import capture
from spikezip.program.floats import function_value, plain_product
from spikezip.program.freeze import Frozen, freeze
from spikezip.program.nodes import Function, Grid, Input, Node, Site, Values, Weight
from spikezip.program.place import place
from spikezip.program.tidy import tidy
from spikezip.quant.config import QuantConfig
from spikezip.quant.observer import RangeObserver


@torch.no_grad()
def freeze_model(model: nn.Module, batch: dict[str, Any], config: QuantConfig) -> Frozen:
    """The frozen network of a model; the scales of its sites are those that suit one batch best."""
    captured = capture(model, batch)
    program = place(tidy(captured.program), config, captured.modules)
    sizes = sizes_of(program, batch)
    observers = {name: RangeObserver(name, site.lo, site.hi, site.by_channel) for name, site in program.sites.items()}
    values: dict[str, Any] = {}

    def value(node: Node) -> Any:
        if isinstance(node, Input):
            return batch[node.name]
        if isinstance(node, Weight):
            return captured.tensors[node.key]
        if isinstance(node, Site):
            seen = values[node.u].clamp(min=0) if node.lo == 0 else values[node.u]
            observers[node.name].see(seen)
            return seen
        if isinstance(node, (Grid, Values)):
            return values[node.reads[0]]
        if isinstance(node, Function):
            return function_value(node, values, sizes, torch.device("cpu"))
        return plain_product(node, values.__getitem__)

    for node in program.nodes:
        values[node.name] = value(node)
    return freeze(program, captured.tensors, {name: one.best_scale() for name, one in observers.items()})
