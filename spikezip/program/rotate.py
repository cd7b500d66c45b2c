"""Rotate the channels that a site quantizes, where weights alone read it: `W·u = (W·Rᵀ)·(R·u)`.

In the basis of the channels, what comes from a gate or a softmax has few large values; rotated (`ops/hadamard`), all
channels are about normally distributed, and equal steps suit them. Channels far larger than the others stay outside of
the rotation: they get a site, a product and a grid of weights of their own, which no other weight has to share.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from spikezip.program.nodes import Function, Grid, Linear, Node, Program, Ref, Shape, Site, map_arguments
from spikezip.program.ranges import can_fold, linear_readers

HADAMARD, CHANNELS = "spikezip.hadamard", "spikezip.channels"
_ADD = "aten.add.Tensor"
_LEAST, _MOST = 32, 4096  # channels that are rotated together


@dataclass(frozen=True)
class Rotation:
    """Blocks of so many channels, a power of two, without some that stay apart."""

    block: int
    apart: tuple[int, ...] = ()


def can_rotate(program: Program) -> dict[str, int]:
    """The sites whose channels can be rotated, with the channels of a block.

    Those that could have a scale per channel, if only products read them. Codes behind a ReLU stay: most of them are
    zero.

    Example:
        >>> import torch, spikezip
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 96), torch.nn.GELU(), torch.nn.Linear(96, 3))
        >>> can_rotate(spikezip.quantize(model, example=torch.randn(2, 4)).program)
        {'2.in': 32}
    """
    found = {}
    for name in can_fold(program):
        site, readers = program.sites[name], linear_readers(program, name)
        channels = site.shape[-1]
        assert isinstance(channels, int)
        block = min(channels & -channels, _MOST)  # the largest power of two that divides them
        if block >= _LEAST and not site.relu and readers is not None:
            found[name] = block
    return found


def can_part(program: Program, name: str) -> bool:
    """Whether channels of a site can have a site of their own: products read its codes as they are."""
    readers = linear_readers(program, name)
    return readers is not None and all(reader.x == name for reader in readers)


def apart(name: str) -> str:
    """The name of the site of channels that stay out of a site's rotation."""
    return f"{name}.apart"


def with_rotations(program: Program, wanted: Mapping[str, Rotation]) -> Program:
    """The program with rotated channels at some sites; sites of channels that stay apart have a scale for each.

    Example:
        >>> import torch, spikezip
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.GELU(), torch.nn.Linear(32, 3))
        >>> program = spikezip.quantize(model, example=torch.randn(2, 4)).program
        >>> print(with_rotations(program, {"2.in": Rotation(32, (5,))}))  # doctest: +ELLIPSIS
        input          [b, 4]   input
        ...
        2.in.rotated   [b, 32]  function  spikezip.hadamard(1.gelu, 32, [5])
        2.in           [b, 32]  site      neurons(2.in.rotated), codes -16…15
        2.in.channels  [b, 1]   function  spikezip.channels(1.gelu, [5])
        2.in.apart     [b, 1]   site      neurons(2.in.channels), codes -16…15
        ...
        2.linear       [b, 3]   product   2.in · 2.weight.grid behind 2.inᵀ + 2.bias
        2.linear.apart  [b, 3]  product   2.in.apart · 2.weight.grid behind 2.in.apartᵀ
        2.linear.whole  [b, 3]  function  aten.add.Tensor(2.linear, 2.linear.apart)
        returns 2.linear.whole
    """
    return _Rotating(program, wanted).run() if wanted else program


class _Rotating:
    def __init__(self, program: Program, wanted: Mapping[str, Rotation]) -> None:
        self.program, self.wanted = program, wanted
        self.behind: dict[str, str] = {}  # linear product → the site that it reads
        for name in wanted:
            for reader in linear_readers(program, name) or ():
                self.behind[reader.name] = name
        self.nodes: list[Node] = []
        self.renamed: dict[str, str] = {}

    def run(self) -> Program:
        for node in self.program.nodes:
            node = node.reading(self._rename)
            if isinstance(node, Site) and node.name in self.wanted:
                self._site(node, self.wanted[node.name])
            elif isinstance(node, Linear) and node.name in self.behind:
                self._product(node, self.behind[node.name])
            else:
                self.nodes.append(node)
        output = map_arguments(self.program.output, lambda x: Ref(self._rename(x.name)) if isinstance(x, Ref) else x)
        return replace(self.program, nodes=tuple(self.nodes), output=output).without_dead_nodes()

    def _rename(self, name: str) -> str:
        return self.renamed.get(name, name)

    def _function(self, name: str, like: Node, op: str, *args: Any, shape: Shape | None = None) -> str:
        shape = like.shape if shape is None else shape
        self.nodes.append(Function(name, shape, like.dtype, like.module, op, args))
        return name

    def _site(self, site: Site, rotation: Rotation) -> None:
        lo, hi = _symmetric(site.levels)
        u = self._function(f"{site.name}.rotated", site, HADAMARD, Ref(site.u), rotation.block, rotation.apart)
        self.nodes.append(replace(site, u=u, signed=True, lo=lo, hi=hi, by_channel=False))
        if rotation.apart:
            shape, name = (*site.shape[:-1], len(rotation.apart)), apart(site.name)
            u = self._function(f"{site.name}.channels", site, CHANNELS, Ref(site.u), rotation.apart, shape=shape)
            self.nodes.append(replace(site, name=name, shape=shape, u=u, by_channel=True))

    def _product(self, node: Linear, name: str) -> None:
        rotation = self.wanted[name]
        weight = self.program[node.weight]
        bits = weight.bits if isinstance(weight, Grid) else None
        plain = self.program[weight.weight] if isinstance(weight, Grid) else weight
        turned = self._function(f"{node.name}.turned", plain, HADAMARD, Ref(plain.name), rotation.block, rotation.apart)
        # As a product of two rotated values is too large by the channels of a block.
        scaled = self._function(f"{node.name}.scaled", plain, "aten.mul.Scalar", Ref(turned), 1 / rotation.block)
        self.nodes.append(replace(node, weight=self._grid(scaled, plain, bits, None)))
        if rotation.apart:
            shape = (*plain.shape[:-1], len(rotation.apart))
            few = self._function(f"{node.name}.few", plain, CHANNELS, Ref(plain.name), rotation.apart, shape=shape)
            own = self._grid(few, replace(plain, shape=shape), bits, apart(name))
            beside = f"{node.name}.apart"
            self.nodes.append(replace(node, name=beside, x=apart(name), weight=own, bias=None))
            self.renamed[node.name] = self._function(f"{node.name}.whole", node, _ADD, Ref(node.name), Ref(beside))

    def _grid(self, weight: str, like: Node, bits: int | None, site: str | None) -> str:
        if bits is None:
            return weight
        name = f"{weight}.grid behind {site}" if site else f"{weight}.grid"
        self.nodes.append(Grid(name, like.shape, like.dtype, like.module, weight=weight, bits=bits, site=site))
        return name


def _symmetric(levels: int) -> tuple[int, int]:
    return -(levels // 2), (levels - 1) // 2
