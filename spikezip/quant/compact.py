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

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from spikezip.errors import ConfigError
from spikezip.ops import grid, rounding
from spikezip.quant.embedding import QuantEmbedding
from spikezip.quant.synapse import QuantInput, QuantSynapse

if TYPE_CHECKING:
    from spikezip.quant.model import QuantizedModel

# Rows behind a scale per channel settle after 3 rounds at 8 bits, after up to 30 at 16 bits, where tried.
_ROUNDS = 200


@dataclass(frozen=True)
class Grid:
    """How a weight lies on its grid: its bits, the dimension along which scales differ, and, for a product that reads a
    site with a scale per channel, the name of that scale."""

    bits: int
    dim: int = 0
    input_scale: str | None = None


def grids(model: nn.Module) -> dict[str, Grid]:
    """The weights of a quantized network that lie on a grid, by their name in the state dict.

    A tensor that somebody reads as floats, or that is on two grids, is none of them: a tied table whose embedding has
    no bits stays as it is.

    Example:
        >>> import spikezip, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> found = grids(spikezip.quantize(transformers.ViTModel(vit)))
        >>> len(found), found["layers.0.attention.q_proj.weight"]
        (8, Grid(bits=8, dim=0, input_scale=None))
    """
    names = {module: name for name, module in model.named_modules()}
    readers: dict[int, dict[str, Grid | None]] = defaultdict(dict)
    for module, name in names.items():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                found = _grid_of(module, names) if key == "weight" else None
                readers[id(parameter)][f"{name}.{key}" if name else key] = found
    agreed = (keys for keys in readers.values() if len(set(keys.values())) == 1)
    return {key: found for keys in agreed for key, found in keys.items() if found is not None}


def _grid_of(module: nn.Module, names: dict[nn.Module, str]) -> Grid | None:
    if isinstance(module, QuantEmbedding):
        return Grid(module.embedding_bits)
    if not isinstance(module, (QuantSynapse, QuantInput)) or module.weight_bits is None:
        return None
    if isinstance(module, QuantInput):
        return Grid(module.weight_bits)
    input_scale = f"{names[module.source]}.scale" if module.source.per_channel else None
    return Grid(module.weight_bits, int(module.transposed), input_scale)


def encode(weight: Tensor, on: Grid, input_scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """The integers of a weight, in its shape, and the scales along `on.dim`.

    Example:
        >>> encode(torch.tensor([[0.5], [-1.27]]), Grid(8, dim=1), None)
        (tensor([[  50.],
                [-127.]]), tensor([0.0100]))
    """
    matrix = weight.detach().transpose(0, on.dim)
    if input_scale is not None:
        matrix = matrix * rounding.representable(input_scale)
    codes, scale = grid.weight_grid(matrix, on.bits)
    return codes.transpose(0, on.dim), scale


def decode(codes: Tensor, scale: Tensor, on: Grid, input_scale: Tensor | None) -> Tensor:
    """The weight that has these integers and scales.

    Example:
        >>> decode(torch.tensor([[50], [-127]], dtype=torch.int8), torch.tensor([0.01]), Grid(8, dim=1), None)
        tensor([[ 0.5000],
                [-1.2700]])
    """
    matrix = codes.transpose(0, on.dim).to(scale.dtype) * scale.view(-1, *[1] * (codes.ndim - 1))
    if input_scale is not None:
        matrix = matrix / rounding.representable(input_scale)
    return matrix.transpose(0, on.dim)


@torch.no_grad()
def snap(qann: "QuantizedModel") -> float:
    """Put the weights of a quantized network onto their grid for good, in place; returns the largest relative change
    of a scale.

    0.0 says that the network computes what it computed before, bit for bit: integers and scales are the same. Weights
    without a grid (norms, biases, position parameters) are not touched. Train first, then snap.

    Example:
        >>> import spikezip, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> snap(spikezip.quantize(transformers.ViTModel(vit)))
        0.0
    """
    if getattr(qann, "kind", None) != "qann":
        raise ConfigError(f"snap takes what spikezip.quantize returns, not {type(qann).__name__}")
    found = grids(qann)
    if not found:
        raise ConfigError("no weight lies on a grid: quantize with weight_bits=8 or embedding_bits=8")
    change = 0.0
    done: set[int] = set()
    for key, on in found.items():
        weight = qann.get_parameter(key)
        if id(weight) not in done:  # tied weights have several names
            done.add(id(weight))
            input_scale = None if on.input_scale is None else qann.get_parameter(on.input_scale)
            snapped, moved = settle(key, weight, on, input_scale)
            weight.copy_(snapped)
            change = max(change, moved)
    return change


def is_snapped(weight: Tensor, on: Grid, input_scale: Tensor | None) -> bool:
    """Whether a weight is what its integers and scales give back.

    Example:
        >>> [is_snapped(torch.tensor([[127.0, x]]), Grid(8), None) for x in (50.0, 50.1)]
        [True, False]
    """
    return torch.equal(decode(*encode(weight, on, input_scale), on, input_scale), weight)


def settle(key: str, weight: Tensor, on: Grid, input_scale: Tensor | None) -> tuple[Tensor, float]:
    """A weight at the fixed point of encoding and decoding, and the largest relative change of its scales on the way.

    Example:
        >>> settle("weight", torch.tensor([[127.0, 50.1]]), Grid(8), None)
        (tensor([[127.,  50.]]), 0.0)
    """
    if not weight.isfinite().all():
        raise ConfigError(f"{key} holds values that are not finite: it has no grid")
    codes, scale = encode(weight, on, input_scale)
    first = scale
    for _ in range(_ROUNDS):
        snapped = decode(codes, scale, on, input_scale)
        codes, scale = encode(snapped, on, input_scale)
        if torch.equal(decode(codes, scale, on, input_scale), snapped):
            return snapped, float((scale.double() / first.double() - 1).abs().max())
    raise ConfigError(f"{key} finds no grid that it stays on; save the network without compact=True")
