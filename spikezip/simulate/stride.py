"""Groups of a tape that go through all steps of an advance at once: a product with integer weights and its neurons."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from spikezip.ops.event import Events, Walk, Walked, walk
from spikezip.simulate.nodes import Linear, Population
from spikezip.simulate.source import VIEWS
from spikezip.simulate.tape import Group, Node, Operator, Stride

if TYPE_CHECKING:
    from spikezip.simulate.event import EventEngine


class LinearStride(Stride):
    """The sums stay as integers, and what changed in the inputs is added to them, whether few or many did."""

    def __init__(self, product: Linear, population: Population, steps: Walk) -> None:
        self.product, self.population, self.walk = product, population, steps
        self.size = 4 * population.codes.numel()  # as many sums, in int32

    def fresh(self) -> bool:
        return self.product.sums is None

    def run(self, arriving: list[Any], clock: Callable[[int], None]) -> list[list[Any]]:
        product, population = self.product, self.population
        engine: EventEngine = population.seat.engine
        sums, awake = product.sums, population.awake
        if sums is None:
            sums, arriving = self._begin(arriving)
            product.sums, awake = sums, True
        changed = [x is not None for x in arriving]
        seen = [product.codes[0], *(x for x in arriving if x is not None)]
        held = min(max(population.hold - engine.done, 0), len(changed))
        # Once inputs rest and neurons are free to fire, these walk over all their levels at most.
        last = max((step for step, one in enumerate(changed) if one), default=-1)
        moving = min(len(changed), max(last + 1, held) + self.walk.levels)
        walked = self.walk.go(
            torch.stack(seen).view(len(seen), -1, product.weight.shape[1]),
            changed[:moving],
            sums,
            population.codes,
            held=held,
            awake=awake,
            wants_values=population.wants_values,
            threads=engine.threads,
        )
        product.codes, population.awake = (seen[-1],), walked.behind
        engine.counts[population.site.name][:moving] += walked.counts
        lines = self._follow(engine, walked, clock)
        return [line + line[-1:] * (len(changed) - moving) for line in lines]

    def _begin(self, arriving: list[Any]) -> tuple[Tensor, list[Any]]:
        """Sums of the first codes, or of none at all if these are spikes, and what is still to arrive."""
        product, first = self.product, arriving[0]
        if int(first.max()) <= 1 and int(first.min()) >= -1:
            product.codes = (torch.zeros_like(first),)
            return torch.zeros(*first.shape[:-1], len(product.weight), dtype=torch.int32), arriving
        product.codes = (first,)
        return product.dense(first).to(torch.int32), [None, *arriving[1:]]

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


def stride_of(group: Group, batch: int) -> LinearStride | None:
    """How a group goes through all steps at once, if it can and that is worth it on this machine."""
    if len(group.nodes) < 2 or not walk.walks_pay():
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
    return LinearStride(product, population, Walk(population.layer, product.weight, batch))


def _rearranges(node: Node) -> bool:
    return isinstance(node, Operator) and all(function in VIEWS for function, *_ in node.steps)
