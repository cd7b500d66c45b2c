"""Rotate the channels that a site quantizes: products over channels are the same in every orthogonal basis.

In the basis of the channels, what comes from a gate or a softmax has few large values; rotated (`ops/hadamard`), all
channels are about normally distributed, and equal steps suit them. Three places of a network can be rotated:

- where weights alone read a site: `W·u = (W·Rᵀ)·(R·u)`, and `W·Rᵀ` is made once;
- both sides of a product over channels, such as `q·kᵀ`;
- the values of attention: `p·(R·v) = R·(p·v)` is rotated when it arrives at the next site, whose weights take it back.

Where a site reads a product with weights, that product's weights are rotated. Elsewhere it takes additions
in every step.
Channels far larger than the others stay outside of a rotation: they get a site, a product and a grid of weights of
their own, which no other weight has to share.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from spikezip.program.analysis import chain, moves_channels, source
from spikezip.program.functions import KINDS, Kind, function_value
from spikezip.program.nodes import Function, Grid, Linear, Matmul, Node, Program, Ref, Shape, Site, map_arguments
from spikezip.program.ranges import can_fold, linear_readers
from spikezip.program.sizes import Bindings, bind

HADAMARD, CHANNELS = "spikezip.hadamard", "spikezip.channels"
_ADD = "aten.add.Tensor"
_SPLITS = ("aten.reshape.default", "aten.unflatten.int")
_LEAST, _MOST = 16, 4096  # channels that are rotated together


@dataclass(frozen=True)
class Rotation:
    """Blocks of so many channels, a power of two, without some that stay apart.

    `arrives` says that what the site reads is rotated already.
    """

    block: int
    apart: tuple[int, ...] = ()
    arrives: bool = False


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
        block = _block(channels)
        if block and not site.relu and readers is not None:
            found[name] = block
    return found


def _block(channels: int) -> int:
    """The largest power of two that divides the channels; 0 if that is too small."""
    block = min(channels & -channels, _MOST)
    return block if block >= _LEAST else 0


def can_rotate_together(program: Program, sizes: Bindings) -> Iterator[tuple[str, str, int]]:
    """Two sites whose channels can be rotated in one go, with the channels of a block: q and k, or v and o.

    `sizes` are those of any batch.

    Example:
        >>> import torch, spikezip
        >>> layer = torch.nn.TransformerEncoderLayer(64, 2, 16, batch_first=True).eval()
        >>> config = spikezip.QuantConfig(placement="products")
        >>> program = spikezip.quantize(layer, config, torch.randn(2, 5, 64)).program
        >>> list(can_rotate_together(program, {"b": 2, "n": 5}))
        [('self_attn.q', 'self_attn.k', 32), ('self_attn.v', 'self_attn.o', 32)]
    """
    for node in program.products:
        if not isinstance(node, Matmul) or node.name not in program.varying:
            continue
        a, b = (source(program, name) for name in (node.a, node.b))
        if not isinstance(a, Site) or not isinstance(b, Site) or a.name == b.name or not _is_own(program, b, node):
            continue
        inner, outer = (bind(size, sizes) for size in program[node.b].shape[-2:])
        along_inner = _is_own(program, a, node) and _keeps(program, node.a, a, -1, inner, sizes)
        if _block(inner) and along_inner and _keeps(program, node.b, b, -2, inner, sizes):
            yield a.name, b.name, _block(inner)
        elif _block(outer) and _keeps(program, node.b, b, -1, outer, sizes):
            behind = _site_behind(program, node, outer, sizes)
            if behind is not None:
                yield b.name, behind, _block(outer)


def _is_own(program: Program, site: Site, product: Matmul) -> bool:
    """Whether a product is all that reads a site."""
    waiting = [site.name]
    while waiting:
        name = waiting.pop()
        if name in program.returned:
            return False
        for reader in program.readers[name]:
            if isinstance(reader, Function) and KINDS[reader.op] in (Kind.MOVE, Kind.SELECT):
                waiting.append(reader.name)
            elif reader.name != product.name:
                return False
    return not site.relu and isinstance(site.shape[-1], int)


def _keeps(program: Program, name: str, site: Node, dim: int, channels: int, sizes: Bindings) -> bool:
    """Whether a dimension of a value that is moved holds the channels of a site in order, `channels` of them at a time.

    Told by moving the numbers of the channels.
    """
    shape = [bind(size, sizes) for size in site.shape]
    moved = torch.arange(shape[-1], dtype=torch.float32).expand(shape)
    for step in reversed(list(chain(program, name, site.name))):
        if any(read != step.args[0].name for read in step.reads):  # places that the input tells
            return False
        moved = function_value(step, {step.args[0].name: moved}, sizes, moved.device)
    numbers = moved.movedim(dim, -1)
    if numbers.shape[-1] != channels:
        return False
    first = numbers[..., :1]
    return bool((numbers - first == torch.arange(channels)).all()) and bool((first % channels == 0).all())


def _site_behind(program: Program, product: Matmul, channels: int, sizes: Bindings) -> str | None:
    """The site that quantizes what a product gives, moved and divided row by row, if weights alone read that.

    Its channels have to be those of the product, as often as there are heads.
    """
    node: Node = product
    moves: list[Function] = []
    while not isinstance(node, Site):
        readers = program.readers[node.name]
        if len(readers) != 1 or node.name in program.returned:
            return None
        before, (node,) = node, readers
        if isinstance(node, Site):
            break
        if not isinstance(node, Function) or node.args[:1] != (Ref(before.name),):
            return None
        if node.op == "aten.div.Tensor" and isinstance(node.args[1], Ref):
            if program[node.args[1].name].shape[-1:] != (1,):
                return None
        elif KINDS[node.op] is Kind.MOVE and len(node.reads) == 1:
            moves.append(node)
        else:
            return None
    if node.name not in can_fold(program) or linear_readers(program, node.name) is None or node.relu:
        return None
    shape = [bind(size, sizes) for size in product.shape]
    moved = torch.arange(shape[-1], dtype=torch.float32).expand(shape)
    for step in moves:
        moved = function_value(step, {step.reads[0]: moved}, sizes, moved.device)
    kept = bool((moved == torch.arange(moved.shape[-1]) % channels).all())
    return node.name if kept and moved.shape[-1] % channels == 0 else None


def is_rotated(program: Program) -> bool:
    """Whether channels are rotated somewhere in a program."""
    return any(isinstance(node, Function) and node.op == HADAMARD for node in program.nodes)


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
        >>> rotated = with_rotations(program, {"2.in": Rotation(32, (5,))})
        >>> for name in ("2.in.rotated", "2.in", "2.in.channels", "2.linear.apart", "2.linear.whole"):
        ...     print(rotated[name].details)
        spikezip.hadamard(1.gelu, 32, [5])
        neurons(2.in.rotated), codes -16…15, input enters
        spikezip.channels(1.gelu, [5])
        2.in.apart · 2.linear.few.grid behind 2.in.apartᵀ
        aten.add.Tensor(2.linear, 2.linear.apart)
    """
    return _Rotating(program, wanted).run() if wanted else program


def _linear_before(program: Program, site: Site) -> str | None:
    """The product with weights whose output a site reads, moved or not, if nothing else does and blocks stay whole."""
    name = site.u
    while len(program.readers[name]) == 1 and name not in program.returned and name in program.varying:
        node = program[name]
        if isinstance(node, Linear):
            return name
        if not isinstance(node, Function) or len(node.reads) != 1:
            return None
        (name,) = node.reads
        before, after = program[name].shape, node.shape
        split = node.op in _SPLITS and _divides(before, after)  # heads: the last ones of all channels
        whole = node.op == "aten.slice.Tensor" and before == after
        if not split and not whole and (KINDS[node.op] is not Kind.MOVE or moves_channels(node, program)):
            return None
    return None


def _divides(before: Shape, after: Shape) -> bool:
    """Whether the last dimension is cut into parts of equal size."""
    if not before or not after:
        return False
    channels, part = before[-1], after[-1]
    return isinstance(channels, int) and isinstance(part, int) and channels % part == 0


class _Rotating:
    def __init__(self, program: Program, wanted: Mapping[str, Rotation]) -> None:
        self.program, self.wanted = program, wanted
        self.behind: dict[str, str] = {}  # linear product → the site that it reads
        for name in wanted:
            for reader in linear_readers(program, name) or ():
                self.behind[reader.name] = name
        # Products with weights whose output a site rotates: their rows are rotated instead.
        self.before = {
            linear: name
            for name, rotation in wanted.items()
            if not rotation.apart and not rotation.arrives and (linear := _linear_before(program, program.sites[name]))
        }
        self.nodes: list[Node] = []
        self.renamed: dict[str, str] = {}

    def run(self) -> Program:
        for node in self.program.nodes:
            node = node.reading(self._rename)
            if isinstance(node, Site) and node.name in self.wanted:
                self._site(node, self.wanted[node.name])
            elif isinstance(node, Linear) and (node.name in self.behind or node.name in self.before):
                self._product(node)
            elif isinstance(node, Matmul):
                self.nodes.append(replace(node, scaling=node.scaling / self._gain(node)))
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

    def _gain(self, node: Matmul) -> int:
        """By how much a product of two values is too large: both sides of it are rotated."""
        sites = [source(self.program, name) for name in (node.a, node.b)]
        rotated = [self.wanted[site.name] for site in sites if site is not None and site.name in self.wanted]
        return rotated[0].block if len(rotated) == 2 else 1

    def _site(self, site: Site, rotation: Rotation) -> None:
        lo, hi = symmetric(site.levels)
        u = site.u
        if not rotation.arrives and site.name not in self.before.values():
            u = self._function(f"{site.name}.rotated", site, HADAMARD, Ref(u), rotation.block, rotation.apart)
        self.nodes.append(replace(site, u=u, signed=True, lo=lo, hi=hi, by_channel=False))
        if rotation.apart:
            shape, name = (*site.shape[:-1], len(rotation.apart)), apart(site.name)
            u = self._function(f"{site.name}.channels", site, CHANNELS, Ref(site.u), rotation.apart, shape=shape)
            self.nodes.append(replace(site, name=name, shape=shape, u=u, by_channel=True))

    def _product(self, node: Linear) -> None:
        weight = self.program[node.weight]
        bits = weight.bits if isinstance(weight, Grid) else None
        site = weight.site if isinstance(weight, Grid) else None
        plain = self.program[weight.weight] if isinstance(weight, Grid) else weight
        found, bias = plain.name, node.bias
        if node.name in self.before:
            block = self.wanted[self.before[node.name]].block
            turned = (plain.shape[1], plain.shape[0])
            found = self._function(f"{node.name}.t", plain, "aten.t.default", Ref(found), shape=turned)
            found = self._function(f"{node.name}.rows", plain, HADAMARD, Ref(found), block, (), shape=turned)
            found = self._function(f"{node.name}.rotated", plain, "aten.t.default", Ref(found))
            if bias is not None:
                like = self.program[bias]
                bias = self._function(f"{node.name}.bias", like, HADAMARD, Ref(bias), block, ())
        if node.name not in self.behind:
            self.nodes.append(replace(node, weight=self._grid(found, plain, bits, site), bias=bias))
            return
        name = self.behind[node.name]
        rotation = self.wanted[name]
        columns = self._function(f"{node.name}.columns", plain, HADAMARD, Ref(found), rotation.block, rotation.apart)
        # As a product of two rotated values is too large by the channels of a block.
        scaled = self._function(f"{node.name}.scaled", plain, "aten.mul.Scalar", Ref(columns), 1 / rotation.block)
        self.nodes.append(replace(node, weight=self._grid(scaled, plain, bits, None), bias=bias))
        if rotation.apart:
            shape = (*plain.shape[:-1], len(rotation.apart))
            few = self._function(f"{node.name}.few", plain, CHANNELS, Ref(found), rotation.apart, shape=shape)
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


def symmetric(levels: int) -> tuple[int, int]:
    """The codes of rotated channels, which are as often negative as positive.

    Example:
        >>> symmetric(16)
        (-8, 7)
    """
    return -(levels // 2), (levels - 1) // 2
