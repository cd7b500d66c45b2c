"""Weights that are their grid: after `snap`, a weight is its integers times its scale, and is stored as these.

A weight row with integers c and scale s comes back as `fl(c·s)`. Its grid is then the same again, bit for bit:

- The scale: `s = fl(L/top)`, with L the row's largest magnitude, and the new largest is `F = fl(top·s)`. L is a float,
  and F is the float nearest to `top·s`; so `F/top` is no further from s than `L/top`, which rounds to s. (There is no
  tie, as top is odd; and if s is a power of two, `top·s` is exact.)
- The integers: `fl(c·s)/s` is within `|c|·2^-24` of c, far from the next boundary.

So snapping does not move the function of the network at all; it forgets what training kept beside the grid. Two kinds
of rows need more rounds, and their scale may move: rows so small that the scale is a denormal (the largest code may
not be `top`), and rows that read a site with a scale per channel, whose integers are those of `W·diag(s_in)`.
"""

import torch
from torch import Tensor

from spikezip.errors import ConfigError
from spikezip.ops import grid, rounding
from spikezip.program.nodes import Grid, Weight
from spikezip.quant.network import QuantizedNetwork

# Rows behind a scale per channel settle after 3 rounds at 8 bits, after up to 30 at 16 bits, where tried.
_ROUNDS = 200


def grids(qann: QuantizedNetwork) -> dict[str, Grid]:
    """The weights of a quantized network that lie on a grid, by key.

    A tensor that something reads as floats, or that is on two grids, is none of them.

    Example:
        >>> from spikezip.quant.network import quantize
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> {key: on.bits for key, on in grids(quantize(model, example=torch.randn(2, 4))).items()}
        {'0.weight': 8, '2.weight': 8}
    """
    program, found = qann.program, {}
    for node in program.nodes:
        if not isinstance(node, Weight):
            continue
        readers = program.readers[node.name]
        on = [reader for reader in readers if isinstance(reader, Grid)]
        if on and len(on) == len(readers) and len({(g.bits, g.rows, g.site) for g in on}) == 1:
            found[node.key] = on[0]
    return found


@torch.no_grad()
def snap(qann: QuantizedNetwork) -> float:
    """Put the weights of a quantized network onto their grid for good, in place; returns the largest relative change
    of a scale.

    0.0 says that the network computes what it computed before, bit for bit: integers and scales are the same. Weights
    without a grid (norms, biases, position parameters) are not touched. Train first, then snap.

    Example:
        >>> from spikezip.quant.network import quantize
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> snap(quantize(model, example=torch.randn(2, 4)))
        0.0
    """
    if not isinstance(qann, QuantizedNetwork):
        raise ConfigError(f"snap takes what spikezip.quantize returns, not {type(qann).__name__}")
    found = grids(qann)
    if not found:
        raise ConfigError("no weight lies on a grid: quantize with weight_bits=8 or embedding_bits=8")
    tensors = qann.tensors()
    change = 0.0
    for key, on in found.items():
        channels = None if on.site is None else rounding.representable(qann.scale(on.site).detach())
        snapped, moved = _settle(key, tensors[key], on, channels)
        tensors[key].copy_(snapped)
        change = max(change, moved)
    return change


def _settle(key: str, weight: Tensor, on: Grid, channels: Tensor | None) -> tuple[Tensor, float]:
    """A weight at the fixed point of encoding and decoding, and the largest relative change of its scales."""
    if not weight.isfinite().all():
        raise ConfigError(f"{key} holds values that are not finite: it has no grid")

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x if channels is None else x * channels
        codes, scale = grid.weight_grid(x if on.rows else x.reshape(1, -1), on.bits)
        return codes.view(x.shape), scale

    def decode(codes: Tensor, scale: Tensor) -> Tensor:
        x = codes.to(scale.dtype) * scale.view(-1, *[1] * (codes.ndim - 1))
        return x if channels is None else x / channels

    codes, scale = encode(weight)
    first = scale
    for _ in range(_ROUNDS):
        snapped = decode(codes, scale)
        codes, scale = encode(snapped)
        if torch.equal(decode(codes, scale), snapped):
            return snapped, float((scale.double() / first.double() - 1).abs().max())
    raise ConfigError(f"{key} finds no grid that it stays on; save the network with compact=False")
