"""The parts of a spiking network on the integer grid: neuron, synapse, attention, differential operator."""

from spikezip.spiking.attention import Attention
from spikezip.spiking.differential import Differential
from spikezip.spiking.neuron import Neuron
from spikezip.spiking.operators import SpikeLayerNorm, SpikeOperator, SpikeSoftmax
from spikezip.spiking.synapse import SpikingInput, SpikingLinear

__all__ = [
    "Attention",
    "Differential",
    "Neuron",
    "SpikeLayerNorm",
    "SpikeOperator",
    "SpikeSoftmax",
    "SpikingInput",
    "SpikingLinear",
]
