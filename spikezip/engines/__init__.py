"""Interpreters of a program: quantized, spike, folded, event; and the spiking network that they run."""

from spikezip.engines.engine import CODINGS, Drive, Run, Steps
from spikezip.engines.loop import ENGINES, resolve_engine
from spikezip.engines.network import SpikingNetwork, simulate
from spikezip.engines.quantized import quantized

__all__ = ["CODINGS", "ENGINES", "Drive", "Run", "SpikingNetwork", "Steps", "quantized", "resolve_engine", "simulate"]
