"""The event engine: the spike domain, where only what fired costs work. For the CPU.

The first step is written down on a tape, which is kept for further inputs of that shape. From then on neurons are
looked at only if their input has changed or they are on their way to their code, a product adds what the events bring,
and every other operator runs only if something has changed for it. A layer at rest costs nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spikezip.execution import SiteLike
from spikezip.ops.compiled import numba_is_here
from spikezip.ops.event import Layer, Source
from spikezip.ops.rounding.fast import has_inverse
from spikezip.simulate import shelf
from spikezip.simulate.engine import Settings
from spikezip.simulate.entry import Watch
from spikezip.simulate.nodes import FloatLinear, Injection, Linear, Matmul, Population, Product
from spikezip.simulate.outputs import map_tensors, stack_outputs
from spikezip.simulate.recorder import Recorder, tensors_of, watched_by
from spikezip.simulate.source import source_of
from spikezip.simulate.spike import SpikeEngine
from spikezip.simulate.stride import stride
from spikezip.simulate.tape import Node, Seat, Tape
from spikezip.spiking.unscaled import plain


class EventEngine(SpikeEngine):
    """Where a pass cannot be written down, `refused` says why, and every step is a forward pass of the network."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.tape: Tape | None = None
        self.seat = Seat()  # where the nodes that it works with find it
        self.recorder: Recorder | None = None
        self.refused: str | None = None
        self.strange: dict[int, Tensor] = {}  # constants of unknown origin in the first pass
        self.driven: tuple[Any, dict[str, Any]] = None, {}  # the network, and its inputs
        self.sites: dict[str, SiteLike] = {}
        self.populations: dict[str, Population] = {}
        self.threads = 1  # that compiled loops may use
        self.now, self.step = 0, 1  # the step in progress: within this advance, from 0, and in all, from 1
        self.counts: dict[str, Any] = {}  # site → spikes of this advance, [n, B]
        self.spikes: dict[str, Tensor] = {}  # site → the same neuron by neuron, [n, …], where it is recorded

    def advance(self, network: Any, inputs: dict[str, Any], steps: int) -> Any:
        if self.driven[0] != network or not _same(self.driven[1], inputs):
            self._put_down()
            self.driven = network, dict(inputs)
        self.seat.engine = self
        try:
            outputs = self._outputs(network, inputs, steps)
        finally:
            self.seat.engine = None  # a tape that is kept must not keep the engine, nor its network
        return stack_outputs([map_tensors(output, lambda x: plain(x).unsqueeze(0)) for output in outputs])

    def _outputs(self, network: Any, inputs: dict[str, Any], steps: int) -> list[Any]:
        outputs: list[Any] = []
        if self.tape is None:
            self.refused = self.refused or watched_by(network)
            self._take_up(network, inputs)
        while len(outputs) < steps:
            self.begin(1 if self.tape is None else steps - len(outputs))
            outputs += [self._pass(network, inputs)] if self.tape is None else self._play(self.tape)
            self.end()
        return outputs

    def _play(self, tape: Tape) -> list[Any]:
        self.threads = torch.get_num_threads()
        if self.threads == 1 or not any(group.stride for group in tape.groups):
            return tape.play(self.steps, self.tell)
        # Threads of operators go on waiting for work for a while, on the very cores that compiled loops want.
        torch.set_num_threads(1)
        try:
            return tape.play(self.steps, self.tell)
        finally:
            torch.set_num_threads(self.threads)

    def begin(self, steps: int) -> None:
        super().begin(steps)
        self.tell(0)
        self.counts = {name: self._zeros() for name in self.stages}
        self.spikes = {}

    def tell(self, now: int) -> None:
        """Which step of this advance it is."""
        self.now, self.step = now, self.done + now + 1

    def end(self) -> None:
        for name, counts in self.counts.items():
            self.spike_counts[name].append(torch.from_numpy(counts))
            if name in self.settings.record:
                silence = torch.zeros(self.steps, *self.tracers[name].shape, dtype=torch.int8)
                self.keep(self.sites[name], self.spikes.get(name, silence))
            elif self.settings.count_neurons:
                self._counted(name)
        super().end()

    def _counted(self, name: str) -> Tensor:
        """How often each neuron of a site has fired so far."""
        if name not in self.neuron_spikes:
            self.neuron_spikes[name] = torch.zeros_like(self.tracers[name], dtype=torch.int32)
        return self.neuron_spikes[name]

    def _zeros(self) -> Any:
        return np.zeros((self.steps, self.settings.batch), np.int64)

    def fired(self, site: SiteLike, before: Tensor, codes: Tensor) -> None:
        """Told by neurons of their tracers before and after this step, if they fired."""
        self.tracers[site.name] = codes
        if site.name in self.settings.record:
            if site.name not in self.spikes:
                self.spikes[site.name] = torch.zeros(self.steps, *codes.shape, dtype=torch.int16)
            self.spikes[site.name][self.now] = codes.to(torch.int16) - before.to(torch.int16)
        elif self.settings.count_neurons:  # nobody asks when: the trains need not be held
            fired = codes != before if self.settings.max_spike == 1 else (codes.to(torch.int16) - before).abs()
            self._counted(site.name).add_(fired)

    def _pass(self, network: Any, inputs: dict[str, Any]) -> Any:
        """One forward pass of the network; on the way it is written down, if that is possible."""
        if self.refused is not None:
            return network(**inputs)
        known = (*tensors_of(network), *inputs.values(), *self.injected.values())
        with Recorder(known, inputs) as self.recorder, Watch(self.recorder.entry):
            output = network(**inputs)
        recorder, self.recorder = self.recorder, None
        tape, self.refused = recorder.tape(output), recorder.refused
        if tape is not None and recorder.strange.keys() != self.strange.keys():
            if self.strange:
                self.refused = "the network computes something without operators of torch"
            tape, self.strange = None, recorder.strange
        if tape is None:
            self.populations = {}
        else:
            self._connect(tape)
            tape.seat = self.seat
            shelf.keep(tape, self, network, inputs)
        self.tape = tape
        return output

    def _take_up(self, network: Any, inputs: dict[str, Any]) -> None:
        """Go on with a tape of an earlier run, if there is one for such inputs."""
        if self.refused is not None:
            return

        def fits(tape: Tape) -> bool:
            before, found = dict(self.injected), False
            tape.seat.engine = self
            try:
                found = tape.restart(inputs)
            finally:
                if not found:
                    tape.seat.engine, self.injected = None, before
            return found

        self.tape = shelf.take(self, network, inputs, fits)
        if self.tape is not None:
            self.seat = self.tape.seat

    def _put_down(self) -> None:
        """Let others have the tape."""
        if self.tape is not None:
            self.tape.owner = None
        self.tape, self.populations, self.seat = None, {}, Seat()

    def meet(self, population: Population, still: Tensor) -> None:
        """Neurons of a tape that has been taken up. They begin `still`, unless they have fired for this engine."""
        site = population.site
        self.tracers[site.name] = self.tracers.get(site.name, still).contiguous()
        self.stages.setdefault(site.name, len(self.stages))
        self.sites[site.name], self.populations[site.name] = site, population

    def _connect(self, tape: Tape) -> None:
        """Tell neurons who listens to them."""
        read = {cell for group in tape.groups for cell in group.watched} | set(tape.final.values())
        speaking = {}
        for population in self.populations.values():
            speaking[population.codes.data_ptr()] = population
            if population.wants_values and population.writes[1] not in read:
                population.wants_values, population.writes = False, population.writes[:1]
        stride(tape.groups, self.settings.batch)
        for group in tape.groups:
            for node in group.nodes:
                # Sums that events are added to, in place, may have no reader but neurons, which read them at once.
                if isinstance(node, Product) and isinstance(group.head, Population) and group.stride is None:
                    node.listen(speaking)
        tape.forget()

    def code_dtype(self, site: SiteLike, like: Tensor) -> torch.dtype:
        narrow = site.lo >= -128 and site.hi <= 127 and has_inverse(site.step_size)
        return torch.int8 if narrow and like.dtype == torch.float32 and numba_is_here() else like.dtype

    def entering(self, site: SiteLike, u: Tensor) -> Tensor:
        return u * self.ramp(u.device, u.dtype)[self.now] if self.settings.ramp > 1 else u

    def codes(self, site: SiteLike, u: Tensor) -> Tensor:
        return self._fire(site, u, wants_values=False).codes

    def values(self, site: SiteLike, u: Tensor) -> tuple[Tensor, Tensor]:
        population = self._fire(site, u, wants_values=True)
        if population.values is None or self.recorder is None:  # whoever gets them may change them
            return population.codes * population.scale, population.codes
        return population.values, population.codes

    def _fire(self, site: SiteLike, u: Tensor, wants_values: bool) -> Population:
        u = plain(u)
        with _unrecorded():
            self.tracers[site.name] = self.tracer(site, u).contiguous()
            self.sites[site.name] = site
            population, sums = self.populations.get(site.name), u
            if population is None or self.recorder is not None:
                scale, layer = site.step_size, None
                if self.tracers[site.name].dtype == torch.int8:
                    source = self._source(site, scale, u)
                    layer, sums = Layer(source, scale, site.lo, site.hi, self.settings.max_spike), source.sums
                population = self.populations[site.name] = Population(self.seat, site, scale, layer, wants_values)
            self.counts.setdefault(site.name, self._zeros())
            population.fire(sums)
            self._record(population, [sums], [x for x in (population.codes, population.values) if x is not None])
        return population

    def _source(self, site: SiteLike, scale: Tensor, u: Tensor) -> Source:
        """What compiled neurons read: the sums that their input was made of, where that can be seen."""
        if self.recorder is not None and not site.entry:
            source = source_of(u, self.recorder)
            if Layer.suits(source, scale, site.lo, site.hi):
                return source
        return Source.plain(u)

    def linear(
        self, owner: nn.Module, tag: str, codes: Tensor, weight: Tensor, dtype: torch.dtype, largest: int
    ) -> Tensor:
        if weight.dtype == torch.int8:
            return self._multiply(Linear(self.seat, weight, dtype, largest, codes), codes)
        node = FloatLinear(self.seat, owner, tag, weight, dtype, largest)
        with _unrecorded():
            sums = node.sums(codes)
            self._record(node, [codes], [sums])
        return sums

    def matmul(self, owner: nn.Module, tag: str, a: Tensor, b: Tensor, dtype: torch.dtype, largest: int) -> Tensor:
        return self._multiply(Matmul(self.seat, dtype, largest, a, b), a, b)

    def _multiply(self, product: Product, *codes: Tensor) -> Tensor:
        with _unrecorded():
            sums = product.sums = product.dense(*codes)
            self._record(product, codes, [sums])
        return sums.to(product.dtype)

    def inject(self, owner: nn.Module, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        with _unrecorded():
            result = super().inject(owner, x, layer)
            if self.recorder is not None:
                node = Injection(self.seat, owner, layer)
                node.reads = self.recorder.inputs([x])
                self.recorder.append(node, [result], early=True)
        return result

    def _record(self, node: Node, given: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        if self.recorder is not None:
            node.reads = self.recorder.inputs(given)
            self.recorder.append(node, results)

    def select(self, samples: Tensor) -> None:
        super().select(samples)
        self._put_down()


def _same(some: dict[str, Any], others: dict[str, Any]) -> bool:
    return some.keys() == others.keys() and all(x is others[name] for name, x in some.items())


@contextmanager
def _unrecorded() -> Iterator[None]:
    """What happens inside such a block is no business of the recorder's."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield
