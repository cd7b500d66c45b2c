"""Spiking network × time: engines, input coding, stopping."""

from spikezip.engines.run import Run
from spikezip.simulate.drive import ENGINES, simulate
from spikezip.simulate.model import SpikingModel

__all__ = ["ENGINES", "Run", "SpikingModel", "simulate"]
