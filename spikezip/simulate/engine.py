"""What every engine shares: the clock, the tracers, and what is recorded."""

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spikezip.errors import SpikezipError
from spikezip.execution import Execution, SiteLike


@dataclass(frozen=True)
class Settings:
    """How a network is driven: samples in the batch, input coding, largest spike, sites to record."""

    batch: int
    ramp: int = 1  # steps over which the input rises to its full value: 1 is analog coding
    max_spike: int = 1
    record: frozenset[str] = field(default_factory=frozenset)


class Engine(Execution, ABC):
    """An execution that unfolds over time. `advance` runs further steps and returns their outputs `[n, B, …]`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.done = 0  # steps already taken
        self.steps = 0  # steps of the advance in progress
        self.tracers: dict[str, Tensor] = {}
        self.spike_counts: dict[str, list[Tensor]] = defaultdict(list)  # site → [n, B] per advance
        self.trains: dict[str, list[Tensor]] = defaultdict(list)
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
            self.tracers[site.name] = torch.zeros_like(like)
        return self.tracers[site.name]

    def begin(self, steps: int) -> None:
        self.steps = steps
        self._fired_here.clear()

    def end(self) -> None:
        self.done += self.steps

    def keep(self, site: SiteLike, spikes: Tensor) -> None:
        """Keep the spikes `[n, …]` of a site that is recorded."""
        narrow = torch.int8 if self.settings.max_spike <= 127 else torch.int16
        self.trains[site.name].append(spikes.to(narrow))

    def activity(self) -> Tensor:
        """Spikes of all sites together, `[steps done, B]`."""
        return torch.stack([torch.cat(counts) for counts in self.spike_counts.values()]).sum(dim=0)

    def last_spike(self) -> Tensor:
        """For each sample the step (from 1) of its last spike so far; 0 if it has not fired."""
        activity = self.activity()
        numbers = torch.arange(1, activity.shape[0] + 1, device=activity.device)[:, None]
        return (numbers * (activity > 0)).amax(dim=0)

    def settled(self, last_spike: Tensor) -> Tensor:
        """Which samples are at equilibrium: a silent step has passed, and the input has entered in full.

        A step without a spike leaves every running sum as it was, so the next is silent too, if the input is constant.
        """
        return (self.done > last_spike) & (self.done >= self.settings.ramp)
