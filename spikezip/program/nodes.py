"""What a network is: a list of nodes, each with a name, a shape and what it reads.

One small class per kind of node. Nodes read one another by name. A program holds no tensors: weights stand under their
keys in a dict beside it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, TypeVar

import torch

from spikezip.program.sizes import Size

if TYPE_CHECKING:
    from spikezip.program.layout import Layout

_Made = TypeVar("_Made")
Shape: TypeAlias = tuple[int | Size, ...]


@dataclass(frozen=True)
class Ref:
    """The value of another node, among the arguments of a function."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Node:
    """What all nodes have. `module` is the path of the module whose forward pass made it."""

    kind: ClassVar[str] = "node"
    name: str
    shape: Shape
    dtype: torch.dtype
    module: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the nodes that this one reads, in the order of its arguments."""
        return ()

    def reading(self, rename: Callable[[str], str]) -> Self:
        """The same node with everything it reads renamed."""
        return self

    @property
    def details(self) -> str:
        """What it computes, as one line of text."""
        return ""


@dataclass(frozen=True)
class Input(Node):
    """An input of the network."""

    kind: ClassVar[str] = "input"


@dataclass(frozen=True)
class Weight(Node):
    """A tensor of the network, under `key`. With `bits` it is on an integer grid: integers and a scale per row.

    `trained` tells a parameter from a buffer, which holds numbers that somebody computed.
    """

    kind: ClassVar[str] = "weight"
    key: str = ""
    trained: bool = False
    bits: int | None = None

    @property
    def details(self) -> str:
        return self.key + (f", {self.bits} bits" if self.bits else "")


@dataclass(frozen=True)
class Function(Node):
    """Any operation that is no product: an ATen operator by its name."""

    kind: ClassVar[str] = "function"
    op: str = ""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        return tuple(ref.name for ref in _refs((self.args, self.kwargs)))

    def reading(self, rename: Callable[[str], str]) -> Self:
        def change(x: Any) -> Any:
            return Ref(rename(x.name)) if isinstance(x, Ref) else x

        return replace(self, args=map_arguments(self.args, change), kwargs=map_arguments(self.kwargs, change))

    @property
    def details(self) -> str:
        shown = [_show(a) for a in self.args] + [f"{k}={_show(v)}" for k, v in self.kwargs.items()]
        return f"{self.op}({', '.join(shown)})"


@dataclass(frozen=True)
class _Reader(Node):
    """A node whose fields in `operands` are names of nodes."""

    operands: ClassVar[tuple[str, ...]] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(name for slot in self.operands if (name := getattr(self, slot)) is not None)

    def reading(self, rename: Callable[[str], str]) -> Self:
        given = {slot: getattr(self, slot) for slot in self.operands}
        renamed: dict[str, Any] = {slot: rename(name) for slot, name in given.items() if name is not None}
        return replace(self, **renamed)


@dataclass(frozen=True)
class Product(_Reader):
    """A product: `linear` and `convolution` of a value with weights, `matmul` of two values."""

    kind: ClassVar[str] = "product"
    scaled_in: str = ""  # the module whose factor was folded into the weights: its output is this product's


@dataclass(frozen=True)
class Linear(Product):
    """`y = x · Wᵀ + b`, with the weight `[out, in]`."""

    operands: ClassVar[tuple[str, ...]] = ("x", "weight", "bias")
    x: str = ""
    weight: str = ""
    bias: str | None = None

    @property
    def details(self) -> str:
        return f"{self.x} · {self.weight}ᵀ" + (f" + {self.bias}" if self.bias else "")


@dataclass(frozen=True)
class Convolution(Product):
    """A convolution over the last dimensions, as many as `stride` has; `padding` is by dimension, before and after."""

    operands: ClassVar[tuple[str, ...]] = ("x", "weight", "bias")
    x: str = ""
    weight: str = ""
    bias: str | None = None
    stride: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1

    @property
    def details(self) -> str:
        more = f", groups={self.groups}" if self.groups > 1 else ""
        shown = f"convolution({self.x}, {self.weight}, stride={self.stride}{more})"
        return shown + (f" + {self.bias}" if self.bias else "")


@dataclass(frozen=True)
class Matmul(Product):
    """`y = (a · b) · scaling`; both operands may vary (SESA in the paper), or one is a weight."""

    operands: ClassVar[tuple[str, ...]] = ("a", "b")
    a: str = ""
    b: str = ""
    scaling: float = 1.0

    @property
    def details(self) -> str:
        return f"{self.a} · {self.b}" + (f" · {self.scaling:.6g}" if self.scaling != 1 else "")


@dataclass(frozen=True)
class Site(_Reader):
    """A place where activations are quantized; in the spiking network a layer of neurons. Its value is codes.

    `entry` says that the input enters the spiking network here: what it reads does not change over time.
    """

    kind: ClassVar[str] = "site"
    operands: ClassVar[tuple[str, ...]] = ("u",)
    u: str = ""
    signed: bool = True
    relu: bool = False  # whether the site stands for a ReLU before it
    entry: bool = False
    lo: int = 0
    hi: int = 0
    by_channel: bool = False

    @property
    def details(self) -> str:
        return f"neurons({self.u}), codes {self.lo}…{self.hi}" + (", input enters" if self.entry else "")

    @property
    def levels(self) -> int:
        return self.hi - self.lo + 1

    @property
    def largest(self) -> int:
        """The largest magnitude of a code."""
        return max(abs(self.lo), abs(self.hi))


@dataclass(frozen=True)
class Grid(_Reader):
    """A constant on an integer grid, for a product: its value is integers, with a scale per row or one for all.

    A site with a scale per channel cannot take it out of the sum: it is multiplied into the columns before.
    """

    kind: ClassVar[str] = "grid"
    operands: ClassVar[tuple[str, ...]] = ("weight",)
    weight: str = ""
    bits: int = 8
    rows: bool = True
    site: str | None = None

    @property
    def details(self) -> str:
        return f"{self.weight} in {self.bits} bits" + (f", times the scales of {self.site}" if self.site else "")


@dataclass(frozen=True)
class Rows(_Reader):
    """Rows that were looked up in a table, each on the integer grid that it has in the table; its value is floats.

    The scale of a row depends on that row alone, so what is looked up need not be known before.
    """

    kind: ClassVar[str] = "rows"
    operands: ClassVar[tuple[str, ...]] = ("x",)
    x: str = ""
    bits: int = 8

    @property
    def details(self) -> str:
        return f"{self.x} in {self.bits} bits"


@dataclass(frozen=True)
class Values(_Reader):
    """The values `s·S` of a site's codes, for functions and outputs."""

    kind: ClassVar[str] = "values"
    operands: ClassVar[tuple[str, ...]] = ("codes",)
    codes: str = ""

    @property
    def details(self) -> str:
        return f"scale · {self.codes}"


@dataclass(frozen=True)
class Program:
    """A network: nodes in the order of execution, what it returns, and what its symbols stand for.

    `output` is nested dicts, lists and tuples whose leaves are `Ref` or constants; `output_class` names the class of a
    model output, if it was one. `symbols` gives, for each symbol, an input and the dimension to read it from. `batch`
    is the symbol of the batch; None if the network was captured for one batch size only, and `fixed` says why.
    `options` are the inputs that are no tensors, as they were when the network was captured.
    Names leave out `prefix`, under which a Hugging Face model with a head holds its base model.
    """

    nodes: tuple[Node, ...]
    output: Any
    symbols: Mapping[str, tuple[str, int]]
    batch: str | None
    fixed: str = ""
    output_class: str = ""
    prefix: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: what is derived from a program is made again from the copy."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __getitem__(self, name: str) -> Node:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def readers(self) -> dict[str, tuple[Node, ...]]:
        """Name → the nodes that read it, in order. Outputs are not among them."""
        found: dict[str, list[Node]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for name in dict.fromkeys(node.reads):
                found[name].append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def returned(self) -> frozenset[str]:
        """The names of nodes that are part of the output."""
        return frozenset(ref.name for ref in _refs(self.output))

    @cached_property
    def sites(self) -> dict[str, Site]:
        return {node.name: node for node in self.nodes if isinstance(node, Site)}

    @cached_property
    def varying(self) -> frozenset[str]:
        """The values that change over time: codes of sites, and all that depends on them."""
        found: set[str] = set()
        for node in self.nodes:
            if isinstance(node, Site) or any(name in found for name in node.reads):
                found.add(node.name)
        return frozenset(found)

    @cached_property
    def constant(self) -> tuple[Node, ...]:
        """The nodes whose value does not change over time, in order; evaluated once per input."""
        return tuple(node for node in self.nodes if node.name not in self.varying)

    @cached_property
    def moving(self) -> tuple[Node, ...]:
        """The nodes that are evaluated in every step, in order."""
        return tuple(node for node in self.nodes if node.name in self.varying)

    @cached_property
    def layout(self) -> "Layout":
        """Where the samples of a batch lie in each value."""
        from spikezip.program.layout import batch_layout  # it reads nodes

        return batch_layout(self)

    def derived(self, make: Callable[["Program"], _Made]) -> _Made:
        """What a function makes of this program, made once and kept with it: a program never changes."""
        found: dict[Any, Any] = self.__dict__.setdefault("_derived", {})
        if make not in found:
            found[make] = make(self)
        made: _Made = found[make]
        return made

    @property
    def inputs(self) -> tuple[Input, ...]:
        return tuple(node for node in self.nodes if isinstance(node, Input))

    @property
    def products(self) -> tuple[Product, ...]:
        return tuple(node for node in self.nodes if isinstance(node, Product))

    def without_dead_nodes(self) -> "Program":
        """The program without nodes that nothing reads. Inputs stay: the caller gives them anyway."""
        alive = set(self.returned)
        for node in reversed(self.nodes):
            if node.name in alive:
                alive.update(node.reads)
        return replace(self, nodes=tuple(n for n in self.nodes if n.name in alive or isinstance(n, Input)))

    def __str__(self) -> str:
        """One line per node: name, shape, what it computes. Weights are named where they are read."""
        shown = [node for node in self.nodes if not isinstance(node, Weight)]
        width = min(max((len(n.name) for n in shown), default=0), 60)
        shapes = [f"[{', '.join(map(str, n.shape))}]" for n in shown]
        wide = min(max(map(len, shapes), default=0), 24)
        lines = [
            f"{n.name:<{width}}  {shape:<{wide}}  {n.kind:<8}  {n.details}".rstrip()
            for n, shape in zip(shown, shapes, strict=True)
        ]
        return "\n".join([*lines, f"returns {_show(self.output)}"])


def map_arguments(x: Any, change: Callable[[Any], Any]) -> Any:
    """The same nested arguments with every leaf changed."""
    if isinstance(x, Mapping):
        return {key: map_arguments(value, change) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(map_arguments(value, change) for value in x)
    return change(x)


def _refs(x: Any) -> Iterator[Ref]:
    if isinstance(x, Mapping):
        x = tuple(x.values())
    if isinstance(x, (tuple, list)):
        for value in x:
            yield from _refs(value)
    elif isinstance(x, Ref):
        yield x


def _show(x: Any) -> str:
    if isinstance(x, Mapping):
        return "{" + ", ".join(f"{k}: {_show(v)}" for k, v in x.items()) + "}"
    if isinstance(x, (tuple, list)):
        return "[" + ", ".join(map(_show, x)) + "]"
    return f"{x:.6g}" if isinstance(x, float) else str(x)


KINDS: dict[str, type[Node]] = {
    cls.__name__: cls for cls in (Input, Weight, Function, Linear, Convolution, Matmul, Site, Grid, Rows, Values)
}
