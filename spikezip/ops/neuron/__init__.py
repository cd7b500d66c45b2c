"""The ST-BIF+ neuron (derivation in README.md)."""

from spikezip.ops.neuron.fast import walk, walk_products
from spikezip.ops.neuron.reference import NeuronState, fire, initial_state, membrane, scan, slew, step

__all__ = [
    "NeuronState",
    "fire",
    "initial_state",
    "membrane",
    "scan",
    "slew",
    "step",
    "walk",
    "walk_products",
]
