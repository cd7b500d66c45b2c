"""Sums of floats whose result does not depend on the order in which they are taken (README.md)."""

from spikezip.ops.sums.fast import mean, total
from spikezip.ops.sums.reference import matmul, on_integers, running_total

__all__ = ["matmul", "mean", "on_integers", "running_total", "total"]
