"""LayerNorm whose sums have no order: equal rows give equal results in whatever kernel they are summed (README.md)."""

from spikezip.ops.norm.fast import layer_norm, walk_norm

__all__ = ["layer_norm", "walk_norm"]
