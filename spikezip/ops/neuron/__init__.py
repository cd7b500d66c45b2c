"""The ST-BIF+ neuron (derivation in README.md)."""

from spikezip.ops.neuron.fast import walk, walk_products
from spikezip.ops.neuron.layer import Layer, Source, Track, Walk, not_a_number
from spikezip.ops.neuron.reference import Neurons, NeuronState, fire, initial_state, membrane, scan, slew, step

__all__ = [
    "Layer",
    "NeuronState",
    "Neurons",
    "Source",
    "Track",
    "Walk",
    "fire",
    "initial_state",
    "membrane",
    "not_a_number",
    "scan",
    "slew",
    "step",
    "walk",
    "walk_products",
]
