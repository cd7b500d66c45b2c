"""A rotation of channels by additions and subtractions alone, the same bits everywhere (README.md)."""

from spikezip.ops.hadamard.fast import hadamard

__all__ = ["hadamard"]
