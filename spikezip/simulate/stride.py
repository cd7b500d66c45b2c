"""Groups of a tape that go through all steps of an advance at once, on CPUs without int8 units.

Products with integer weights take their neurons along, row by row (`ops/event/walk.py`). What lies between them is
done for all steps in one call of each operator, as if these were further samples, and the neurons behind it follow.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from spikezip.ops.event import Events, Walk, Walked, walk
from spikezip.simulate.nodes import Linear, Matmul, Population
from spikezip.simulate.source import VIEWS
from spikezip.simulate.tape import Group, Node, Operator, Stride

if TYPE_CHECKING:
    from spikezip.simulate.event import EventEngine

_aten = torch.ops.aten


class NeuronStride(Stride):
    """A group whose head is a layer of neurons."""

    def __init__(self, group: Group, population: Population) -> None:
        self.group, self.population = group, population

    @abstractmethod
    def walk(self, engine: "EventEngine", cells: list[Any], changed: list[bool], lines: Any, held: int) -> Walked:
        """The first steps, as many as `changed` has."""

    def run(
        self, cells: list[Any], moving: list[int], lines: dict[int, list[Any]], steps: int, clock: Callable[[int], None]
    ) -> list[list[Any]]:
        population = self.population
        engine: EventEngine = population.seat.engine
        changed = _changes(moving, lines, steps)
        held = min(max(population.hold - engine.done, 0), steps)
        # Once inputs rest and neurons are free to fire, these walk over all their levels at most.
        last = max((step for step, one in enumerate(changed) if one), default=-1)
        some = min(steps, max(last + 1, held) + population.site.hi - population.site.lo)
        walked = self.walk(engine, cells, changed[:some], {cell: lines[cell] for cell in moving}, held)
        population.awake = walked.behind
        engine.counts[population.site.name][:some] += walked.counts
        return [line + line[-1:] * (steps - some) for line in self._follow(engine, walked, clock)]

    def _follow(self, engine: "EventEngine", walked: Walked, clock: Callable[[int], None]) -> list[list[Any]]:
        """Let the neurons be as they are after each step, and say so where they fired."""
        population = self.population
        codes, counts = walked.codes.unbind(), walked.counts.sum(axis=1).tolist()
        values: Any = walked.values.unbind() if walked.values is not None else [None] * len(codes)
        last = max((step for step, count in enumerate(counts) if count), default=-1)
        of_codes: list[Any] = []
        of_values: list[Any] = []
        population.events, population.advance = {}, engine.done
        for step, count in enumerate(counts):
            if count:
                clock(step)
                before, population.codes, population.values = population.codes, codes[step], values[step]
                if step == last:  # what stays must not keep all steps
                    population.codes = codes[step].clone()
                    population.values = None if values[step] is None else values[step].clone()
                population.events[engine.step] = self._events(before, count)
                engine.fired(population.site, before, population.codes)
            if population.wants_values and population.values is None:
                population.values = population.codes * population.scale
            of_codes.append(population.codes)
            of_values.append(population.values)
        return [of_codes, of_values] if population.wants_values else [of_codes]

    def _events(self, before: Tensor, count: int) -> Events | None:
        """Who has fired, if somebody listens; None if these are too many."""
        layer = self.population.layer
        if layer is None or count > len(layer.room.at):
            return None
        old, new = (x.reshape(-1).numpy() for x in (before, self.population.codes))
        at = np.flatnonzero(new != old)
        return Events(at, new[at].astype(np.int16) - old[at])


class LinearStride(NeuronStride):
    """The sums stay as integers, and what changed in the inputs is added to them, whether few or many did."""

    def __init__(self, group: Group, product: Linear, population: Population, steps: Walk) -> None:
        super().__init__(group, population)
        self.product, self.steps = product, steps
        self.size = 4 * population.codes.numel()  # as many sums, in int32

    def walk(self, engine: "EventEngine", cells: list[Any], changed: list[bool], lines: Any, held: int) -> Walked:
        product, population = self.product, self.population
        sums, awake = product.sums, population.awake
        arriving = self._arriving(cells, changed, lines, fresh=sums is None)
        if sums is None:
            sums, arriving = self._begin(arriving)
            product.sums, awake = sums, True
        seen = [product.codes[0], *(x for x in arriving if x is not None)]
        product.codes = (seen[-1],)
        return self.steps.go(
            torch.stack(seen).view(len(seen), -1, product.weight.shape[1]),
            [x is not None for x in arriving],
            sums,
            population.codes,
            held=held,
            awake=awake,
            wants_values=population.wants_values,
            threads=engine.threads,
        )

    def _arriving(self, cells: list[Any], changed: list[bool], lines: Any, fresh: bool) -> list[Any]:
        """The codes that the product reads in each step; None where they are as they were."""
        arriving = []
        for step, different in enumerate(changed):
            for cell, line in lines.items():
                cells[cell] = line[step + 1]
            different = different or (fresh and not step)
            if different:
                for node in self.group.nodes[:-2]:
                    node.run(cells)
            arriving.append(cells[self.product.reads[0]] if different else None)
        return arriving

    def _begin(self, arriving: list[Any]) -> tuple[Tensor, list[Any]]:
        """Sums of the first codes, or of none at all if these are spikes, and what is still to arrive."""
        product, first = self.product, arriving[0]
        if int(first.max()) <= 1 and int(first.min()) >= -1:
            product.codes = (torch.zeros_like(first),)
            return torch.zeros(*first.shape[:-1], len(product.weight), dtype=torch.int32), arriving
        product.codes = (first,)
        return product.dense(first).to(torch.int32), [None, *arriving[1:]]


class FoldedStride(NeuronStride):
    """All nodes but the head are done once, for the inputs of all steps as one batch."""

    def walk(self, engine: "EventEngine", cells: list[Any], changed: list[bool], lines: Any, held: int) -> Walked:
        population = self.population
        assert population.layer is not None
        first = population.awake and not changed[0]
        chosen = [step for step, one in enumerate(changed) if one or (first and not step)]
        at = np.cumsum([step in chosen for step in range(len(changed))]) - 1
        own = cells.copy()
        _fold(self.group, own, lines, chosen)
        for node in self.group.nodes[:-1]:
            node.run(own)
        return population.layer.fire_steps(
            own[population.reads[0]].contiguous().view(len(chosen), -1),
            at.tolist(),
            population.codes,
            engine.settings.batch,
            held=held,
            awake=population.awake,
            wants_values=population.wants_values,
        )


class OperatorStride(Stride):
    """Operators alone."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def run(
        self, cells: list[Any], moving: list[int], lines: dict[int, list[Any]], steps: int, clock: Callable[[int], None]
    ) -> list[list[Any]]:
        changed = _changes(moving, lines, steps)
        chosen = [step for step, one in enumerate(changed) if one]
        own = cells.copy()
        _fold(self.group, own, {cell: lines[cell] for cell in moving}, chosen)
        for node in self.group.nodes:
            node.run(own)
        found = []
        for cell in self.group.head.writes:
            each, now, line = list(own[cell].chunk(len(chosen))), cells[cell], []
            each[-1] = each[-1].clone()  # what stays must not keep all steps
            for one in changed:
                now = each.pop(0) if one else now
                line.append(now)
            found.append(line)
        return found


def _changes(moving: list[int], lines: dict[int, list[Any]], steps: int) -> list[bool]:
    """In which steps something that is read is new."""
    return [any(lines[cell][step] is not lines[cell][step + 1] for cell in moving) for step in range(steps)]


def _fold(group: Group, cells: list[Any], lines: Any, chosen: list[int]) -> None:
    """Let the cells that a group reads hold these steps one after another."""
    for cell in group.watched:
        each = [lines[cell][step + 1] if cell in lines else cells[cell] for step in chosen]
        cells[cell] = torch.cat(each) if len(each) > 1 else each[0]


# --- which groups


def stride(groups: list[Group], batch: int) -> None:
    """Let groups go through all steps at once that can: if products do, what lies between them, too."""
    if not walk.walks_pay():
        return
    for group in groups:
        group.stride = _linear(group, batch)
    if any(group.stride for group in groups):
        for group in groups:
            group.stride = group.stride or _folded(group)


def _linear(group: Group, batch: int) -> Stride | None:
    if len(group.nodes) < 2:
        return None
    *before, product, population = group.nodes
    if not isinstance(product, Linear) or not isinstance(population, Population) or product.sums is None:
        return None
    if population.layer is None or population.site.entry or population.reads != product.writes:
        return None
    if product.dtype != torch.float32:  # which sums above 2^24 are not
        return None
    # Codes must arrive as neurons have them, so that they change by one spike at most.
    if product.codes[0].dtype != torch.int8 or not all(_rearranges(node) for node in before):
        return None
    outputs, inputs = product.weight.shape
    rows = product.sums.numel() // outputs
    if rows * outputs * inputs < walk.LEAST or not Walk.suits(population.layer, product.weight, rows, batch):
        return None
    return LinearStride(group, product, population, Walk(population.layer, product.weight, batch))


def _rearranges(node: Node) -> bool:
    return isinstance(node, Operator) and all(function in VIEWS for function, *_ in node.steps)


def _folded(group: Group) -> Stride | None:
    *before, head = group.nodes
    if not all(_is_for_any_batch(node) for node in before):
        return None
    if isinstance(head, Population):
        return FoldedStride(group, head) if before and head.layer is not None and not head.site.entry else None
    return OperatorStride(group) if _is_for_any_batch(head) else None


def _is_for_any_batch(node: Node) -> bool:
    """Whether a node does to each sample the same, wherever it lies in a batch; ask before tensors are forgotten."""
    if isinstance(node, Matmul):
        return all(x.ndim > 2 for x in node.codes)
    if not isinstance(node, Operator) or len(node.steps) > 1:
        return False
    ((function, args, _, places),) = node.steps
    if any(within is not None for _, within, _ in places) or not isinstance(args[0], Tensor) or places[0][0] != 0:
        return False
    first = args[0]
    if function is _aten.native_layer_norm.default:
        return len(places) == 1 and first.ndim > len(args[1])
    if function is _aten._softmax.default:
        return args[1] % first.ndim != 0
    if function is _aten.transpose.int:
        return first.ndim > 0 and args[1] % first.ndim != 0 and args[2] % first.ndim != 0
    if function in (_aten.add.Tensor, _aten.mul.Tensor):
        other = args[1]
        if len(places) > 1:
            return first.ndim > 0 and other.shape == first.shape
        return not isinstance(other, Tensor) or other.numel() == 1
    return False
