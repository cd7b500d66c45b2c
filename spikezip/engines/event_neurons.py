"""Layers of neurons that go through many steps at once, and look at nothing that rests.

A layer is told after which steps its input is another one: the *moments*. What has arrived by then it asks for, some
moments at a time, so that what is computed on the way stays in the cache.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from spikezip.engines.synapses import Synapse
from spikezip.ops import grid, neuron
from spikezip.ops.grid.fast import int8_products_pay
from spikezip.ops.neuron import Layer, Source, Track, Walk
from spikezip.program.nodes import Site

Arriving = Callable[[list[int]], Tensor]  # moments → what has arrived by each of them, [moments, neurons]

# The share of inputs up to which it costs less to add the weights of those that changed than to multiply them all.
_SHARE_ON_INT8_UNITS = 0.08
TOGETHER = 1 << 19  # values of the largest tensor on the way to a layer: more do not stay in the cache


class Neurons:
    """The neurons of a site, as one row of codes, sample after sample: by torch's operators, for codes of any width.

    `awake` says that they must be looked at though their input has not changed: some may be behind their codes.
    """

    def __init__(self, site: Site, size: int, samples: int, scale: Tensor, max_spike: int) -> None:
        self.site, self.samples, self.scale, self.max_spike = site, samples, scale, max_spike
        dtype = torch.int8 if site.lo >= -128 and site.hi <= 127 else scale.dtype
        self.codes = torch.zeros(size, dtype=dtype)
        self.awake = True

    def advance(
        self, steps: int, held: int, moments: list[int], arriving: Arriving, together: int
    ) -> tuple[Tensor, Tensor]:
        """Codes before and after each step, `[1 + steps, neurons]`, and spikes `[steps, samples]`.

        In the first `held` steps nothing fires. At most `together` moments are asked for at once.
        """
        moments = self._moments(moments)
        first = max(held, moments[0])
        if first >= steps:
            return self.codes.expand(1 + steps, -1), torch.zeros(steps, self.samples, dtype=torch.int64)
        u = torch.cat([arriving(moments[i : i + together]) for i in range(0, len(moments), together)])
        rows = u[[bisect_right(moments, step) - 1 for step in range(first, steps)]]
        site = self.site
        before = neuron.Neurons(self.codes, self.scale, site.lo, site.hi, self.max_spike, self.samples)
        codes, counts = neuron.walk(rows, before)
        self.awake = bool(counts[-1].any())  # a silent step shows that none is behind
        codes = torch.cat([self.codes.expand(1 + first, -1), codes])
        self.codes = codes[-1].clone()
        return codes, torch.cat([counts.new_zeros(first, self.samples), counts])

    def _moments(self, moments: list[int]) -> list[int]:
        """Where neurons are awake, they look at their input in the first step, too."""
        return [0, *moments] if self.awake and moments[:1] != [0] else moments


class CompiledNeurons(Neurons):
    """Neurons that read `sums · factor + bias`, by a compiled loop. Ask `Layer.suits` before."""

    def __init__(self, site: Site, source: Source, samples: int, scale: Tensor, max_spike: int) -> None:
        super().__init__(site, prod(source.shape), samples, scale, max_spike)
        self.layer = Layer(source, scale, site.lo, site.hi, max_spike)

    def advance(
        self, steps: int, held: int, moments: list[int], arriving: Arriving, together: int
    ) -> tuple[Tensor, Tensor]:
        track = Track(steps, self.codes, self.samples)
        self._follow(track, 0, steps, held, self._moments(moments), arriving, together)
        return self._end(track)

    def _follow(
        self, track: Track, first: int, last: int, held: int, moments: list[int], arriving: Arriving, together: int
    ) -> None:
        """The steps `first … last`."""
        pieces = -(-len(moments) // together)
        bounds = [len(moments) * i // pieces for i in range(pieces + 1)]
        for start, stop in pairwise(bounds):
            begin = moments[start] if start else first
            end = moments[stop] if stop < len(moments) else last
            some = moments[start:stop]
            at = [bisect_right(some, step) - 1 for step in range(begin, end)]
            self.awake = self.layer.follow(track, begin, arriving(some), at, max(held - begin, 0), self.awake)

    def _end(self, track: Track) -> tuple[Tensor, Tensor]:
        self.codes = track.codes[-1].clone()  # a view would keep all steps
        return track.codes, torch.from_numpy(track.counts)


class LinearNeurons(CompiledNeurons):
    """Neurons behind a linear product, whose integer sums they read. What arrives are the codes that it reads.

    `moves` says that these are the codes of one site, moved: they change by one spike at most.
    """

    def __init__(
        self, site: Site, synapse: Synapse, rows: int, samples: int, scale: Tensor, max_spike: int, moves: bool
    ) -> None:
        (part,) = synapse.parts
        self.synapse, self.weight, self.dtype, self.inputs = synapse, part.weight, part.dtype, part.weight.shape[1]
        super().__init__(site, linear_source(synapse, rows, samples), samples, scale, max_spike)
        self.seen = torch.zeros(rows, self.inputs, dtype=torch.int8)  # codes so far
        self.sums: Tensor | None = None  # their product, if it has been kept
        self.walks = moves and Walk.suits(self.layer, self.weight)
        self.walk: Walk | None = None  # made when it is first needed
        self.most = _SHARE_ON_INT8_UNITS if int8_products_pay() else 1.0  # float units are slower than adding up
        self.on_int8_units = self.inputs > 1 and synapse.largest <= 127 and int8_products_pay()
        self.share: list[float] | None = None  # which share of the codes changes at each moment, if that is known

    def advance(
        self, steps: int, held: int, moments: list[int], arriving: Arriving, together: int
    ) -> tuple[Tensor, Tensor]:
        track = Track(steps, self.codes, self.samples)
        codes = arriving(moments).view(len(moments), *self.seen.shape) if moments else self.seen[None][:0]
        few = [self.walks and one <= self.most for one in self.share or [2.0] * len(moments)]
        for first, last, start, stop in _stretches(steps, moments, few):
            here, some = codes[start:stop], moments[start:stop]
            if self.walks and (start == stop or few[start]):
                self._add_changes(track, first, last, held, some, here)
            else:
                self._multiply(track, first, last, held, some, here, together)
            if start < stop:
                self.seen = here[-1]
        self.seen = self.seen.clone()
        return self._end(track)

    def _add_changes(self, track: Track, first: int, last: int, held: int, moments: list[int], codes: Tensor) -> None:
        """Add to the sums what changes bring, row by row."""
        if self.walk is None:
            self.walk = Walk(self.layer, self.weight)
        if self.sums is None:
            self.sums = self._product(self.seen).to(torch.int32)
        changed = [False] * (last - first)
        for moment in moments:
            changed[moment - first] = True
        inputs = torch.cat([self.seen[None], codes])
        held = max(held - first, 0)
        self.awake = self.walk.follow(track, first, inputs, changed, self.sums, held, self.awake)

    def _multiply(
        self, track: Track, first: int, last: int, held: int, moments: list[int], codes: Tensor, together: int
    ) -> None:
        """Multiply all codes."""
        self.sums = None
        if self.awake and (not moments or moments[0] > first):
            moments, codes = [first, *moments], torch.cat([self.seen[None], codes])
        number = {moment: i for i, moment in enumerate(moments)}

        def arriving(some: list[int]) -> Tensor:
            start = number[some[0]]
            return self._product(codes[start : start + len(some)].view(-1, self.inputs)).view(len(some), -1)

        self._follow(track, first, last, held, moments, arriving, together)

    def _product(self, codes: Tensor) -> Tensor:
        if self.on_int8_units:
            return torch._int_mm(codes, self.weight.t())
        return grid.linear(codes, self.weight, self.dtype, self.synapse.largest)


def linear_source(synapse: Synapse, rows: int, samples: int) -> Source:
    """How neurons read the sums of a linear product."""
    return Source((samples, rows // samples, len(synapse.parts[0].weight)), synapse.factor, synapse.bias)


def _stretches(steps: int, moments: list[int], few: list[bool]) -> Iterator[tuple[int, int, int, int]]:
    """Steps in which either few codes change, or many: first and last step, first and last moment."""
    first, start = 0, 0
    while first < steps:
        stop = start
        while stop < len(moments) and few[stop] == few[start]:
            stop += 1
        last = moments[stop] if stop < len(moments) else steps
        yield first, last, start, stop
        first, start = last, stop
