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

from collections.abc import Iterator

import torch
from torch import Tensor

from spikezip.errors import ConfigError
from spikezip.ops import grid, rounding
from spikezip.program.functions import KINDS, Kind, function_value
from spikezip.program.nodes import Function, Grid, Node, Program, Rows, Weight
from spikezip.quant.network import QuantizedNetwork

# Rows behind a scale per channel settle after 3 rounds at 8 bits, after up to 30 at 16 bits, where tried.
_ROUNDS = 200


def grids(qann: QuantizedNetwork) -> dict[str, Grid]:
    """The weights of a quantized network that lie on a grid, by key.

    A tensor that something reads as floats, or that is on two grids, is none of them. One whose elements are moved
    before, as those of GPT-2 are transposed, is.

    Example:
        >>> from spikezip.quant.network import quantize
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> {key: on.bits for key, on in grids(quantize(model, example=torch.randn(2, 4))).items()}
        {'0.weight': 8, '2.weight': 8}
    """
    program, tensors, found = qann.program, qann.tensors(), {}
    for node in program.nodes:
        if not isinstance(node, Weight):
            continue
        readers = tuple(_readers(program, node.name))
        rows = [row for reader in readers for row in program.readers[reader.name] if isinstance(row, Rows)]
        readers = tuple(reader for reader in readers if reader.name not in {row.x for row in rows})
        on = [reader for reader in readers if isinstance(reader, Grid)]
        on += [Grid(row.name, node.shape, node.dtype, weight=node.name, bits=row.bits) for row in rows]
        readers = (*readers, *rows)
        kinds = {(g.bits, g.rows, g.site, *_moves(program, g)) for g in on}
        if on and len(on) == len(readers) and len(kinds) == 1 and _is_moved_whole(program, tensors[node.key], on[0]):
            found[node.key] = on[0]
    return found


def _readers(program: Program, name: str) -> Iterator[Node]:
    """What reads a weight, behind nodes that move its elements."""
    for reader in program.readers[name]:
        moves = isinstance(reader, Function) and KINDS[reader.op] is Kind.MOVE and reader.reads == (name,)
        fixed = all(isinstance(size, int) for size in reader.shape)  # not for each sample of a batch
        if moves and fixed and reader.name not in program.returned:
            yield from _readers(program, reader.name)
        else:
            yield reader


def _path(program: Program, on: Grid) -> list[Function]:
    """The nodes between a weight and its grid, the first one first."""
    found: list[Function] = []
    node = program[on.weight]
    while isinstance(node, Function):
        found.insert(0, node)
        node = program[node.reads[0]]
    return found


def _moves(program: Program, on: Grid) -> list[str]:
    """What is done to the elements of a weight before its grid."""
    return [f"{node.op} {node.args[1:]} {node.kwargs}" for node in _path(program, on)]


def _moved(program: Program, x: Tensor, on: Grid) -> Tensor:
    """A weight as it stands on its grid."""
    for node in _path(program, on):
        x = function_value(node, {node.reads[0]: x}, {}, x.device)
    return x.contiguous()


def _is_moved_whole(program: Program, weight: Tensor, on: Grid) -> bool:
    """Whether every element of a weight stands on its grid once."""
    if not _path(program, on):
        return True
    order = _moved(program, _numbered(weight), on)
    return order.numel() == weight.numel() and bool((order.view(-1).bincount() == 1).all())


def _numbered(weight: Tensor) -> Tensor:
    """The places of a weight's elements."""
    return torch.arange(weight.numel(), device=weight.device).view(weight.shape)


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
        weight = tensors[key]
        snapped, moved = _settle(key, _moved(qann.program, weight, on), on, channels)
        if _path(qann.program, on):  # back to where its elements came from
            order = _moved(qann.program, _numbered(weight), on).view(-1)
            snapped = torch.empty_like(snapped).view(-1).scatter_(0, order, snapped.view(-1))
        weight.copy_(snapped.view(weight.shape))
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
