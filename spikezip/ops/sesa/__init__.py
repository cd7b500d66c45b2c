"""Spike-equivalent self-attention: the product of two operands that both arrive as spikes (README.md)."""

from spikezip.ops.sesa.reference import step

__all__ = ["step"]
