"""Where the samples of a batch lie in each value, so that time can be folded into the batch.

Flattened, a value is `[prefix, samples, rest]`. The prefix is all that has to be known: reshaping never changes it, and
`T` times as many samples are `[prefix, T · samples, rest]`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch

from spikezip.program.analysis import Depends, dependence
from spikezip.program.functions import operators
from spikezip.program.nodes import (
    Convolution,
    Function,
    Grid,
    Input,
    Linear,
    Node,
    Program,
    Ref,
    Rows,
    Shape,
    Site,
    Values,
    Weight,
)
from spikezip.program.sizes import Size, times

_RESHAPES = frozenset(
    operators(
        "reshape flatten.using_ints unflatten.int unsqueeze squeeze squeeze.dim squeeze.dims dropout to.dtype view_as "
        "reshape_as"
    )
)
_PERMUTES = frozenset(operators("transpose.int permute t movedim.int swapaxes numpy_T"))
# Operations that take elements of their first operand by numbers in another.
_INDEXED = frozenset(operators("index_select gather embedding take_along_dim"))
_LOOKED_UP = _INDEXED | frozenset(operators("index.Tensor index_put one_hot scatter.src scatter.value"))
# Operations that work along the dimensions in their argument of this number.
_ALONG = {
    "softmax": 1, "cumsum": 1, "cumprod": 1, "cat": 1, "flip": 1, "roll": 2, "sort": 1, "argsort": 1,
    "topk": 2, "gather": 1, "index_select": 1, "slice": 1, "select": 1, "cummax": 1, "cummin": 1, "narrow": 1,
    "log_softmax": 1, "scatter": 1, "scatter_add": 1, "slice_scatter": 2, "select_scatter": 2, "index_copy": 1,
    "index_add": 1, "diff": 2, "unfold": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """The prefix of every value that has samples, and why some value has none that is known.

    `mixed` is the first value that varies over time and mixes samples, and how; empty if none does: time cannot be
    folded into the batch then. `mixed_before` is the same for what is made of the input and does not vary: a batch
    cannot be split then.
    """

    prefix: Mapping[str, int | Size]
    mixed: str = ""
    mixed_before: str = ""
    follows_batch: frozenset[str] = field(
        default_factory=frozenset
    )  # constants that are made for any number of samples


def batch_layout(program: Program) -> Layout:
    """Where samples lie in each value of a program with sites."""
    if program.batch is None:
        return Layout({}, f"it was captured for one batch size only: {program.fixed}")
    return _Analysis(program).run()


def sample_dim(program: Program, name: str, prefix: Mapping[str, int | Size]) -> int | None:
    """The dimension of a value that samples begin, and in which they follow one another, if one does."""
    shape = program[name].shape
    dims = _batch_dims(shape, program.batch)
    aligned = len(dims) == 1 and times(*shape[: dims[0]]) == prefix.get(name)
    return dims[0] if aligned else None


def _batch_dims(shape: Shape, batch: str | None) -> list[int]:
    return [i for i, size in enumerate(shape) if isinstance(size, Size) and batch in size.symbols]


class _Analysis:
    def __init__(self, program: Program) -> None:
        assert program.batch is not None
        self.program, self.batch = program, program.batch
        self.depends = dependence(program)
        self.moving = program.varying
        self.prefix: dict[str, int | Size] = {}
        self.reasons: dict[str, str] = {}  # value → why it is not known where its samples lie
        self.counting: set[str] = set()  # values that hold numbers of samples
        self.mixed = self.mixed_before = ""

    def run(self) -> Layout:
        for node in self.program.nodes:
            found = self._prefix(node)
            if isinstance(found, str):
                # What a constant does with samples matters only where it meets something that varies.
                self.reasons[node.name] = found if ": " in found else f"{node.name}: {found}"
                if node.name in self.moving:
                    self.mixed = self.mixed or self.reasons[node.name]
                elif node.dtype.is_floating_point and self.depends[node.name] is not Depends.WEIGHTS:
                    self.mixed_before = self.mixed_before or self.reasons[node.name]
            elif found is not None:
                self.prefix[node.name] = found
            self._count(node)
        shared = [name for name in self.program.sites if name not in self.prefix]
        if shared:
            self.mixed = self.mixed or f"{shared[0]}: all samples share these neurons"
        return Layout(self.prefix, self.mixed, self.mixed_before, self._made_from_sizes())

    def _made_from_sizes(self) -> frozenset[str]:
        """Constants with samples that are functions of weights and sizes alone, such as `arange(b)`."""
        plain: set[str] = set()
        for node in self.program.nodes:
            stored = isinstance(node, Weight) and node.bits is None
            if stored or (isinstance(node, Function) and all(name in plain for name in node.reads)):
                plain.add(node.name)
        return frozenset(name for name in plain if self._dims(self.program[name].shape))

    def _dims(self, shape: Shape) -> list[int]:
        return _batch_dims(shape, self.batch)

    def _count(self, node: Node) -> None:
        """Numbers of samples, such as `arange(b)`, are no content of a sample: repeated, they would be wrong."""
        begins = isinstance(node, Function) and node.op.startswith("aten.arange") and self._dims(node.shape)
        whole_numbers = not node.dtype.is_floating_point and node.dtype is not torch.bool
        counted = any(name in self.counting for name in node.reads)
        # What is looked up by such a number is content again.
        goes_on = counted and whole_numbers and isinstance(node, Function) and node.op not in _LOOKED_UP
        if begins or goes_on:
            self.counting.add(node.name)
        if node.name in self.moving and not self.mixed:
            wrong = [n for n in node.reads if n in self.counting and self.depends[n] is not Depends.WEIGHTS]
            if wrong:
                self.mixed = f"{node.name}: it reads {wrong[0]}, which numbers the samples of the batch"

    def _prefix(self, node: Node) -> int | Size | str | None:
        """The prefix of a value; None if it has no samples; a string says why it is not known."""
        dims = self._dims(node.shape)
        given = [name for name in dict.fromkeys(node.reads) if self._dims(self.program[name].shape)]
        unknown = [name for name in given if name not in self.prefix]
        if unknown:
            return self.reasons[unknown[0]]
        if not given or isinstance(node, Input):
            if not dims:
                return None
            return times(*node.shape[: dims[0]]) if len(dims) == 1 else "every sample meets every other"
        if isinstance(node, (Site, Values, Grid, Rows)):
            return self.prefix[given[0]]
        if isinstance(node, Linear) and node.x in given:
            last = len(self.program[node.x].shape) - 1
            return "it sums over samples" if last in self._dims(self.program[node.x].shape) else self.prefix[node.x]
        if isinstance(node, Function) and node.op in _RESHAPES and len(given) == 1 and dims:
            return self.prefix[given[0]]
        places = {name: sample_dim(self.program, name, self.prefix) for name in given}
        for name, place in places.items():
            if place is None:
                return f"samples lie within a dimension of {name}"
        if isinstance(node, Function) and node.op == "aten.repeat_interleave.self_int":
            (place,) = places.values()
            if place is not None and node.args[2] % len(node.shape) >= place:
                return self.prefix[given[0]]  # the copies of a sample stand together
        if isinstance(node, Function) and node.op in _PERMUTES:
            return times(*node.shape[: dims[0]]) if len(dims) == 1 else "every sample meets every other"
        return self._general(node, dims, places)

    def _is_tuple(self, node: Node) -> TypeGuard[Function]:
        readers = self.program.readers[node.name]
        return isinstance(node, Function) and any(isinstance(r, Function) and r.op == "getitem" for r in readers)

    def _general(self, node: Node, dims: list[int], places: Mapping[str, int | None]) -> int | Size | str | None:
        if not dims and self._is_tuple(node):  # each of its tensors has a layout of its own
            works = any(self._works_along(node, name, place or 0) for name, place in places.items())
            return "it works along the samples" if works else None
        if not dims:
            return "it sums over samples, or picks one"
        if len(dims) > 1:
            return "every sample meets every other"
        (dim,) = dims
        for name, place in places.items():
            assert place is not None
            shape = self.program[name].shape
            if shape[place] != node.shape[dim]:
                return f"its batch is another than that of {name}"
            if not isinstance(node, (Function, Convolution)) and len(shape) - place != len(node.shape) - dim:
                return f"samples of {name} lie in another dimension"
            if not isinstance(node, Function) or (node.op in _INDEXED and node.args[0] != Ref(name)):
                continue
            if self._works_along(node, name, place):
                return "it works along the samples"
        return times(*node.shape[:dim])

    def _works_along(self, node: Function, name: str, place: int) -> bool:
        label = node.op.split(".")[1]
        rank = len(self.program[name].shape)
        if label == "index":
            return self._indexes_samples(node, name, place)
        if label in ("hadamard", "channels"):
            return place == rank - 1
        if label == "layer_norm":
            return place >= rank - len(node.args[1])
        if label not in _ALONG:
            return False
        number = _ALONG[label]
        default: Any = {"topk": -1, "sort": -1, "argsort": -1, "diff": -1}.get(label, 0)
        found = node.args[number] if len(node.args) > number else node.kwargs.get("dim", default)
        along = found if isinstance(found, tuple) else (found,)
        hits = any(isinstance(d, int) and d % rank == place for d in along)
        if label == "slice" and hits:  # all of it
            return node.shape[place] != self.program[name].shape[place]
        return hits

    def _indexes_samples(self, node: Function, name: str, place: int) -> bool:
        """Advanced indexing of the batch is harmless with the numbers of all samples, in order."""
        first = node.args[0]
        if not isinstance(first, Ref) or first.name != name:
            return False  # samples of an index stay where they are
        indices = node.args[1]
        if place >= len(indices) or indices[place] is None:
            return False
        index = self.program[indices[place].name]
        while isinstance(index, Function) and index.op in _RESHAPES:
            index = self.program[index.reads[0]]
        whole = isinstance(index, Function) and index.op == "aten.arange.default"
        return not (whole and index.shape[0] == self.program[name].shape[place])
