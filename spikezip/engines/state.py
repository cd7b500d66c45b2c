"""How a run is driven, and what it carries from step to step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any, Literal

import torch
from torch import Tensor

from spikezip.errors import ConfigError

Steps = int | Literal["equilibrium"]
CODINGS = ("analog", "rate")


@dataclass(frozen=True)
class Drive:
    """How a spiking network is driven: everything that a run can be asked for.

    Args:
        engine: `"folded"` (all steps of a chunk at once), `"spike"` (the paper, step by step), `"event"` (only what
            fired costs work; on the CPU), or `"auto"`: what is fastest here. The spikes are the same.
        steps: how many, or `"equilibrium"`: until nothing fires.
        coding: `"analog"`: the input is there from the first step; `"rate"`: it rises over the first L steps, L being
            the levels of the site where it enters.
        max_spike: the largest spike; 1 gives the paper's ternary spikes.
        stagger: k ≥ 0, fractions allowed. Sites are stages, numbered in the order of execution. Stage n integrates from
            the first step on, but may fire from step `floor(k·n) + 1` on only: fewer spikes, more steps, the same end.
        chunk: steps that the folded engine takes at once; by default chosen from the size of the batch.
        record: names of sites whose full spike trains are kept.
        count_neurons: count the spikes of every single neuron.
        stop_early: leave out steps after equilibrium, which are silent; what is returned is the same.
        max_steps: cap for `steps="equilibrium"`; by default a bound that no network can exceed.

    Example:
        >>> Drive(steps=0)
        Traceback (most recent call last):
        spikezip.errors.ConfigError: steps=0: a whole number from 1, or 'equilibrium'
    """

    engine: str = "auto"
    steps: Steps = 64
    coding: str = "analog"
    max_spike: int = 1
    stagger: float = 0
    chunk: int | None = None
    record: tuple[str, ...] = ()
    count_neurons: bool = False
    stop_early: bool = True
    max_steps: int | None = None

    def __post_init__(self) -> None:
        if self.coding not in CODINGS:
            raise ConfigError(f"coding={self.coding!r}: choose one of {', '.join(CODINGS)}")
        if isinstance(self.max_spike, bool) or not isinstance(self.max_spike, int) or self.max_spike < 1:
            raise ConfigError(f"max_spike={self.max_spike!r}: a whole number from 1 is needed")
        number = isinstance(self.stagger, (int, float)) and not isinstance(self.stagger, bool)
        if not number or not 0 <= self.stagger < math.inf:
            raise ConfigError(f"stagger={self.stagger!r}: a number of steps from 0 is needed, such as 0.5")
        if self.steps != "equilibrium":
            _whole("steps", self.steps, "'equilibrium'")
        for name in ("chunk", "max_steps"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), "None")
        object.__setattr__(self, "record", tuple(self.record))

    def hold(self, stage: int) -> int:
        """Steps at the start in which stage number `stage` integrates but does not fire.

        Example:
            >>> [Drive(stagger=0.4).hold(n) for n in range(6)]
            [0, 0, 0, 1, 1, 2]
        """
        # The number that the user wrote, not its neighbour among the floats: 0.29 · 100 is 29.
        return math.floor(Fraction(str(float(self.stagger))) * stage)


def driven(drive: Drive | None, settings: Mapping[str, Any], default: Drive | None = None) -> Drive:
    """A drive with some of its fields given by name.

    Example:
        >>> driven(None, {"steps": 8, "engine": "spike"}) == Drive(steps=8, engine="spike")
        True
    """
    unknown = sorted(settings.keys() - {f.name for f in fields(Drive)})
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such setting; a run takes {', '.join(f.name for f in fields(Drive))}")
    return replace(drive or default or Drive(), **settings)


def _whole(name: str, value: Any, otherwise: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}={value!r}: a whole number from 1, or {otherwise}")


@dataclass
class State:
    """What a run carries from step to step: all that has to be kept to go on later.

    Attributes:
        tracers: site → the codes that its neurons have fired so far.
        done: steps taken.
        sums: product → its running totals, in engines that add up spikes.
        seen: (product, operand) → the codes that it has received so far.
    """

    tracers: dict[str, Tensor] = field(default_factory=dict)
    done: int = 0
    sums: dict[str, Any] = field(default_factory=dict)
    seen: dict[tuple[str, str], Tensor] = field(default_factory=dict)


@dataclass
class Recording:
    """What a run writes down: spikes per step and sample, trains of recorded sites, spikes of single neurons."""

    counts: dict[str, list[Tensor]] = field(default_factory=dict)  # site → [n, B] per advance
    trains: dict[str, list[Tensor]] = field(default_factory=dict)
    neuron_spikes: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, site: str, spikes: Tensor, drive: Drive) -> None:
        """Keep the spikes `[n, …]` of a site, as far as they are asked for."""
        if site in drive.record:
            narrow = torch.int8 if drive.max_spike <= 127 else torch.int16
            self.trains.setdefault(site, []).append(spikes.to(narrow))
        if drive.count_neurons:
            fired = spikes.abs().sum(dim=0, dtype=torch.int32)
            counted = self.neuron_spikes.get(site)
            self.neuron_spikes[site] = fired if counted is None else counted + fired

    def wants(self, site: str, drive: Drive) -> bool:
        return drive.count_neurons or site in drive.record
