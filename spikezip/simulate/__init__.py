"""Spiking network × time: engines, input coding, stopping."""

from spikezip.simulate.drive import ENGINES, simulate
from spikezip.simulate.model import SpikingModel
from spikezip.simulate.run import Run

__all__ = ["ENGINES", "Run", "SpikingModel", "simulate"]
