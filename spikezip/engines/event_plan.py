"""What the event engine evaluates together, and how values change over time.

Nodes form groups. The value of the last node of a group, its head, is kept; what the others compute is of use to the
head alone. A group goes through all steps of an advance before the next one has its turn: then it is known in which of
them something that it reads has changed, and it is evaluated for these *moments* only, as one batch.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spikezip.program.floats import float_value
from spikezip.program.freeze import Frozen
from spikezip.program.functions import KINDS, Kind, evaluate
from spikezip.program.layout import Layout
from spikezip.program.nodes import Function, Input, Node, Product, Ref, Site, Values, Weight, map_arguments
from spikezip.program.sizes import Bindings, Size, bind


@dataclass(frozen=True)
class Line:
    """How a value changes during an advance: `data` holds what it is after each of these steps, `[n, …]`.

    `before` is what it was; there is none in the first step of a run, in which all is new. `share` is, for codes, which
    share of them changed at each step, at most.
    """

    steps: list[int]
    data: Tensor
    before: Tensor | None
    share: list[float] | None = None

    def at(self, steps: list[int]) -> Tensor:
        """The value after each of these steps, `[n, …]`."""
        if steps == self.steps:
            return self.data
        first = bisect_right(self.steps, steps[0]) - 1
        if first >= 0 and (len(steps) == 1 or self.steps[first : first + len(steps)] == steps):
            return self.data[first : first + len(steps)]
        return torch.stack([self.after(step) for step in steps])

    def after(self, step: int) -> Tensor:
        """The value after one step."""
        number = bisect_right(self.steps, step) - 1
        if number >= 0:
            return self.data[number]
        assert self.before is not None
        return self.before


class Step(NamedTuple):
    """A node of the program, and the names of what it reads."""

    node: Node
    reads: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """A head, the nodes that are evaluated for it before, and the values of other heads that these read.

    `last` are values of which it is the last reader. `moves` says that the inner nodes, but for a product at the end,
    do nothing but move the elements of the one value that is read.
    """

    head: Node
    inner: tuple[Step, ...]
    reads: tuple[str, ...]
    last: tuple[str, ...]
    moves: bool


def make_groups(network: Frozen) -> tuple[list[Group], dict[str, str]]:
    """The groups of a network, in the order of execution, and values that have another name in them."""
    steps, same = _steps(network)
    moving = {step.node.name for step in steps}
    returned = {same.get(name, name) for name in network.program.returned}
    # Tuples are no values to be kept, and values of codes are made faster than they are fetched: all readers evaluate
    # these.
    several = {reads[0] for node, reads in steps if isinstance(node, Function) and node.op == "getitem"}
    several |= {node.name for node, _ in steps if isinstance(node, Values)} - returned
    readers: dict[str, set[int]] = {name: set() for name in moving}  # value → groups by number, from the last
    members: list[list[Step]] = []
    for step in reversed(steps):
        name = step.node.name
        groups = readers[name]
        if name not in several and (isinstance(step.node, Site) or name in returned or len(groups) > 1):
            groups = {len(members)}
            members.append([])
        for number in groups:
            members[number].append(step)
        for read in step.reads:
            if read in moving:
                readers[read] |= groups
    seen: set[str] = set(returned)
    found: list[Group] = []
    for own in members:  # from the last to the first
        own.reverse()
        names = {node.name for node, _ in own}
        reads = tuple({name: None for _, reads in own for name in reads if name in moving and name not in names})
        last = tuple(name for name in reads if name not in seen)
        seen.update(reads)
        *inner, head = own
        movers = inner[:-1] if inner and isinstance(inner[-1].node, Product) else inner
        moves = len(reads) == 1 and all(_is_move(node) for node, _ in movers)
        found.append(Group(head.node, tuple(inner), reads, last, moves))
    return found[::-1], same


def _steps(network: Frozen) -> tuple[list[Step], dict[str, str]]:
    """The nodes that vary over time, without those whose value is the same as another one; these by its name."""
    same: dict[str, str] = {}
    values_of: dict[str, str] = {}
    steps: list[Step] = []
    for node in network.moving:
        reads = _reads(node)
        if any(name in same for name in reads):
            node = node.reading(lambda name: same.get(name, name))
            reads = tuple(same.get(name, name) for name in reads)
        if isinstance(node, Function) and node.op in _SAME:
            same[node.name] = reads[0]
        elif isinstance(node, Values) and values_of.setdefault(node.codes, node.name) != node.name:
            same[node.name] = values_of[node.codes]
        else:
            steps.append(Step(node, reads))
    return steps, same


_SAME = frozenset(f"aten.{name}.default" for name in ("dropout", "alpha_dropout", "feature_dropout"))


def _reads(node: Node) -> tuple[str, ...]:
    """As `node.reads`, faster for what most functions are."""
    if isinstance(node, Function) and not node.kwargs:
        kinds = {type(x) for x in node.args}
        if not kinds & {list, tuple, dict}:
            return tuple(x.name for x in node.args if isinstance(x, Ref))
    return node.reads


def _is_move(node: Node) -> bool:
    return isinstance(node, Function) and KINDS[node.op] in (Kind.MOVE, Kind.SELECT)


class Call:
    """A function with its arguments bound: sizes once for each number of moments, values at every call."""

    def __init__(self, node: Function, folding: "Folding") -> None:
        self.node, self.folding = node, folding
        nested = [x for x in node.args if isinstance(x, (tuple, list))]
        self.flat = not _has_refs((nested, node.kwargs))
        self.places = [(i, x.name) for i, x in enumerate(node.args) if isinstance(x, Ref)]
        self.bound: dict[int, tuple[list[Any], Any]] = {}

    def __call__(self, values: Mapping[str, Any], moments: int) -> Any:
        node, bound = self.node, self.bound.get(moments)
        if bound is None:
            sizes = self.folding.sizes(moments)

            def number(x: Any) -> Any:
                return x.at(sizes) if isinstance(x, Size) else x

            bound = self.bound[moments] = list(map_arguments(node.args, number)), map_arguments(node.kwargs, number)
        args, kwargs = bound
        if self.flat:
            args = args.copy()
            for place, name in self.places:
                args[place] = values[name]
        else:
            args, kwargs = map_arguments(bound, lambda x: values[x.name] if isinstance(x, Ref) else x)
        return evaluate(node.op, args, kwargs, node.dtype, self.folding.network.device)


class Evaluation:
    """The calls of a group's nodes, one after another, for some moments at once or for one."""

    def __init__(
        self, steps: Sequence[Step], calls: Sequence[Any], start: str, folding: "Folding", folds: bool, together: int
    ) -> None:
        self.last = steps[-1].node.name if steps else start
        self.folding, self.folds, self.together = folding, folds, together
        self.calls = [(step.node.name, call) for step, call in zip(steps, calls, strict=True)]
        varying = folding.program.varying
        self.constants = [name for _, reads in steps for name in reads if name not in varying]
        self.given: dict[int, dict[str, Any]] = {}  # moments → constants for that many

    def run(self, values: dict[str, Any], moments: int = 1) -> Any:
        """The last value, from those of other groups."""
        if self.constants:
            given = self.given.get(moments)
            if given is None:
                given = {name: self.folding.constant(name, moments) for name in self.constants}
                self.given[moments] = given
            values.update(given)
        for name, call in self.calls:
            values[name] = call(values, moments)
        return values[self.last]


def _has_refs(x: Any) -> bool:
    found: list[Ref] = []
    map_arguments(x, lambda leaf: found.append(leaf) if isinstance(leaf, Ref) else None)
    return bool(found)


class Folding:
    """Moments as further samples: values `[n, …]` of n moments become those of a batch n times as large, and back."""

    def __init__(self, network: Frozen, layout: Layout, sizes: Bindings, batch: int, constants: Mapping[str, Any]):
        self.network, self.program, self.layout = network, network.program, layout
        self.own_sizes, self.batch, self.own_constants = sizes, batch, constants
        self._constants: dict[tuple[str, int], Any] = {}
        self._shapes: dict[tuple[str, int], list[int]] = {}

    def suits(self, group: Group) -> bool:
        """Whether all moments of a group can be evaluated as one batch: it is known where the samples lie."""
        names = (group.head.name, *group.reads)
        return not self.layout.mixed and all(name in self.layout.prefix for name in names)

    def prefix(self, name: str) -> int:
        """The elements before the first sample of a value and its second: `[prefix, samples, rest]` is its layout."""
        found: int = bind(self.layout.prefix.get(name, 1), self.own_sizes)
        return found

    def sizes(self, moments: int) -> Bindings:
        if moments == 1:
            return self.own_sizes
        assert self.program.batch is not None
        return {**self.own_sizes, self.program.batch: moments * self.batch}

    def shape(self, name: str, moments: int = 1) -> list[int]:
        key = name, moments
        if key not in self._shapes:
            sizes = self.sizes(moments)
            self._shapes[key] = [bind(size, sizes) for size in self.program[name].shape]
        return self._shapes[key]

    def fold(self, name: str, data: Tensor) -> Tensor:
        """`[n, …]` → a batch of n times as many samples."""
        moments = len(data)
        if moments == 1:
            return data[0]
        outer, shape = self.prefix(name), self.shape(name, moments)
        if outer == 1:
            return data.reshape(shape)
        return data.reshape(moments, outer, -1).transpose(0, 1).reshape(shape)

    def unfold(self, name: str, x: Tensor, moments: int) -> Tensor:
        """The other way round."""
        if moments == 1:
            return x[None]
        outer, shape = self.prefix(name), self.shape(name)
        if outer == 1:
            return x.reshape(moments, *shape)
        return x.reshape(outer, moments, -1).transpose(0, 1).reshape(moments, *shape)

    def constant(self, name: str, moments: int) -> Any:
        """A constant for so many moments: repeated if it has samples; what is made from sizes alone is made anew."""
        if moments == 1 or not (name in self.layout.follows_batch or name in self.layout.prefix):
            return self.own_constants[name]
        key = name, moments
        if key not in self._constants:
            self._constants[key] = self._constant(name, moments)
        return self._constants[key]

    def _constant(self, name: str, moments: int) -> Any:
        if name in self.layout.follows_batch:
            node = self.program[name]
            read = {n: self._for_sizes(n, moments) for n in node.reads}
            return float_value(node, read, self.sizes(moments), self.network.device)
        x = self.own_constants[name]
        if not isinstance(x, Tensor):
            return x
        outer = self.prefix(name)
        repeated = x.reshape(outer, 1, -1).expand(outer, moments, -1)
        return repeated.reshape(self.shape(name, moments))

    def _for_sizes(self, name: str, moments: int) -> Any:
        """What a constant made from sizes alone reads: another one, or weights; it may not have been kept."""
        if name in self.layout.follows_batch:
            return self._constant(name, moments)
        if name in self.own_constants:
            return self.own_constants[name]
        node = self.program[name]
        if isinstance(node, Weight):
            return self.network.tensors[node.key if node.bits is None else f"{node.key}.codes"]
        assert not isinstance(node, Input)
        read = {n: self._for_sizes(n, moments) for n in node.reads}
        return float_value(node, read, self.own_sizes, self.network.device)
