"""Functions without a spiking form of their own: Spike-Softmax, Spike-LayerNorm and the like (README.md)."""

from spikezip.ops.differential.reference import DifferentialState, step

__all__ = ["DifferentialState", "step"]
