"""One step of a network where only what fired costs work (derivation in README.md)."""

from spikezip.ops.event import reference
from spikezip.ops.event.fast import add_linear, add_matmul, linear_into, share_of_linear, share_of_matmul
from spikezip.ops.event.layer import Events, Fired, Layer, Source, Track, Walked
from spikezip.ops.event.walk import Walk

__all__ = [
    "Events",
    "Fired",
    "Layer",
    "Source",
    "Track",
    "Walk",
    "Walked",
    "add_linear",
    "add_matmul",
    "linear_into",
    "reference",
    "share_of_linear",
    "share_of_matmul",
]
