"""What can be said of the values of a program without running it."""

from collections.abc import Iterator
from enum import IntEnum

from spikezip.program.functions import KINDS, Kind, operators
from spikezip.program.nodes import (
    Convolution,
    Function,
    Grid,
    Input,
    Linear,
    Matmul,
    Node,
    Product,
    Program,
    Ref,
    Site,
    Weight,
)

# Lookups in a table: with a trained table and ids from the input, an input layer.
_LOOKUPS = ("aten.embedding.default", "aten.index.Tensor", "aten.index_select.default", "aten.gather.default")
_NOT_NEGATIVE = frozenset(
    operators("relu relu6 softmax.int sigmoid abs exp exp2 square hardsigmoid softplus sqrt rsqrt")
)
# Not negative if all that they read is not.
_KEEP_SIGN = frozenset(
    operators(
        "max_pool1d max_pool2d max_pool3d adaptive_max_pool2d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
        "adaptive_avg_pool2d mean.dim mean sum.dim_IntList amax amin cat stack to.dtype upsample_nearest2d.vec "
        "upsample_nearest2d maximum cumsum"
    )
)


class Depends(IntEnum):
    """What a value depends on: the weights alone, also the input, or the input through a layer of the network."""

    WEIGHTS = 0
    INPUT = 1
    NETWORK = 2


def dependence(program: Program) -> dict[str, Depends]:
    """For every value, what it depends on. The first layer that the input meets is where the network begins."""
    found: dict[str, Depends] = {}
    trained: set[str] = set()  # values of weights alone, made from trained ones
    for node in program.nodes:
        most = max((found[name] for name in node.reads), default=Depends.WEIGHTS)
        if isinstance(node, Input):
            most = Depends.INPUT
        elif most == Depends.INPUT and _is_layer(node, trained):
            most = Depends.NETWORK
        elif most == Depends.WEIGHTS and (
            (isinstance(node, Weight) and node.trained) or any(name in trained for name in node.reads)
        ):
            trained.add(node.name)
        found[node.name] = most
    return found


def _is_layer(node: Node, trained: set[str]) -> bool:
    if isinstance(node, (Linear, Convolution)):
        return node.weight in trained
    if isinstance(node, Matmul):
        return node.a in trained or node.b in trained
    lookup = isinstance(node, Function) and node.op in _LOOKUPS
    return lookup and node.reads[0] in trained


def is_move(node: Node, dependence: dict[str, Depends], select: bool) -> bool:
    """Whether a node only moves the elements of its first operand; with `select`, it may leave some out."""
    if not isinstance(node, Function) or not node.args or not isinstance(node.args[0], Ref):
        return False
    kind = KINDS[node.op]
    if node.op == "aten.constant_pad_nd.default":
        pads_zero = len(node.args) < 3 or node.args[2] == 0
        kind = Kind.SELECT if pads_zero else Kind.IEEE
    if kind is not Kind.MOVE and not (select and kind is Kind.SELECT):
        return False
    return all(dependence[name] < Depends.NETWORK for name in node.reads[1:])


def origin(program: Program, name: str, dependence: dict[str, Depends], select: bool = False) -> str:
    """The value whose elements a value consists of, moved: as far up as nothing but movement lies between."""
    node = program[name]
    while is_move(node, dependence, select):
        node = program[node.reads[0]]
    return node.name


def constant_source(program: Program, name: str, dependence: dict[str, Depends]) -> str | None:
    """The constant that a value is taken from, whatever chose the elements: an expert's weights, say; or None."""
    node = program[name]
    while dependence[node.name] > Depends.WEIGHTS:
        if not isinstance(node, Function) or KINDS[node.op] not in (Kind.MOVE, Kind.SELECT) or not node.reads:
            return None
        if not isinstance(node.args[0], Ref):
            return None
        node = program[node.reads[0]]
    while is_move(node, dependence, select=True):
        node = program[node.reads[0]]
    return node.name


def not_negative(program: Program, dependence: dict[str, Depends]) -> set[str]:
    """Values that cannot be negative: behind a ReLU, a softmax and the like."""
    found: set[str] = set()
    for node in program.nodes:
        if not isinstance(node, Function):
            continue
        if node.op in _NOT_NEGATIVE or (node.op == "aten.pow.Tensor_Scalar" and node.args[1] == 2):
            found.add(node.name)
        elif node.op in ("aten.clamp.default", "aten.clamp_min.default", "aten.hardtanh.default"):
            least = node.args[1] if len(node.args) > 1 else None
            if isinstance(least, (int, float)) and least >= 0:
                found.add(node.name)
        elif is_move(node, dependence, select=True):
            if node.reads[0] in found:
                found.add(node.name)
        elif node.op in _KEEP_SIGN and node.reads and all(name in found for name in node.reads):
            found.add(node.name)
    return found


def ancestors(program: Program) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Sets of nodes as bits of a number: each node's own, and those of all nodes that it depends on through a product.

    The third is the bits of all that it depends on.
    """
    own = {node.name: 1 << i for i, node in enumerate(program.nodes)}
    everything: dict[str, int] = {}
    through: dict[str, int] = {}
    for node in program.nodes:
        mine, behind = own[node.name], 0
        for name in node.reads:
            mine |= everything[name]
            behind |= everything[name] if isinstance(node, Product) else through[name]
        everything[node.name], through[node.name] = mine, behind
    return own, through, everything


def source(program: Program, name: str) -> Site | Grid | Weight | None:
    """The site or the constant on a grid whose codes a value consists of, moved or not; None if it holds no codes."""
    node = program[name]
    while isinstance(node, Function) and KINDS[node.op] in (Kind.MOVE, Kind.SELECT) and node.reads:
        node = program[node.reads[0]]
    if isinstance(node, (Site, Grid)) or (isinstance(node, Weight) and node.bits is not None):
        return node
    return None


def chain(program: Program, name: str, stop: str) -> Iterator[Function]:
    """The functions that move `stop` to `name`, last one first."""
    node = program[name]
    while node.name != stop:
        assert isinstance(node, Function)  # only movement lies in between
        yield node
        node = program[node.reads[0]]


def moves_channels(step: Function, program: Program) -> bool:
    """Whether a movement changes what the last dimension is."""
    before, after = program[step.reads[0]].shape, step.shape
    if not before or not after or before[-1] != after[-1]:
        return True
    name = step.op.split(".")[1]
    if name in ("transpose", "select", "slice", "roll", "flip", "swapaxes", "narrow", "index_select"):
        dims = [d for arg in step.args[1:3] for d in (arg if isinstance(arg, tuple) else (arg,)) if isinstance(d, int)]
        dims = dims[:1] if name in ("select", "slice", "narrow", "index_select") else dims
        return any(d % len(before) == len(before) - 1 for d in dims)
    if name == "permute":
        return bool(step.args[1][-1] % len(before) != len(before) - 1)
    return name not in ("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "expand", "dropout", "index")


# --- does a network give the same codes on every machine?


def not_portable(program: Program) -> tuple[str, ...]:
    """What makes the codes of a network depend on the machine, by name; nothing, for most networks.

    What depends on weights alone is computed once, when the network is converted, and stored with it.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spikezip.quant.network import quantize
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> not_portable(quantize(model, example=torch.randn(2, 4)).program)
        ()
    """
    depends = dependence(program)
    found: dict[str, None] = {}
    for node in program.nodes:
        if depends[node.name] is not Depends.WEIGHTS:
            found.update(dict.fromkeys(reasons(program, node)))
    return tuple(found)


def reasons(program: Program, node: Node) -> list[str]:
    """Why the value of one node depends on the machine; empty if it does not."""
    if isinstance(node, Function):
        name = node.op.split(".")[1] if "." in node.op else node.op
        if KINDS[node.op] is Kind.WIDE or (name == "index_put" and _accumulates(node)):
            return [name]
        return [f"{name} of complex numbers"] if node.dtype.is_complex else []
    if not isinstance(node, Product):
        return []
    if node.name in program.varying:
        operands = [source(program, name) for name in node.reads[:2]]
        integers = all(isinstance(x, (Site, Grid)) or (isinstance(x, Weight) and x.bits) for x in operands)
        return [] if integers else ["float weights"]
    weight = source(program, node.reads[1])
    if isinstance(node, Convolution) and weight is None:
        return ["convolution of floats"]
    return []


def _accumulates(node: Function) -> bool:
    return node.kwargs.get("accumulate", False) or (len(node.args) > 3 and bool(node.args[3]))
