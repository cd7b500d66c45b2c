"""What the event engine has on its tape besides operators: layers of neurons, and products of their codes."""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spikezip.execution import SiteLike
from spikezip.ops import event, grid
from spikezip.ops.event import Events, Layer
from spikezip.simulate.spike import SpikeEngine
from spikezip.simulate.tape import Node, Seat

if TYPE_CHECKING:
    from spikezip.simulate.event import EventEngine

_NOBODY = Events.none()


class Population(Node):
    """The neurons of a site. They must be looked at if their input has changed, or some are behind their codes.

    With a layer they are compiled, and list who fired; without one they are as the spike engine has them.
    """

    lasting = True

    values: Tensor | None = None

    def __init__(self, seat: Seat, site: SiteLike, scale: Tensor, layer: Layer | None, wants_values: bool) -> None:
        self.seat, self.site, self.scale, self.layer, self.wants_values = seat, site, scale, layer, wants_values
        self.begin(seat.engine)

    def begin(self, engine: "EventEngine") -> None:
        """As an engine has them: with its tracers, and as nobody has looked at them yet."""
        self.codes = engine.tracers[self.site.name]
        self.hold = engine.settings.hold(engine.stages[self.site.name])
        self.values, self.awake = None, True
        self.events: dict[int, Events | None] = {}  # step of this advance → who fired; None if these are too many
        self.advance = -1

    def restart(self) -> None:
        engine: EventEngine = self.seat.engine
        engine.meet(self, torch.zeros_like(self.codes))
        self.begin(engine)

    def restless(self) -> bool:
        return self.awake

    def run(self, cells: list[Any]) -> None:
        self.fire(cells[self.reads[0]])
        cells[self.writes[0]] = self.codes
        if self.wants_values:
            cells[self.writes[1]] = self.values

    def fire(self, x: Tensor) -> None:
        """One step from what arrives, unless they are held back."""
        engine, site, before = self.seat.engine, self.site, self.codes
        if engine.step > self.hold:
            counts = engine.counts[site.name][engine.now]  # room for the spikes of each sample
            if site.entry:
                x = engine.entering(site, x)
            if self.layer is None:
                self._fire_plainly(engine, x, counts)
            else:
                self._fire_compiled(engine, x, self.layer, counts)
            if site.entry and engine.step < engine.settings.ramp:
                self.awake = True
            if self.codes is not before:
                engine.fired(site, before, self.codes)
        if self.wants_values and self.values is None:
            self.values = self.codes * self.scale

    def _fire_plainly(self, engine: "EventEngine", x: Tensor, counts: Any) -> None:
        spike = engine.spike(self.site, x, self.codes)
        counts += spike.abs().reshape(len(counts), -1).sum(dim=1).to(torch.int64).numpy()
        self.awake = bool(counts.any())
        if self.awake:
            self.codes, self.values = self.codes + spike, None

    def _fire_compiled(self, engine: "EventEngine", x: Tensor, layer: Layer, counts: Any) -> None:
        if self.advance != engine.done:
            self.events, self.advance = {}, engine.done
        result = layer.fire(x.contiguous(), self.codes, counts, self.wants_values)
        self.awake = result.behind
        if result.spikes:
            self.codes, self.values, self.events[engine.step] = result.codes, result.values, result.events

    def news(self) -> Events | None:
        """Who has fired in the step that the engine is in; None if these are too many to be listed."""
        return self.events.get(self.seat.engine.step, _NOBODY)


class Product(Node):
    """A product of codes. Where few of them changed, it adds what their events bring to the sums it has kept."""

    def __init__(self, seat: Seat, dtype: torch.dtype, largest: int, *codes: Tensor) -> None:
        self.seat, self.dtype, self.largest = seat, dtype, largest
        self.codes = codes  # of the step before, as long as sums are kept
        self.sums: Tensor | None = None  # as they are after these codes
        self.sources: list[tuple[Population, int]] = []  # whose events it may use, and how many at most

    @property
    @abstractmethod
    def share(self) -> float:
        """The share of inputs up to which events are cheaper than all codes."""

    @abstractmethod
    def dense(self, *codes: Tensor) -> Tensor:
        """The sums of all codes."""

    @abstractmethod
    def add(self, sums: Tensor, events: list[Events], *codes: Tensor) -> None:
        """Add to the sums, in place, what the events bring that led to these codes."""

    def listen(self, speaking: dict[int, Population]) -> None:
        """Find out whose codes it has been given, among neurons by the address of their codes."""
        sources = []
        for x in self.codes:
            source = speaking.get(x.data_ptr())
            if source is None or source.layer is None or source.codes.numel() != x.numel():
                return
            if not x.is_contiguous() and (x is self.codes[0] or not x.mT.is_contiguous()):
                return
            source.layer.list_events(self.share)
            sources.append((source, int(self.share * x.numel())))
        self.sources = sources

    def forget(self) -> None:
        self.codes, self.sums = (), None

    def restart(self) -> None:
        self.forget()

    def run(self, cells: list[Any]) -> None:
        codes = tuple(cells[cell] for cell in self.reads)
        cells[self.writes[0]] = self._sums(codes) if self.sources else self.dense(*codes)

    def _sums(self, codes: tuple[Tensor, ...]) -> Tensor:
        events = []
        for source, most in self.sources:
            news = source.news()
            if news is None or len(news.at) > most:
                self.sums, self.codes = None, ()  # sums that nobody goes on with would only leave the cache
                return self.dense(*codes)
            events.append(news)
        if self.sums is None:
            self.sums = self.dense(*codes)
        elif any(len(news.at) for news in events):
            self.add(self.sums, events, *codes)
        self.codes = codes
        return self.sums


class Linear(Product):
    """A product with integer weights `[out, in]`."""

    def __init__(self, seat: Seat, weight: Tensor, dtype: torch.dtype, largest: int, codes: Tensor) -> None:
        super().__init__(seat, dtype, largest, codes)
        self.weight = weight
        self.room: Tensor | None = None  # memory for the sums: neurons have read them before they are made anew

    @property
    def share(self) -> float:
        return event.share_of_linear()

    def listen(self, speaking: dict[int, Population]) -> None:
        super().listen(speaking)
        if self.sums is not None and self.sums.dtype == torch.int32:  # `grid` took the int8 units
            self.room = self.sums

    def dense(self, *codes: Tensor) -> Tensor:
        if self.room is None:
            return grid.linear(codes[0], self.weight, self.dtype, self.largest)
        event.linear_into(self.room, codes[0], self.weight)
        return self.room

    def add(self, sums: Tensor, events: list[Events], *codes: Tensor) -> None:
        event.add_linear(sums, events[0], self.weight, self.seat.engine.settings.max_spike)


class Matmul(Product):
    """A product of two code tensors, as attention has them."""

    @property
    def share(self) -> float:
        return event.share_of_matmul()

    def dense(self, *codes: Tensor) -> Tensor:
        return grid.matmul(codes[0], codes[1], self.dtype, self.largest)

    def add(self, sums: Tensor, events: list[Events], *codes: Tensor) -> None:
        event.add_matmul(sums, events[0], events[1], self.codes[0], codes[1])


class FloatLinear(Node):
    """A product with float weights: the spike engine's own, since the order of float sums is part of the result."""

    def __init__(self, seat: Seat, owner: nn.Module, tag: str, *rest: Any) -> None:
        self.seat, self.owner, self.tag, self.rest = seat, owner, tag, rest

    def sums(self, codes: Tensor) -> Tensor:
        dtype = self.rest[1]
        return SpikeEngine.linear(self.seat.engine, self.owner, self.tag, codes.to(dtype), *self.rest)

    def run(self, cells: list[Any]) -> None:
        cells[self.writes[0]] = self.sums(cells[self.reads[0]])


class Injection(Node):
    """An input layer, which the input passes once; what came out is kept by the engine."""

    def __init__(self, seat: Seat, owner: nn.Module, layer: Callable[[Tensor], Tensor]) -> None:
        self.seat, self.owner, self.layer = seat, owner, layer

    def run(self, cells: list[Any]) -> None:
        cells[self.writes[0]] = self.seat.engine.inject(self.owner, cells[self.reads[0]], self.layer)
