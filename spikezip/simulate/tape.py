"""A forward pass, written down: what it did, and how to do it again where something has changed.

In every step of a run the same operators follow one another on tensors of the same shapes. Once written down, a step
needs neither the model's code nor operators whose inputs are as they were: silence spreads through a network by itself.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from torch import Tensor

from spikezip.simulate.outputs import map_tensors

if TYPE_CHECKING:
    from spikezip.simulate.entry import Entry

Places = list[tuple[int, int | None, int]]  # argument, element of it if it is a list, cell


class Node(ABC):
    """Something that was done: the cells it read and wrote. `run` does it again.

    What is new in a cell is another tensor; what is as it was is the same one.
    """

    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    lasting = False  # whether it is of interest though nobody reads what it writes

    def restless(self) -> bool:
        """Whether it must be run though nothing has changed for it."""
        return False

    @abstractmethod
    def run(self, cells: list[Any]) -> None:
        """Do it again: read from cells, write to cells."""

    def forget(self) -> None:  # noqa: B027  # not every node holds some
        """Let go of the tensors of the pass that it was recorded in."""

    def restart(self) -> None:  # noqa: B027  # not every node has a state
        """Begin anew for the engine that sits there now."""


class Seat:
    """Where nodes find the engine that they work for; it sits here while it advances."""

    engine: Any = None


class Operator(Node):
    """An operator of torch, with those that then changed its result in place."""

    def __init__(self, function: Any, args: list[Any], kwargs: dict[str, Any], places: Places) -> None:
        self.steps = [(function, args, kwargs, places)]
        self.reads = tuple(cell for *_, cell in places)

    def then(self, function: Any, args: list[Any], kwargs: dict[str, Any], places: Places) -> None:
        """Let an operator follow that changes the result, its first argument, in place."""
        self.steps.append((function, args, kwargs, places))
        self.reads += tuple(cell for *_, cell in places)

    def forget(self) -> None:
        for number, (_, args, _, places) in enumerate(self.steps):
            for place, within, _ in places:
                if within is None:
                    args[place] = None
                else:
                    args[place][within] = None
            if number:
                args[0] = None

    def run(self, cells: list[Any]) -> None:
        result = self.compute(cells)
        if len(self.writes) == 1:
            cells[self.writes[0]] = result
        else:
            for cell, one in zip(self.writes, result, strict=True):
                cells[cell] = one

    def compute(self, cells: list[Any]) -> Any:
        result: Any = None
        for function, args, kwargs, places in self.steps:
            given = args.copy()  # which goes, and with it what need not be kept
            if result is not None:
                given[0] = result
            for place, within, cell in places:
                if within is None:
                    given[place] = cells[cell]
                else:
                    given[place] = [*given[place][:within], cells[cell], *given[place][within + 1 :]]
            result = function(*given, **kwargs)
        return result


class Stride(ABC):
    """How the nodes of a group go through many steps at once."""

    size = 0  # bytes that it keeps between them

    @abstractmethod
    def run(
        self, cells: list[Any], moving: list[int], lines: dict[int, list[Any]], steps: int, clock: Callable[[int], None]
    ) -> list[list[Any]]:
        """For each cell that the head writes what is in it after each step; `lines` as in `Tape.play`."""


class Group:
    """Nodes that work for the last of them, the head. Nobody else reads what they write, so that it is not kept."""

    def __init__(self, head: Node) -> None:
        self.head, self.nodes = head, [head]  # from the last to the first, until it is closed
        self.passing: tuple[int, ...] = ()
        self.watched: tuple[int, ...] = ()
        self.last_to_read: tuple[int, ...] = ()
        self.stride: Stride | None = None  # through all steps at once, where that is possible

    def close(self) -> None:
        self.nodes.reverse()
        self.passing = tuple(cell for node in self.nodes[:-1] for cell in node.writes)
        own = set(self.passing)
        self.watched = tuple({cell for node in self.nodes for cell in node.reads} - own)


class Tape:
    """The groups of a pass in their order, and the cells: the tensors that may change from step to step."""

    def __init__(
        self, entry: "Entry", groups: list[Group], cells: list[Any], output: Any, final: dict[int, int]
    ) -> None:
        self.entry, self.groups = entry, groups
        self.recorded, self.final = output, final  # what the pass returns; the cells of tensors in it, by their id
        self.seat = Seat()
        self.owner: weakref.ref[Any] | None = None  # the engine that plays it
        needed = set(final.values())
        for group in reversed(groups):
            group.last_to_read = tuple(cell for cell in group.watched if cell not in needed)
            needed.update(group.watched)
        heads = {cell for group in groups for cell in group.head.writes}
        self.cells: list[Any] = [x if cell in needed or cell in heads else None for cell, x in enumerate(cells)]
        entry.close(cells, needed)

    def forget(self) -> None:
        """Let go of the tensors of the recorded pass that are not in cells."""
        for group in self.groups:
            for node in group.nodes:
                node.forget()

    def restart(self, inputs: dict[str, Any]) -> bool:
        """Make ready for other inputs, and for the engine in the seat; whether the pass goes the same way for them.

        Cells are empty then, so that all is new in the first step, and every node runs.
        """
        for group in self.groups:
            for cell in group.head.writes:
                self.cells[cell] = None
        if not self.entry.run(inputs, self.cells):
            return False
        for group in self.groups:
            for node in group.nodes:
                node.restart()
        return True

    def play(self, steps: int, clock: Callable[[int], None]) -> list[Any]:
        """Further steps, as far as anything happens in them; returns their outputs. Before a step the clock is told.

        A group goes through all steps before the next one has its turn, so that weights and code stay in the cache.
        """
        lines: dict[int, list[Any]] = {}  # cell → its tensors, before and after each step; if there are different ones
        for group in self.groups:
            moving = [cell for cell in group.watched if cell in lines]
            if moving or group.head.restless():
                self._run(group, moving, lines, steps, clock)
            for cell in group.last_to_read:
                lines.pop(cell, None)
        return [self._output(lines, step) for step in range(1, steps + 1)]

    def _run(self, group: Group, moving: list[int], lines: Any, steps: int, clock: Callable[[int], None]) -> None:
        cells, head = self.cells, group.head
        written: list[list[Any]] = [[cells[cell]] for cell in head.writes]
        if group.stride is not None:
            found = group.stride.run(cells, moving, lines, steps, clock)
            for cell in moving:
                cells[cell] = lines[cell][-1]
            for cell in group.passing:
                cells[cell] = None
            for cell, line, further in zip(head.writes, written, found, strict=True):
                line += further
                cells[cell] = line[-1]
            steps = 0  # that are left
        for step in range(steps):
            different = head.restless()
            for cell in moving:
                line = lines[cell]
                different = different or line[step] is not line[step + 1]
                cells[cell] = line[step + 1]
            if different:
                clock(step)
                for node in group.nodes:
                    node.run(cells)
                for cell in group.passing:
                    cells[cell] = None
            for cell, line in zip(head.writes, written, strict=True):
                line.append(cells[cell])
        for cell, line in zip(head.writes, written, strict=True):
            if any(x is not line[0] for x in line):
                lines[cell] = line

    def _output(self, lines: dict[int, list[Any]], step: int) -> Any:
        def now(x: Tensor) -> Tensor:
            cell = self.final.get(id(x), -1)
            if cell < 0:
                return x
            result: Tensor = lines[cell][step] if cell in lines else self.cells[cell]
            return result

        return map_tensors(self.recorded, now)


def grouped(nodes: list[Node], final: Collection[int]) -> list[Group]:
    """The nodes that matter, as groups in the order of their heads: those that last, or write what several read.

    `final` are the cells of the pass's result.
    """
    readers: dict[int, set[int]] = {}  # cell → numbers of the groups that read it
    groups: list[Group] = []
    for node in reversed(nodes):
        by = {number for cell in node.writes for number in readers.get(cell, ())}
        alone = node.lasting or any(cell in final for cell in node.writes)
        if not by and not alone:
            continue
        if len(by) > 1 or alone:
            by = {len(groups)}
            groups.append(Group(node))
        else:
            groups[min(by)].nodes.append(node)
        for cell in node.reads:
            readers.setdefault(cell, set()).update(by)
    groups.reverse()
    for group in groups:
        group.close()
    return groups
