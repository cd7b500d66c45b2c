"""What a spiking network computes per sample: which product reads which neurons, which functions stand in between.

All of it follows from the program and the sizes of an input. How many accumulates a spike costs is a derivative: that
of the sum of a product's outputs with respect to the spiking neuron, with ones in the place of the other operand.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from spikezip.engines import Run, SpikingNetwork
from spikezip.errors import ConfigError, InputError
from spikezip.measure.rows import LINEAR, MIX, SCORES
from spikezip.program.analysis import chain, source
from spikezip.program.batch import Batch
from spikezip.program.freeze import Frozen
from spikezip.program.functions import KINDS, Kind, float_value, plain_product
from spikezip.program.nodes import (
    Convolution,
    Function,
    Input,
    Linear,
    Matmul,
    Node,
    Product,
    Program,
    Site,
    Weight,
)
from spikezip.program.sizes import Size, bind

# What operations of torch cost, by their name in aten: the kinds of `energy_model.FUNCTIONS`.
_COSTS = {
    **dict.fromkeys(("add", "sub", "rsub"), "add"),
    **dict.fromkeys(("mul", "div", "square", "pow", "true_divide"), "multiply"),
    **dict.fromkeys(("mean", "sum", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d"), "sum"),
    **{name: name for name in ("tanh", "relu", "gelu", "silu", "sigmoid", "softmax", "hadamard")},
    **dict.fromkeys(("layer_norm", "group_norm", "native_layer_norm"), "layernorm"),
    "rms_norm": "rmsnorm",
    **dict.fromkeys(("erf", "exp", "log", "sin", "cos", "softplus", "elu", "hardswish", "mish"), "function"),
}
# Those that move values, change their sign or format, or compare: they cost nothing here.
_FREE = frozenset(
    (
        "cat", "stack", "split", "split_with_sizes", "chunk", "unbind", "neg", "to", "type_as", "contiguous", "clone",
        "masked_fill", "where", "embedding", "constant_pad_nd", "pad", "dropout", "zeros_like", "ones_like",
        "full_like", "index_put", "slice_scatter", "select_scatter",
    )
)  # fmt: skip
_RMS_NORM = frozenset(("pow", "square", "mul", "mean", "add", "rsqrt", "to"))
_LOOKUPS = ("embedding", "index", "index_select", "gather")


@dataclass(frozen=True)
class SiteShape:
    """A layer of neurons. `sources`: the spikes that change its input; none where the input of the network does."""

    name: str
    shape: tuple[int, ...]  # of one sample
    sources: frozenset[str]
    entry: bool
    levels: int

    @property
    def neurons(self) -> int:
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return (self.levels - 1).bit_length()


@dataclass(frozen=True)
class Operand:
    """The codes of a site that a product reads.

    `cost`: for each neuron the accumulates that a spike of it takes; one number where all neurons cost the same.
    """

    site: str
    product: str
    cost: int | Tensor = field(repr=False)

    @property
    def arriving(self) -> str:
        """A name for the spikes that arrive: the site's, or one of its own if only a part of the site arrives."""
        partial = isinstance(self.cost, Tensor) and not bool((self.cost > 0).all())
        return f"{self.site} → {self.product}" if partial else self.site

    @property
    def fan_out(self) -> int | None:
        """The accumulates of a spike that arrives; None if they differ from neuron to neuron."""
        if isinstance(self.cost, int):
            return self.cost
        found = self.cost[self.cost > 0].unique()
        return int(found) if len(found) == 1 else None


@dataclass(frozen=True)
class ProductShape:
    """A product. `kind`: "linear" with weights; of two sites "scores" (Q·K), or "mix" (P·V) behind a softmax."""

    node: str
    name: str
    kind: str
    operands: tuple[Operand, ...]
    macs: int
    outputs: int
    weights: int
    weight_bits: int | None


@dataclass(frozen=True)
class FunctionShape:
    """A function between products: `elements` per evaluation in `rows` vectors; computed when a source has fired."""

    name: str
    kind: str
    elements: int
    rows: int
    sources: frozenset[str]


@dataclass(frozen=True)
class InputShape:
    """A product that sees the float input, once per inference."""

    name: str
    macs: int
    outputs: int
    weights: int
    weight_bits: int | None


@dataclass(frozen=True)
class Layout:
    """A network for one input shape, in the order of execution. `sizes` are those of one sample."""

    program: Program
    sizes: Mapping[str, int]
    sites: Mapping[str, SiteShape]
    products: tuple[ProductShape, ...]
    functions: tuple[FunctionShape, ...]
    inputs: tuple[InputShape, ...]

    @property
    def read_in_part(self) -> tuple[str, ...]:
        """Sites whose neurons do not all cost the same, such as one of which a head reads the class token only."""
        operands = (operand for product in self.products for operand in product.operands)
        return tuple(dict.fromkeys(o.site for o in operands if isinstance(o.cost, Tensor)))


def layout(snn: SpikingNetwork, batch: Batch | None = None) -> Layout:
    """The layout for a batch's shape; without a batch, for lengths of 4.

    Example:
        >>> import spikezip
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> images = torch.randn(2, 4)
        >>> found = layout(spikezip.convert(spikezip.calibrate(spikezip.quantize(model, example=images), images)))
        >>> found.products[0].name, found.products[0].operands[0].fan_out, found.read_in_part
        ('2', 3, ())
    """
    check_snn(snn)
    network = snn.frozen()
    if batch is None:
        return _layout(network, {name: 1 if name == network.program.batch else 4 for name in network.program.symbols})
    inputs = snn.prepare(batch)
    return _layout(network, {s: inputs[name].shape[dim] for s, (name, dim) in network.program.symbols.items()})


def layout_of(snn: SpikingNetwork, run: Run, batch: Batch | None = None) -> Layout:
    """The layout of a run. The shapes of its codes tell the sizes, or the batch does."""
    check_snn(snn)
    program = snn.program
    if set(program.sites) != set(run.tracers):
        odd = sorted(set(program.sites) ^ set(run.tracers))
        raise InputError(f"this is a run of another network: only one of the two has the site {odd[0]!r}")
    if batch is not None:
        inputs = snn.prepare(batch)
        sizes = {symbol: inputs[name].shape[dim] for symbol, (name, dim) in program.symbols.items()}
    else:
        sizes = dict.fromkeys(program.symbols, 1)  # a symbol that no site has does not matter
        for name, site in program.sites.items():
            for size, found in zip(site.shape, run.tracers[name].shape, strict=False):
                if isinstance(size, Size) and size.op == "symbol":
                    sizes[size.args[0]] = found
    for name, site in program.sites.items():
        seen = tuple(run.tracers[name].shape)
        if tuple(bind(size, sizes) for size in site.shape) != seen:
            raise InputError(
                f"in the run the site {name!r} has the shape {list(seen)}, which does not fit "
                + ("the batch" if batch is not None else "the network: give the batch that was run, too")
            )
    return _layout(snn.frozen(), sizes)


def check_snn(snn: Any) -> None:
    if not isinstance(snn, SpikingNetwork):
        raise ConfigError(f"operations are counted on what spikezip.convert returns, not {type(snn).__name__}")


def _layout(network: Frozen, sizes: Mapping[str, int]) -> Layout:
    """The layout of one sample, found once for each shape and kept with the program."""
    program = network.program
    if program.batch is not None:
        sizes = {**sizes, program.batch: 1}
    known = program.derived(_layouts)
    key = tuple(sorted(sizes.items()))
    if key not in known:
        known[key] = Finder(network, dict(sizes)).layout()
    return known[key]


def _layouts(program: Program) -> dict[Any, Layout]:
    return {}


class Finder:
    """Goes through a program once."""

    def __init__(self, network: Frozen, sizes: dict[str, int]) -> None:
        self.network, self.program, self.sizes = network, network.program, sizes
        self.live = _live(self.program)
        self.samples = 1 if self.program.batch is not None else _fixed_batch(self.program)
        self.constants: dict[str, Any] = {}

    def layout(self) -> Layout:
        sites: dict[str, SiteShape] = {}
        products: list[ProductShape] = []
        functions: list[FunctionShape] = []
        inputs: list[InputShape] = []
        sources: dict[str, frozenset[str]] = {}
        norms = _rms_norms(self.program)
        for node in self.program.nodes:
            behind = frozenset[str]().union(*(sources[name] for name in node.reads))
            sources[node.name] = behind
            if isinstance(node, Site):
                shape = self.shape(node)
                sites[node.name] = SiteShape(node.name, shape, behind, node.entry, node.levels)
                sources[node.name] = frozenset({node.name})
            elif isinstance(node, Product) and behind:
                product = self.product(node)
                products.append(product)
                sources[node.name] = frozenset(operand.arriving for operand in product.operands)
            elif isinstance(node, Product) and node.name in self.live:
                inputs.append(self.input(node))
            elif isinstance(node, Function):
                functions += self.function(node, behind, norms)
            biased = isinstance(node, (Linear, Convolution)) and node.bias is not None
            if biased and node.name in self.live:
                name = node.module or node.name
                functions.append(FunctionShape(f"{name}.bias", "add", self.elements(node), 0, frozenset()))
        return Layout(self.program, self.sizes, sites, tuple(products), tuple(functions), tuple(inputs))

    def shape(self, node: Node) -> tuple[int, ...]:
        return tuple(bind(size, self.sizes) for size in node.shape)

    def elements(self, node: Node) -> int:
        """Elements of a value, of one sample."""
        return math.prod(self.shape(node)) // self.samples

    def product(self, node: Any) -> ProductShape:
        weights = _weights(self.program, node)
        left, right = node.reads[:2]
        found = [
            Operand(site.name, node.name, self.cost(node, name, site))
            for name in (left, right)
            if isinstance(site := source(self.program, name), Site)
        ]
        if not found:
            raise ConfigError(f"the operations of {node.name} cannot be counted: it reads no codes of a site")
        kind = LINEAR if len(found) == 1 else MIX if _behind_softmax(self.program, found[0].site) else SCORES
        name = (node.module or node.name) if kind == LINEAR else node.name
        bits = next((w.bits for w in weights if isinstance(w, Weight)), None)
        held = sum(math.prod(self.shape(w)) for w in weights)
        return ProductShape(node.name, name, kind, tuple(found), self.macs(node), self.elements(node), held, bits)

    def input(self, node: Any) -> InputShape:
        weights = _weights(self.program, node)
        bits = next((w.bits for w in weights if isinstance(w, Weight)), None)
        held = sum(math.prod(self.shape(w)) for w in weights)
        return InputShape(node.module or node.name, self.macs(node), self.elements(node), held, bits)

    def macs(self, node: Any) -> int:
        """Multiply–accumulates of a product, of one sample."""
        if isinstance(node, Matmul):
            return self.elements(node) * self.shape(self.program[node.a])[-1]
        return self.elements(node) * math.prod(self.shape(self.program[node.weight])[1:])

    def cost(self, node: Any, operand: str, site: Site) -> int | Tensor:
        found = derivative(node, operand, site, self, None)
        return int(found.flatten()[0]) if bool((found == found.flatten()[0]).all()) else found

    def constant(self, name: str) -> Any:
        """A value that movement reads, such as the places that an index takes; it must not change over time."""
        if name in self.constants:
            return self.constants[name]
        node = self.program[name]
        if isinstance(node, Weight):
            value: Any = self.network.tensors[node.key]
        elif isinstance(node, Input) or name in self.program.varying:
            when = "with the input" if isinstance(node, Input) else "over time"
            raise ConfigError(f"operations cannot be counted: which codes a product reads by {name!r} changes {when}")
        else:
            values = {read: self.constant(read) for read in node.reads}
            value = float_value(node, values, self.sizes, self.network.device)
        self.constants[name] = value
        return value

    def function(self, node: Function, behind: frozenset[str], norms: Mapping[str, str]) -> list[FunctionShape]:
        """What a function costs, as one row; none if it only moves values, or its norm is counted as a whole."""
        operation = node.op.split(".")[1]
        if node.name not in self.live or not node.dtype.is_floating_point:
            return []
        kind = _COSTS.get(operation, "other")
        if KINDS[node.op] in (Kind.MOVE, Kind.SELECT) or operation in _FREE or self.masks(node):
            return []
        elements, rows, name = self.elements(node), 0, node.name
        if node.name in norms:
            if operation != "rsqrt":
                return []
            kind, rows, name = "rmsnorm", elements, node.module
            elements = self.elements(self.program[norms[node.name]])
        elif kind == "sum":
            rows, elements = elements, self.elements(self.program[node.reads[0]])
        elif kind in ("softmax", "layernorm", "rmsnorm"):
            rows = elements // self.shape(node)[-1]
            name = node.module if kind != "softmax" and node.module else node.name
        elif kind == "hadamard":  # an addition for each value and stage
            elements *= node.args[1].bit_length() - 1
        elif operation == "gelu" and "tanh" in node.kwargs.values():
            kind = "gelu_tanh"
        return [FunctionShape(name, kind, elements, rows, behind)]

    def masks(self, node: Function) -> bool:
        """Whether a function adds a constant to scores on their way to a softmax, whose cost has that in it."""
        readers = self.program.readers[node.name]
        only = readers[0] if len(readers) == 1 else None
        if _COSTS.get(node.op.split(".")[1]) != "add" or not isinstance(only, Function):
            return False
        constant = sum(name in self.program.varying for name in node.reads) == 1
        return constant and ("softmax" in only.op or self.masks(only))


def derivative(node: Any, operand: str, site: Site, finder: Finder, real: Any) -> Tensor:
    """For each neuron of a site the accumulates that a spike of it takes in a product; a tensor of the site's shape.

    `real` gives, for a node, which of its elements are counted: 1 or 0; None counts all.
    """
    with torch.enable_grad():
        codes = torch.zeros(finder.shape(site), dtype=torch.float64, device=finder.network.device, requires_grad=True)
        moved: Any = codes
        for move in reversed(list(chain(finder.program, operand, site.name))):
            values = {name: finder.constant(name) for name in move.reads[1:]} | {move.reads[0]: moved}
            moved = float_value(move, values, finder.sizes, finder.network.device)
        others = {
            name: torch.ones(finder.shape(finder.program[name]), dtype=torch.float64, device=codes.device)
            for name in node.reads[:2]
        }
        if real is not None:
            for name in others:
                others[name] *= real(finder.program[name])
        y = plain_product(_bare(node), ({**others, operand: moved}).__getitem__)
        y = y if real is None else y * real(node)
        (found,) = torch.autograd.grad(y.sum(), codes)
    return found.round().to(torch.int64).cpu()


def _bare(node: Any) -> Any:
    """A product without bias and scaling."""
    return replace(node, scaling=1.0) if isinstance(node, Matmul) else replace(node, bias=None)


def _weights(program: Program, node: Any) -> list[Node]:
    """The operands of a product that do not change with the input."""
    names = node.reads[:2] if isinstance(node, Matmul) else (node.weight,)
    return [program[name] for name in names if isinstance(source(program, name), Weight) or _is_fixed(program, name)]


def _is_fixed(program: Program, name: str) -> bool:
    node = program[name]
    return isinstance(node, Weight) or (isinstance(node, Function) and all(_is_fixed(program, n) for n in node.reads))


def _behind_softmax(program: Program, site: str) -> bool:
    node = program[program.sites[site].u]
    while isinstance(node, Function) and KINDS[node.op] in (Kind.MOVE, Kind.SELECT) and node.reads:
        node = program[node.reads[0]]
    return isinstance(node, Function) and "softmax" in node.op


def _fixed_batch(program: Program) -> int:
    """The samples of a network that was captured for one batch size only."""
    return int(next(node.shape[0] for node in program.inputs if node.shape and isinstance(node.shape[0], int)))


def _live(program: Program) -> set[str]:
    """The values of the network itself: behind the first layer that the input meets, a product or a lookup."""
    given: set[str] = set()
    found: set[str] = set()
    for node in program.nodes:
        if isinstance(node, Input) or any(name in given for name in node.reads):
            given.add(node.name)
        lookup = isinstance(node, Function) and node.op.split(".")[1] in _LOOKUPS and node.dtype.is_floating_point
        first = node.name in given and (
            isinstance(node, Product) or (lookup and isinstance(program[node.reads[0]], Weight))
        )
        if first or isinstance(node, Site) or any(name in found for name in node.reads):
            found.add(node.name)
    return found


def _rms_norms(program: Program) -> dict[str, str]:
    """The functions of norms written out as square, mean and root → what the norm reads."""
    by_module: dict[str, list[Function]] = {}
    for node in program.nodes:
        if isinstance(node, Function) and node.module:
            by_module.setdefault(node.module, []).append(node)
    found: dict[str, str] = {}
    for nodes in by_module.values():
        names = {node.op.split(".")[1] for node in nodes}
        if names <= _RMS_NORM and {"mean", "rsqrt", "mul"} <= names:
            found |= {node.name: nodes[0].reads[0] for node in nodes}
    return found
