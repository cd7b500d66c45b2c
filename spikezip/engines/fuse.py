"""Group the nodes of a network into steps, each of which a device may have one kernel for.

The groups say what belongs together; whether a kernel takes it is asked when it runs, since that depends on the device
and on the sizes of a batch. A value inside of a group that somebody else reads as well is never left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from spikezip.program.analysis import source
from spikezip.program.functions import KINDS, Kind, operators
from spikezip.program.nodes import Convolution, Function, Linear, Matmul, Node, Program, Ref, Site, Values
from spikezip.program.sizes import times

# Movement that keeps every element, once.
_REARRANGE = frozenset(
    operators(
        "reshape flatten.using_ints unflatten.int transpose.int permute unsqueeze squeeze squeeze.dim squeeze.dims "
        "movedim.int swapaxes t"
    )
)
_SAME = frozenset(operators("dropout slice.Tensor"))  # of these, what may give its operand as it is


@dataclass(frozen=True)
class Step:
    """Nodes that are evaluated together.

    Attributes:
        nodes: what is evaluated one by one where no kernel takes the step.
        gives: the values that other steps may read.
        reads: the values that it needs.
        spent: the values that nothing needs any more once it is done.
    """

    nodes: tuple[Node, ...]
    gives: tuple[str, ...]
    reads: tuple[str, ...]
    spent: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Branch:
    """A product, and the site that reads it; only movement lies between."""

    product: Linear | Convolution
    moves: tuple[Function, ...]
    site: Site


@dataclass(frozen=True)
class Products(Step):
    """Products of the same codes, of one size, with neurons of one range behind them, such as q, k and v."""

    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class Attention(Step):
    """Scores, a mask that does not change over time, softmax, the neurons `p`, the mix with v, the neurons `o`.

    `k` and `v` name codes `[rows, heads, 1, tokens, width]` of fewer heads, where several queries share one.
    """

    scores: Matmul
    mask: str | None
    p: Site
    mix: Matmul
    o: Site
    k: str | None
    v: str | None


@dataclass(frozen=True)
class Sum(Step):
    """A value plus those of codes, which are moved as their values were: a residual sum."""

    x: str
    codes: str  # the site
    moves: tuple[Function, ...]

    @property
    def total(self) -> str:
        return self.gives[0]


@dataclass(frozen=True)
class Norm(Step):
    """A LayerNorm and the neurons behind it, perhaps with the residual sum in front."""

    norm: Function
    weight: str | None
    bias: str | None
    eps: float
    site: Site
    sum: Sum | None


def fuse(program: Program) -> tuple[Step, ...]:
    """The moving nodes of a program as steps, in an order in which each finds what it reads."""
    return _Fuser(program).steps()


class _Fuser:
    def __init__(self, program: Program) -> None:
        self.program, self.layout = program, program.layout
        self.owner: dict[str, Step] = {}  # value → the step that gives it

    def steps(self) -> tuple[Step, ...]:
        sites = self.program.sites.values()
        groups: list[Step | None] = [self._attention(site) for site in sites]
        groups += self._products([branch for site in sites if (branch := self._branch(site)) is not None])
        for group in groups:
            self._own(group)
        for site in sites:
            self._own(self._norm(site))
        for node in self.program.moving:
            if node.name not in self.owner:
                self._own(self._sum(node) or Step((node,), (node.name,), node.reads))
        return _with_spent(self._ordered(), self.program.returned)

    def _own(self, group: Step | None) -> None:
        if group is not None:
            self.owner.update(dict.fromkeys(group.gives, group))

    def _ordered(self) -> list[Step]:
        """Steps in the order in which sites and outputs need them. What only fused nodes have read is left out."""
        done: dict[int, Step] = {}

        def need(name: str) -> None:
            step = self.owner.get(name)  # None: it does not change over time
            if step is not None and id(step) not in done:
                for read in step.reads:
                    need(read)
                done[id(step)] = step

        for node in self.program.moving:
            if isinstance(node, Site) or node.name in self.program.returned:
                need(node.name)
        return list(done.values())

    # --- what belongs together

    def _sole(self, name: str, reader: Node) -> bool:
        """Whether a value has one reader, and the network does not return it."""
        readers = self.program.readers[name]
        return len(readers) == 1 and readers[0] is reader and name not in self.program.returned

    def _function(self, name: str, op: str) -> Function | None:
        node = self.program[name]
        return node if isinstance(node, Function) and node.op == op else None

    def _varies(self, name: str) -> bool:
        return name in self.program.varying

    def _one_scale(self, site: str) -> bool:
        return not self.program.sites[site].by_channel

    def _is_plain(self, site: Site) -> bool:
        """Whether kernels may walk these neurons: samples come first, and codes fit into a byte."""
        return self._samples_first(site) and site.lo >= -128 and site.hi <= 127 and not site.entry

    def _samples_first(self, node: Node) -> bool:
        return self.layout.prefix.get(node.name) == 1

    def _branch(self, site: Site) -> Branch | None:
        moves: list[Function] = []
        reader: Node = site
        node = self.program[site.u]
        while isinstance(node, Function) and self._sole(node.name, reader) and self._rearranges(node):
            moves.insert(0, node)
            reader, node = node, self.program[node.reads[0]]
        if not isinstance(node, (Linear, Convolution)) or not self._sole(node.name, reader):
            return None
        last = isinstance(node, Linear) and not moves  # whether channels are the last dimension still
        fits = self._is_plain(site) and self._samples_first(node) and (last or self._one_scale(site.name))
        return Branch(node, tuple(moves), site) if fits and getattr(node, "groups", 1) == 1 else None

    def _products(self, branches: list[Branch]) -> list[Step]:
        together: dict[object, list[Branch]] = {}
        for branch in branches:
            product, site = branch.product, branch.site
            # Of one module: layers far from one another would have to keep their codes for long.
            where = product.name if isinstance(product, Convolution) else product.module.rpartition(".")[0]
            shape = self.program[product.weight].shape
            kind = (shape, site.lo, site.hi, site.by_channel, product.bias is None)
            together.setdefault((where, product.x, *kind), []).append(branch)
        return [
            Products(
                tuple(node for b in group for node in (b.product, *b.moves, b.site)),
                tuple(b.site.name for b in group),
                (group[0].product.x,),
                tuple(group),
            )
            for group in together.values()
        ]

    def _attention(self, o: Site) -> Attention | None:
        """The attention whose output a site reads."""
        mix = self.program[o.u]
        if not isinstance(mix, Matmul) or not self._sole(mix.name, o):
            return None
        p, same = self.program[mix.a], []  # codes of the probabilities, perhaps behind a dropout
        reader: Node = mix
        while isinstance(p, Function) and self._stays(p) and self._sole(p.name, reader):
            same.append(p)
            reader, p = p, self.program[p.reads[0]]
        if not isinstance(p, Site) or not self._sole(p.name, reader):
            return None
        softmax = self._function(p.u, "aten.softmax.int")
        if softmax is None or not self._sole(softmax.name, p) or not _is_over_keys(softmax):
            return None
        masking = self._masked(softmax)
        masked, scores, mask = masking or (softmax, self.program[softmax.reads[0]], None)
        if not isinstance(scores, Matmul) or not self._sole(scores.name, masked):
            return None
        if not all(isinstance(source(self.program, name), Site) for name in (scores.a, scores.b, mix.b)):
            return None
        if p.lo != 0 or not all(self._is_plain(site) and self._one_scale(site.name) for site in (p, o)):
            return None
        k, of_k = self._shared_heads(scores, turned=True)
        v, of_v = self._shared_heads(mix, turned=False)
        inner = (masked, softmax) if masking else (softmax,)
        nodes = (*of_k, scores, *inner, p, *reversed(same), *of_v, mix, o)
        shared = tuple(name for name in (k, v) if name is not None)
        return Attention(nodes, (p.name, o.name), (*_reads(nodes), *shared), scores, mask, p, mix, o, k, v)

    def _masked(self, softmax: Function) -> tuple[Function, Node, str] | None:
        """The sum that a softmax reads, of scores and of something that does not change over time."""
        node = self._function(softmax.reads[0], "aten.add.Tensor")
        pair = _summands(node)
        if node is None or pair is None or not self._sole(node.name, softmax):
            return None
        moving = [name for name in pair if self._varies(name)]
        mask = [name for name in pair if not self._varies(name)]
        same_shape = len(moving) == 1 and self.program[moving[0]].shape == node.shape
        return (node, self.program[moving[0]], mask[0]) if mask and same_shape else None

    def _shared_heads(self, product: Matmul, turned: bool) -> tuple[str | None, tuple[Function, ...]]:
        """Codes that are repeated for several query heads, before they are; and the nodes that do it.

        `turned` says whether the last two dimensions are exchanged behind that.
        """
        nodes: list[Function] = []
        reader: Node = product
        node = self.program[product.b]
        for op in (*(("aten.transpose.int",) if turned else ()), "aten.reshape.default", "aten.expand.default"):
            if not isinstance(node, Function) or node.op != op or not self._sole(node.name, reader):
                return None, ()
            nodes.insert(0, node)
            reader, node = node, self.program[node.reads[0]]
        one, wide, merged = node.shape, nodes[0].shape, nodes[1].shape
        fits = len(one) == len(wide) == 5 and one[2] == 1 and (*one[:2], wide[2], *one[3:]) == wide
        fits = fits and merged == (one[0], times(one[1], wide[2]), *one[3:])
        fits = fits and (not turned or {d % 4 for d in nodes[2].args[1:]} == {2, 3})
        return (node.name, tuple(nodes)) if fits else (None, ())

    def _sum(self, node: Node) -> Sum | None:
        pair = _summands(node)
        if pair is None or any(self.program[name].shape != node.shape for name in pair):
            return None
        found = [(name, self._values_behind(name)) for name in pair]
        # Values that nobody else reads need not be made at all.
        found.sort(key=lambda each: not self._sole(each[0], node))
        for name, behind in found:
            if behind is not None:
                codes, moves = behind
                x = pair[1] if name == pair[0] else pair[0]
                others = tuple(read for move in moves for read in move.reads[1:])
                return Sum((), (node.name,), (x, codes, *others), x, codes, moves)
        return None

    def _values_behind(self, name: str) -> tuple[str, tuple[Function, ...]] | None:
        """The site whose values these are, and how they were moved."""
        moves: list[Function] = []
        node = self.program[name]
        while isinstance(node, Function) and _is_movement(node):
            if any(self._varies(read) for read in node.reads[1:]):
                return None
            moves.insert(0, node)
            node = self.program[node.reads[0]]
        scaled = isinstance(node, Values) and self._one_scale(node.codes)
        return (node.codes, tuple(moves)) if isinstance(node, Values) and scaled else None

    def _stays(self, node: Function) -> bool:
        """Whether a function gives its operand as it is."""
        return node.op in _SAME and node.shape == self.program[node.reads[0]].shape

    def _rearranges(self, node: Function) -> bool:
        """Whether a function keeps every element of its operand, once."""
        return len(node.reads) == 1 and (self._stays(node) if node.op in _SAME else node.op in _REARRANGE)

    def _norm(self, site: Site) -> Norm | None:
        norm = self._function(site.u, "aten.layer_norm.default")
        if norm is None or not self._sole(norm.name, site) or len(norm.args[1]) != 1 or not self._is_plain(site):
            return None
        given = dict(zip(("x", "shape", "weight", "bias", "eps"), norm.args, strict=False)) | dict(norm.kwargs)
        x = norm.reads[0]
        if any(self._varies(name) for name in norm.reads[1:]):
            return None
        weight, bias = (ref.name if isinstance(ref, Ref) else None for ref in map(given.get, ("weight", "bias")))
        total = None if x in self.owner else self._sum(self.program[x])
        gives, reads = ((site.name,), (x,)) if total is None else ((site.name, total.total), total.reads)
        return Norm((), gives, reads, norm, weight, bias, given.get("eps", 1e-5), site, total)


def _with_spent(steps: Iterable[Step], keep: Iterable[str]) -> tuple[Step, ...]:
    """Steps that know which values are needed no more behind them; `keep` stay."""
    kept, later = set(keep), set[str]()
    found: list[Step] = []
    for step in reversed(list(steps)):
        here = {*step.reads, *step.gives, *(node.name for node in step.nodes)}
        found.append(replace(step, spent=tuple(here - later - kept)))
        later |= here
    return tuple(reversed(found))


def _reads(nodes: Iterable[Node]) -> tuple[str, ...]:
    """What nodes read that is not among them."""
    nodes = tuple(nodes)
    inside = {node.name for node in nodes}
    return tuple(dict.fromkeys(name for node in nodes for name in node.reads if name not in inside))


def _summands(node: Node | None) -> tuple[str, str] | None:
    if not isinstance(node, Function) or node.op != "aten.add.Tensor" or node.kwargs or len(node.args) != 2:
        return None
    a, b = node.args
    return (a.name, b.name) if isinstance(a, Ref) and isinstance(b, Ref) and a.name != b.name else None


def _is_movement(node: Function) -> bool:
    """Whether a function does to codes what it does to values: elements are moved or left out, or zeros come in."""
    if node.op in ("aten.constant_pad_nd.default", "aten.pad.default"):
        return all(isinstance(x, (Ref, tuple, str)) or not x for x in node.args)
    return KINDS[node.op] in (Kind.MOVE, Kind.SELECT) and bool(node.reads)


def _is_over_keys(softmax: Function) -> bool:
    """Whether a softmax is over the last dimension, in the dtype of its operand."""
    rank, (_, dim, *dtype) = len(softmax.shape), softmax.args
    return dim % rank == rank - 1 and dtype in ([], [None], [softmax.dtype]) and not softmax.kwargs
