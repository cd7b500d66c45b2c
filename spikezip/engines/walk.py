"""Go through the nodes of a program once, for one step or several. What a product and a site do, an engine says."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.synapses import input_layer
from spikezip.errors import InputError
from spikezip.program.analysis import source
from spikezip.program.batch import check_ids
from spikezip.program.freeze import Frozen, on_grid
from spikezip.program.functions import float_value, function_value
from spikezip.program.layout import Layout
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
    Values,
    Weight,
    map_arguments,
)
from spikezip.program.sizes import Bindings, bind

SiteRule = Callable[[Site, Tensor], Tensor]
ProductRule = Callable[[Any, Mapping[str, Any]], Tensor]


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
    for node in network.program.constant:
        if isinstance(node, Input):
            values[node.name] = _as_captured(node, inputs[node.name], network.dtype)
        elif isinstance(node, Weight):
            values[node.name] = network.tensors[node.key if node.bits is None else f"{node.key}.codes"]
        elif isinstance(node, (Linear, Convolution)) and source(network.program, node.weight) is not None:
            values[node.name] = input_layer(network, node, values[node.x])
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


class Folding:
    """Steps as further samples: values `[n, …]` of n steps become those of a batch n times as large, and back."""

    def __init__(self, network: Frozen, layout: Layout, sizes: Bindings, batch: int, constants: Mapping[str, Any]):
        self.network, self.program, self.layout = network, network.program, layout
        self.own_sizes, self.batch, self.own_constants = sizes, batch, constants
        self._constants: dict[tuple[str, int], Any] = {}
        self._shapes: dict[tuple[str, int], tuple[int, ...]] = {}

    def prefix(self, name: str) -> int:
        """The elements before the first sample of a value and its second: `[prefix, samples, rest]` is its layout."""
        found: int = bind(self.layout.prefix.get(name, 1), self.own_sizes)
        return found

    def sizes(self, steps: int) -> Bindings:
        if steps == 1:
            return self.own_sizes
        assert self.program.batch is not None
        return {**self.own_sizes, self.program.batch: steps * self.batch}

    def shape(self, name: str, steps: int = 1) -> tuple[int, ...]:
        key = name, steps
        if key not in self._shapes:
            sizes = self.sizes(steps)
            self._shapes[key] = tuple(bind(size, sizes) for size in self.program[name].shape)
        return self._shapes[key]

    def fold(self, name: str, data: Tensor) -> Tensor:
        """`[n, …]` → a batch of n times as many samples."""
        steps = len(data)
        if steps == 1:
            return data[0]
        outer, shape = self.prefix(name), self.shape(name, steps)
        if outer == 1:
            return data.reshape(shape)
        return data.reshape(steps, outer, -1).transpose(0, 1).reshape(shape)

    def unfold(self, name: str, x: Tensor, steps: int) -> Tensor:
        """The other way round."""
        if steps == 1:
            return x[None]
        outer, shape = self.prefix(name), self.shape(name)
        if outer == 1:
            return x.reshape(steps, *shape)
        return x.reshape(outer, steps, -1).transpose(0, 1).reshape(steps, *shape)

    def in_shape(self, name: str, rows: Tensor) -> Tensor:
        """Neurons `[n, B · prefix · rest]`, sample after sample, in the shape of their site, `[n, …]`."""
        outer = self.prefix(name)
        if outer > 1:
            rows = rows.reshape(len(rows), self.batch, outer, -1).transpose(1, 2)
        return rows.reshape(len(rows), *self.shape(name))

    def still(self, name: str) -> Any:
        """A value that does not change over time, for one step, whether it was kept or not."""
        if name in self.own_constants:
            return self.own_constants[name]
        node = self.program[name]
        if isinstance(node, Weight):
            return self.network.tensors[node.key if node.bits is None else f"{node.key}.codes"]
        assert not isinstance(node, Input)
        read = {n: self.still(n) for n in node.reads}
        return float_value(node, read, self.own_sizes, self.network.device)

    def constant(self, name: str, steps: int) -> Any:
        """The same for so many steps: repeated if it has samples; what is made from sizes alone is made anew."""
        if steps == 1 or not (name in self.layout.follows_batch or name in self.layout.prefix):
            return self.still(name)
        key = name, steps
        if key not in self._constants:
            self._constants[key] = self._constant(name, steps)
        return self._constants[key]

    def _constant(self, name: str, steps: int) -> Any:
        if name in self.layout.follows_batch:
            node = self.program[name]
            read = {n: self.constant(n, steps) for n in node.reads}
            return float_value(node, read, self.sizes(steps), self.network.device)
        x = self.still(name)
        if not isinstance(x, Tensor):
            return x
        outer = self.prefix(name)
        return x.reshape(outer, 1, -1).expand(outer, steps, -1).reshape(self.shape(name, steps))

    def forget(self) -> None:
        """Release the memory of constants that were made for several steps."""
        self._constants.clear()


def collect(output: Any, values: Mapping[str, Any]) -> Any:
    """What the program returns: its structure with values in the place of references."""
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
