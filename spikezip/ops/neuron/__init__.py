"""The ST-BIF+ neuron (derivation in README.md)."""

from spikezip.ops.neuron.fast import takes_steady, walk, walk_products
from spikezip.ops.neuron.reference import NeuronState, fire, initial_state, membrane, scan, slew, step

__all__ = [
    "NeuronState",
    "fire",
    "initial_state",
    "membrane",
    "scan",
    "slew",
    "step",
    "takes_steady",
    "walk",
    "walk_products",
]
