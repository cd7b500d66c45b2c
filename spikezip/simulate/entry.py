"""What follows from the input alone: done once for an input, before the first step of a tape.

A tape is a program for inputs of one shape. What the pass did before its first sites is its beginning, so that it can
be played for another input as well, unless the pass would go another way for that.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from spikezip.simulate.tape import Node, Operator, Places

# How Python gets hold of numbers of which no operator tells.
_UNSEEN = frozenset(
    (
        Tensor.tolist,
        Tensor.numpy,
        Tensor.__array__,
        Tensor.__dlpack__,
        Tensor.data_ptr,
        Tensor.storage,
        Tensor.untyped_storage,
    )
)


class Look(Operator):
    """Somebody looked at numbers, and saw this. For another input the pass goes the same way if it is seen again."""

    def __init__(self, function: Any, args: list[Any], kwargs: dict[str, Any], places: Places, seen: Any) -> None:
        super().__init__(function, args, kwargs, places)
        self.seen, self.again = seen, True

    def run(self, cells: list[Any]) -> None:
        found = self.compute(cells)
        self.again = type(found) is type(self.seen) and bool(found == self.seen)


class Entry:
    """The beginning of a tape. `once` says why it is right for the recorded input only, if it is."""

    def __init__(self) -> None:
        self.roots: dict[str, int] = {}  # the inputs, by name, and their cells
        self.cells: set[int] = set()  # of all that follows from the input alone
        self.nodes: list[Node] = []
        self.layouts: list[list[Any]] = []  # of what each of them wrote
        self.once: str | None = None

    def only(self, why: str) -> None:
        self.once = self.once or why

    def close(self, cells: list[Any], needed: Collection[int]) -> None:
        """All has been recorded: keep what a further input needs, which is nothing of this one."""
        self.layouts = [[_layout(cells[cell]) for cell in node.writes] for node in self.nodes]
        self.cells -= set(needed)
        for node in self.nodes:
            node.forget()

    def run(self, inputs: dict[str, Any], cells: list[Any]) -> bool:
        """Do it for other inputs; whether the pass goes the same way for them. Otherwise cells hold nothing of use."""
        for name, cell in self.roots.items():
            cells[cell] = inputs[name]
        fits = all(self._run(node, layouts, cells) for node, layouts in zip(self.nodes, self.layouts, strict=True))
        for cell in self.cells:  # on the way only
            cells[cell] = None
        return fits

    def _run(self, node: Node, layouts: list[Any], cells: list[Any]) -> bool:
        node.run(cells)
        if isinstance(node, Look):
            return node.again
        return all(_layout(cells[cell]) == layout for cell, layout in zip(node.writes, layouts, strict=True))


class Watch(TorchFunctionMode):
    """Inside a `with` block, notes where numbers leave torch: what becomes of them then, nobody sees."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self.entry = entry

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _UNSEEN:
            self.entry.only(f"{function.__name__} takes numbers out of torch")
        return function(*args, **(kwargs or {}))


def _layout(x: Tensor) -> Any:
    return type(x), x.shape, x.stride(), x.dtype, torch.is_inference(x)
