"""The quantized network: every site holds its final code at once. There is no time here."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.synapses import Pair, Synapse
from spikezip.engines.walk import SiteRule, collect, constants, uses_of_moving, walk
from spikezip.ops import rounding
from spikezip.program.batch import sizes_of
from spikezip.program.freeze import Frozen
from spikezip.program.nodes import Matmul, Site


def quantized(network: Frozen, inputs: Mapping[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """What the network returns for a batch, and the codes of every site."""
    codes: dict[str, Tensor] = {}

    def site(node: Site, u: Tensor) -> Tensor:
        codes[node.name] = rounding.code(u, network.step_size(node.name), node.lo, node.hi)
        return codes[node.name]

    return quantized_pass(network, inputs, site), codes


@torch.no_grad()
def quantized_pass(network: Frozen, inputs: Mapping[str, Any], site: SiteRule) -> Any:
    """What the network returns for a batch if `site` says which codes a site holds for what it reads."""
    sizes = sizes_of(network.program, inputs)

    def product(node: Any, values: Mapping[str, Any]) -> Tensor:
        if isinstance(node, Matmul):
            pair = Pair(network, node, still)
            return pair.output(pair.total(values[node.a], values[node.b]))
        synapse = Synapse(network, node)
        return synapse.output(synapse.totals(values[node.x]))

    with torch.autocast(network.device.type, enabled=False):
        still = constants(network, inputs, sizes)
        values = dict(still)
        free = network.program.derived(uses_of_moving)
        walk(network, network.program.moving, values, sizes, site, product, free)
        return collect(network.program.output, values)
