"""What every engine shares: the clock, the tracers, and what is recorded."""

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import floor
from typing import Any

import torch
from torch import Tensor, nn

from spikezip.engines.run import last_spike
from spikezip.errors import SpikezipError
from spikezip.execution import Execution, SiteLike


@dataclass(frozen=True)
class Settings:
    """How a network is driven: samples in the batch, input coding, largest spike, what to record, staggering."""

    batch: int
    ramp: int = 1  # steps over which the input rises to its full value: 1 is analog coding
    max_spike: int = 1
    record: frozenset[str] = field(default_factory=frozenset)
    count_neurons: bool = False
    stagger: Fraction = Fraction(0)  # exact: 0.29 · 100 is 29 here, and just below it in floats

    def hold(self, stage: int) -> int:
        """Steps at the start in which stage number `stage` integrates but does not fire.

        Example:
            >>> [Settings(batch=1, stagger=Fraction(2, 5)).hold(n) for n in range(6)]
            [0, 0, 0, 1, 1, 2]
        """
        return floor(self.stagger * stage)


class Engine(Execution, ABC):
    """An execution that unfolds over time. `advance` runs further steps and returns their outputs `[n, B, …]`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.done = 0  # steps already taken
        self.steps = 0  # steps of the advance in progress
        self.tracers: dict[str, Tensor] = {}
        self.spike_counts: dict[str, list[Tensor]] = defaultdict(list)  # site → [n, B] per advance
        self.trains: dict[str, list[Tensor]] = defaultdict(list)
        self.neuron_spikes: dict[str, Tensor] = {}
        self.stages: dict[str, int] = {}  # site → its number in the order of execution
        self.injected: dict[nn.Module, Tensor] = {}
        self._fired_here: set[str] = set()

    @abstractmethod
    def advance(self, network: Any, inputs: dict[str, Any], steps: int) -> Any:
        """Run `steps` further steps of `network`; every tensor of its output as `[steps, B, …]`."""

    def ramp(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The share of the input that has entered by each step of this advance: `min(t, L)/L`, 1 in the end."""
        first = self.done + 1
        steps = torch.arange(first, first + self.steps, device=device, dtype=dtype)
        return steps.clamp(max=self.settings.ramp) / self.settings.ramp

    def tracer(self, site: SiteLike, like: Tensor) -> Tensor:
        """The tracer of a site before this advance: zeros at the start. `like` is one step's input there."""
        if site.name in self._fired_here:
            raise SpikezipError(f"site {site.name!r} is used twice in one forward pass; each use needs its own site")
        self._fired_here.add(site.name)
        if like.ndim == 0 or like.shape[0] % self.settings.batch:
            raise SpikezipError(
                f"site {site.name!r} sees a tensor of shape {tuple(like.shape)}, "
                f"not led by the batch of {self.settings.batch}"
            )
        if site.name not in self.tracers:
            self.tracers[site.name] = torch.zeros_like(like, dtype=self.code_dtype(site, like))
            self.stages[site.name] = len(self.stages)
        return self.tracers[site.name]

    def code_dtype(self, site: SiteLike, like: Tensor) -> torch.dtype:
        """In what a site's codes are held: by default in the floats that arrive there."""
        return like.dtype

    def begin(self, steps: int) -> None:
        self.steps = steps
        self._fired_here.clear()

    def end(self) -> None:
        self.done += self.steps

    def held(self, site: SiteLike) -> int:
        """How many of the steps of this advance a site is held back in: the first ones. Ask after `tracer`."""
        return min(max(self.settings.hold(self.stages[site.name]) - self.done, 0), self.steps)

    @property
    def free_from(self) -> int:
        """The first step with the input in full and no stage held back; known after the first advance."""
        return max(self.settings.ramp, self.settings.hold(len(self.stages) - 1) + 1)

    def wants_spikes(self, site: SiteLike) -> bool:
        """Whether a site's spikes are looked at one by one."""
        return self.settings.count_neurons or site.name in self.settings.record

    def keep(self, site: SiteLike, spikes: Tensor) -> None:
        """Keep the spikes `[n, …]` of a site: the train if it is recorded, the sums if neurons are counted."""
        if site.name in self.settings.record:
            narrow = torch.int8 if self.settings.max_spike <= 127 else torch.int16
            self.trains[site.name].append(spikes.to(narrow))
        if self.settings.count_neurons:
            fired = spikes.abs().sum(dim=0, dtype=torch.int32)
            counted = self.neuron_spikes.get(site.name)
            self.neuron_spikes[site.name] = fired if counted is None else counted.add_(fired)

    def activity(self) -> Tensor:
        """Spikes of all sites together, `[steps done, B]`."""
        advances = zip(*self.spike_counts.values(), strict=True)
        return torch.cat([torch.stack(counts).sum(dim=0) for counts in advances])

    def last_spike(self) -> Tensor:
        """For each sample the step (from 1) of its last spike so far; 0 if it has not fired."""
        return last_spike(self.activity())

    def settled(self, last_spike: Tensor) -> Tensor:
        """Which samples are at equilibrium: a silent step has passed, the input in full, no stage held back.

        A step without a spike leaves every running sum as it was, so the next is silent too, if the input is constant
        and every neuron that wanted to fire was free to.
        """
        return (self.done > last_spike) & (self.done >= self.free_from)

    def select(self, samples: Tensor) -> None:
        """Go on with these samples of the batch only, given by their numbers. To the others nothing happens any more.

        What was recorded of those that stay is kept. The caller selects from the inputs as well.
        """
        batch = self.settings.batch
        for state in self.state():
            for key, value in state.items():
                state[key] = rows_of(value, samples, batch)
        for name, chunks in self.trains.items():
            self.trains[name] = [rows_of(chunk.transpose(0, 1), samples, batch).transpose(0, 1) for chunk in chunks]
        # All sites at once: on a GPU hundreds of small tensors would take long.
        counts = [torch.stack(chunk)[..., samples].unbind() for chunk in zip(*self.spike_counts.values(), strict=True)]
        for name, its in zip(self.spike_counts, zip(*counts, strict=True), strict=True):
            self.spike_counts[name] = list(its)
        self.settings = replace(self.settings, batch=len(samples))

    def snapshot(self) -> "Snapshot":
        """Where the run stands, to go back to if an advance fails. Steps replace what is kept here, never change it."""
        kept = {name: len(chunks) for name, chunks in self.spike_counts.items()}
        trains = {name: len(chunks) for name, chunks in self.trains.items()}
        counted = {name: spikes.clone() for name, spikes in self.neuron_spikes.items()}
        return Snapshot(dict(self.tracers), kept, trains, counted, dict(self.stages), dict(self.injected))

    def go_back(self, to: "Snapshot") -> None:
        """Forget all since a snapshot."""
        self.tracers, self.stages, self.injected = dict(to.tracers), dict(to.stages), dict(to.injected)
        self.neuron_spikes = dict(to.neuron_spikes)
        for records, lengths in ((self.spike_counts, to.counts), (self.trains, to.trains)):
            for name in list(records):
                del records[name][lengths.get(name, 0) :]
                if not records[name]:
                    del records[name]

    def state(self) -> list[dict[Any, Tensor]]:
        """All that is carried from step to step: tensors led by the batch, or by a multiple of it."""
        return [self.tracers, self.neuron_spikes, self.injected]


@dataclass(frozen=True)
class Snapshot:
    """What an engine carries from step to step, and how long its records were."""

    tracers: dict[str, Tensor]
    counts: dict[str, int]
    trains: dict[str, int]
    neuron_spikes: dict[str, Tensor]
    stages: dict[str, int]
    injected: dict[nn.Module, Tensor]


def rows_of(x: Tensor, samples: Tensor, batch: int) -> Tensor:
    """The rows of these samples in a tensor that holds several rows for each, sample after sample.

    Example:
        >>> rows_of(torch.arange(6), torch.tensor([0, 2]), batch=3)  # two rows each, as windows of an image
        tensor([0, 1, 4, 5])
    """
    if x.shape[0] % batch:
        raise SpikezipError(f"a tensor of shape {tuple(x.shape)} is not led by the batch of {batch}")
    return x.unflatten(0, (batch, -1))[samples].flatten(0, 1)
