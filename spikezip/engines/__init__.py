"""Interpreters of a program: quantized, spike, folded, event; and the spiking network that they run."""

from spikezip.engines.loop import ENGINES, resolve_engine
from spikezip.engines.network import SpikingNetwork, simulate
from spikezip.engines.quantized import quantized
from spikezip.engines.run import Run
from spikezip.engines.state import CODINGS, Drive, Steps

__all__ = ["CODINGS", "ENGINES", "Drive", "Run", "SpikingNetwork", "Steps", "quantized", "resolve_engine", "simulate"]
