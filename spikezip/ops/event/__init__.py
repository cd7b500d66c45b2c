"""Steps of a network in which only what fired costs work (derivation in README.md)."""

from spikezip.ops.event.layer import Layer, Source, Track
from spikezip.ops.event.walk import Walk

__all__ = ["Layer", "Source", "Track", "Walk"]
