"""Networks of other libraries in and out: quantize, convert, save, load."""

from spikezip.models.folders import load, locate, save
from spikezip.models.networks import convert, quantize

__all__ = ["convert", "load", "locate", "quantize", "save"]
