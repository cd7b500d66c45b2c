"""The quantized network: every site holds its final code at once. There is no time here."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.synapses import Pair, Synapse
from spikezip.engines.walk import collect, constants, last_uses, sizes_of, walk
from spikezip.ops import rounding
from spikezip.program.freeze import Frozen
from spikezip.program.nodes import Matmul, Site


@torch.no_grad()
def quantized(network: Frozen, inputs: Mapping[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """What the network returns for a batch, and the codes of every site."""
    sizes = sizes_of(network.program, inputs)
    codes: dict[str, Tensor] = {}

    def site(node: Site, u: Tensor) -> Tensor:
        codes[node.name] = rounding.code(u, network.step_size(node.name), node.lo, node.hi)
        return codes[node.name]

    def product(node: Any, values: Mapping[str, Any]) -> Tensor:
        if isinstance(node, Matmul):
            pair = Pair(network, node, constants_)
            return pair.output(pair.total(values[node.a], values[node.b]))
        synapse = Synapse(network, node)
        return synapse.output(synapse.totals(values[node.x]))

    constants_ = constants(network, inputs, sizes)
    values = dict(constants_)
    free = last_uses(network.moving, network.program.returned)
    walk(network, network.moving, values, sizes, site, product, free)
    return collect(network.program.output, values), codes
