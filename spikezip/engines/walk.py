"""Go through the nodes of a program once. What a product and a site do, an engine says."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.synapses import InputLayer
from spikezip.errors import InputError
from spikezip.program.analysis import source
from spikezip.program.batch import check_ids
from spikezip.program.floats import float_value, function_value
from spikezip.program.freeze import Frozen, on_grid
from spikezip.program.functions import KINDS, Kind
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
    Site,
    Values,
    Weight,
)
from spikezip.program.sizes import Bindings, Size, bind, plus

SiteRule = Callable[[Site, Tensor], Tensor]
ProductRule = Callable[[Any, Mapping[str, Any]], Tensor]


def sizes_of(program: Program, inputs: Mapping[str, Any]) -> dict[str, int]:
    """What the symbols stand for in a batch, after checking that it fits the program."""
    missing = [node.name for node in program.inputs if node.name not in inputs]
    unknown = [name for name in inputs if name not in {node.name for node in program.inputs}]
    if missing or unknown:
        takes = ", ".join(node.name for node in program.inputs)
        which = f"without {', '.join(missing)}" if missing else f"with {', '.join(unknown)}"
        raise InputError(f"a batch {which}: the network was captured with the inputs {takes}; give these")
    for name, dim in program.symbols.values():
        if inputs[name].ndim <= dim:
            shown = ", ".join(map(str, program[name].shape))
            raise InputError(f"{name} has the shape {list(inputs[name].shape)}, but [{shown}] is needed")
    sizes = {symbol: inputs[name].shape[dim] for symbol, (name, dim) in program.symbols.items()}
    for node in program.inputs:
        wanted = tuple(bind(size, sizes) for size in node.shape)
        if tuple(inputs[node.name].shape) != wanted:
            shown = ", ".join(map(str, node.shape))
            raise InputError(
                f"{node.name} has the shape {list(inputs[node.name].shape)}, but [{shown}] is needed"
                + ("" if program.batch else f": the network was captured for this batch size only ({program.fixed})")
            )
    for what, size, most in program.derived(_limits):
        if bind(size, sizes) > most:
            raise InputError(
                f"{_read_from(program, size)} is too long: {what} holds {most} places, and {bind(size, sizes)} are "
                "needed. Give a shorter one, such as fewer tokens"
            )
    return sizes


def _limits(program: Program) -> list[tuple[str, Size, int]]:
    """What a network holds for a number of places, as embeddings of positions: its name, places needed, places held."""
    found = []
    for node in program.nodes:
        if not isinstance(node, Function) or not node.reads:
            continue
        table = program[node.reads[0]]
        if node.op == "aten.slice.Tensor":
            places = list(zip(node.shape, table.shape, strict=True))
        elif node.op == "aten.embedding.default" and (counted := _counted(program, node.reads[1])) is not None:
            places = [(counted, table.shape[0])]
        else:
            continue
        found += [(table.name, n, m) for n, m in places if isinstance(n, Size) and isinstance(m, int)]
    return found


def _counted(program: Program, name: str) -> Any:
    """The size that numbers count up to, if they do nothing else."""
    node, first = program[name], 0
    while isinstance(node, Function) and node.op != "aten.arange.default":
        if node.op == "aten.add.Tensor" and isinstance(node.args[1], int):
            first += node.args[1]
        elif KINDS[node.op] is not Kind.MOVE:
            return None
        node = program[node.reads[0]]
    return plus(node.args[0], first) if isinstance(node, Function) else None


def _read_from(program: Program, size: Size) -> str:
    """The inputs that a size is read from, with their dimensions."""
    places = (program.symbols[symbol] for symbol in sorted(size.symbols))
    return " and ".join(f"{name} along dimension {dim}" for name, dim in places)


def last_uses(nodes: Iterable[Node], keep: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Node → the values that nothing needs any more once it is done; `keep` stay."""
    last: dict[str, str] = {}
    own = set()
    for node in nodes:
        own.add(node.name)
        last[node.name] = node.name
        for name in node.reads:
            last[name] = node.name
    kept = set(keep)
    found: dict[str, list[str]] = {}
    for name, user in last.items():
        if name in own and name not in kept:
            found.setdefault(user, []).append(name)
    return {user: tuple(names) for user, names in found.items()}


def constants(network: Frozen, inputs: Mapping[str, Any], sizes: Bindings) -> dict[str, Any]:
    """The values that do not change over time, for one input."""
    check_ids(network.program, inputs)
    needed, free = network.program.derived(_uses_of_constants)
    values: dict[str, Any] = {}
    for node in network.constant:
        if isinstance(node, Input):
            values[node.name] = _as_captured(node, inputs[node.name], network.dtype)
        elif isinstance(node, Weight):
            values[node.name] = network.tensors[node.key if node.bits is None else f"{node.key}.codes"]
        elif isinstance(node, (Linear, Convolution)) and source(network.program, node.weight) is not None:
            values[node.name] = InputLayer(network, node).output(values[node.x])
        elif isinstance(node, Grid):  # a constant that depends on a size: it has a grid for this batch
            values[node.name], values[scale_of(node)] = on_grid(values[node.weight], node, None)
        elif isinstance(node, Matmul):
            operands = {name: _in_floats(network, name, values) for name in node.reads}
            values[node.name] = float_value(node, operands, sizes, network.device)
        else:
            values[node.name] = _made(node, values, sizes, network.device)
        for name in free.get(node.name, ()):
            del values[name]
    return {name: value for name, value in values.items() if name in needed}


def _made(node: Node, values: Mapping[str, Any], sizes: Bindings, device: torch.device) -> Any:
    try:
        return float_value(node, values, sizes, device)
    except (IndexError, RuntimeError) as error:  # computed numbers for which a table has no row
        if "out of range" not in str(error) and "out of bounds" not in str(error):
            raise
        raise InputError(
            f"{node.name} cannot be looked up for this batch: {error}. Give ids that the network knows, and no more "
            "tokens than it has positions for"
        ) from error


def _in_floats(network: Frozen, name: str, values: Mapping[str, Any]) -> Tensor:
    """An operand of a product that is made once per input, in floats: a weight as it is on its grid."""
    x: Tensor = values[name]
    found = source(network.program, name)
    if found is None:
        return x
    assert isinstance(found, (Grid, Weight))  # no site: nothing varies here
    scale = values[scale_of(found)] if isinstance(found, Grid) else network.codes(found.key)[1]
    return x.to(scale.dtype) * scale


def _uses_of_constants(program: Program) -> tuple[frozenset[str], dict[str, tuple[str, ...]]]:
    """The constants that are needed in every step, and when others are not needed any more."""
    needed = {name for node in program.moving for name in node.reads} | program.returned
    needed |= {scale_of(node) for node in program.constant if isinstance(node, Grid)}
    return frozenset(needed), last_uses(program.constant, needed)


def uses_of_moving(program: Program) -> dict[str, tuple[str, ...]]:
    """Node → the values that change over time and are not needed any more in a step once it is done."""
    return last_uses(program.moving, program.returned)


def scale_of(node: Grid) -> str:
    """The name under which the scale of a constant stands whose grid is made for each batch."""
    return f"{node.name}.scale"


def _as_captured(node: Input, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Floats in the network's own precision; whole numbers as they are."""
    if node.dtype.is_floating_point:
        if not bool(torch.isfinite(x).all()):
            raise InputError(f"{node.name} holds values that are not finite")
        return x.to(dtype)
    return x.to(node.dtype)


def walk(
    network: Frozen,
    nodes: Iterable[Node],
    values: dict[str, Any],
    sizes: Bindings,
    site: SiteRule,
    product: ProductRule,
    free: Mapping[str, tuple[str, ...]],
) -> None:
    """Evaluate nodes in order, into `values`; drop what `free` says is no longer needed."""
    device = network.device
    for node in nodes:
        if isinstance(node, Site):
            values[node.name] = site(node, values[node.u])
        elif isinstance(node, Product):
            values[node.name] = product(node, values)
        elif isinstance(node, Values):
            codes, step = values[node.codes], network.step_size(node.codes)
            values[node.name] = codes.to(step.dtype) * step
        else:
            assert isinstance(node, Function)
            values[node.name] = function_value(node, values, sizes, device)
        for name in free.get(node.name, ()):
            del values[name]


def collect(output: Any, values: Mapping[str, Any]) -> Any:
    """What the program returns: its structure with values in the place of references."""
    from spikezip.program.nodes import Ref, map_arguments

    return map_arguments(output, lambda x: values[x.name] if isinstance(x, Ref) else x)


def main_output(output: Any, leaf: type) -> list[Any]:
    """The logits in what a network returns; else the last hidden state, the logits of start and end, or the first leaf.

    Example:
        >>> main_output({"loss": None, "hidden": (3.0, 4.0)}, float)
        [3.0]
    """
    if isinstance(output, leaf):
        return [output]
    if isinstance(output, Mapping):
        for names in (("logits",), ("last_hidden_state",), ("start_logits", "end_logits")):
            if all(isinstance(output.get(name), leaf) for name in names):
                return [output[name] for name in names]
        output = tuple(output.values())
    for value in output if isinstance(output, (tuple, list)) else ():
        found = main_output(value, leaf)
        if found:
            return found
    return []
