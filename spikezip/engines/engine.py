"""How a run is driven, what it carries from step to step, what it returns; and what the engines share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from spikezip.engines.synapses import Pair, Synapse
from spikezip.engines.walk import Folding, constants, uses_of_moving
from spikezip.errors import ConfigError
from spikezip.program.batch import sizes_of
from spikezip.program.freeze import Frozen
from spikezip.program.layout import Layout
from spikezip.program.nodes import Matmul, Site
from spikezip.program.sizes import bind

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


def driven(drive: Drive | None, settings: Mapping[str, Any]) -> Drive:
    """A drive with some of its fields given by name.

    Example:
        >>> driven(None, {"steps": 8, "engine": "spike"}) == Drive(steps=8, engine="spike")
        True
    """
    unknown = sorted(settings.keys() - {f.name for f in fields(Drive)})
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such setting; a run takes {', '.join(f.name for f in fields(Drive))}")
    return replace(drive or Drive(), **settings)


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


@dataclass(frozen=True)
class Run:
    """One batch through a spiking network.

    Attributes:
        logits: `[B, classes]` at the last step (the last hidden state for models without a head).
        logits_per_step: `[T, B, classes]`.
        steps: T. Steps after equilibrium are silent and need not be computed to be known; `computed_steps` were.
        t_eq: for each sample the number of steps up to its last spike, padded tokens included; None where the run
            ended before a silent step showed equilibrium.
        spike_counts: site → `[T, B]`, spikes of each step and sample (a graded spike of m counts as m).
        neurons: site → neurons per sample.
        trains: recorded site → spikes `[T, B, …]` as integers.
        tracers: site → the codes at the last step computed, `[B, …]`: int8 where they fit, else int16. Sites are in the
            order of execution, here and in the other dicts.
        neuron_spikes: site → spikes of each neuron over the whole run, of the tracers' shape, as integers (a graded
            spike of m counts as m); empty unless asked for with `count_neurons=True`.
        free_from: the first step with the input in full and no stage held back. A silent step from here on shows that a
            sample has settled; one before shows nothing.
        coding, max_spike, stagger: what the network was driven with.
        why_engine: why `engine="auto"` did not take the fastest engine; empty if it did.
        why_no_graph: on a GPU, why the folded engine did not record its chunks as CUDA graphs; empty if it did.
    """

    logits: Tensor
    logits_per_step: Tensor
    steps: int
    computed_steps: int
    t_eq: list[int | None]
    engine: str
    spike_counts: dict[str, Tensor] = field(repr=False)
    neurons: dict[str, int] = field(repr=False)
    trains: dict[str, Tensor] = field(repr=False)
    tracers: dict[str, Tensor] = field(repr=False)
    neuron_spikes: dict[str, Tensor] = field(default_factory=dict, repr=False)
    free_from: int = 1
    coding: str = "analog"
    max_spike: int = 1
    stagger: float = 0
    why_engine: str = ""
    why_no_graph: str = ""

    @property
    def settled(self) -> bool:
        """Whether every sample reached equilibrium."""
        return all(t is not None for t in self.t_eq)

    @property
    def site_t_eq(self) -> dict[str, list[int]]:
        """Site → for each sample the step of its last spike there; 0 where it never fired."""
        return {site: last_spike(counts).tolist() for site, counts in self.spike_counts.items()}

    @property
    def spikes_per_neuron(self) -> float:
        """Spikes of the whole run over the number of neurons, averaged over the batch."""
        spikes = sum(float(counts.sum()) for counts in self.spike_counts.values())
        return spikes / (sum(self.neurons.values()) * len(self.t_eq))


def last_spike(counts: Tensor) -> Tensor:
    """From spikes `[T, B]` the step (from 1) of each sample's last spike; 0 if it has not fired.

    Example:
        >>> last_spike(torch.tensor([[2, 0], [1, 0], [0, 0]]))
        tensor([2, 0])
    """
    numbers = torch.arange(1, len(counts) + 1, device=counts.device)[:, None]
    return (numbers * (counts > 0)).amax(dim=0)


class Engine(ABC):
    """One input through one network. `advance` takes further steps; `state` is what it carries between them."""

    name: ClassVar[str]

    def __init__(self, network: Frozen, layout: Layout, inputs: Mapping[str, Any], drive: Drive) -> None:
        self.network, self.program, self.layout, self.drive = network, network.program, layout, drive
        self.sizes = sizes_of(self.program, inputs)
        self.batch = self._batch(inputs)
        self.constants = constants(network, inputs, self.sizes)
        self.folding = Folding(network, layout, self.sizes, self.batch, self.constants)
        self.free = self.program.derived(uses_of_moving)
        self.stages = {name: i for i, name in enumerate(self.program.sites)}
        entries = [site.levels for site in self.program.sites.values() if site.entry]
        self.ramp = max(entries) if drive.coding == "rate" else 1
        self.state = State()
        self.recording = Recording()
        self._products: dict[str, Any] = {}

    def _batch(self, inputs: Mapping[str, Any]) -> int:
        if self.program.batch is not None:
            return self.sizes[self.program.batch]
        return next(len(x) for x in inputs.values() if isinstance(x, Tensor) and x.ndim)

    @abstractmethod
    def advance(self, steps: int) -> list[Any]:
        """The outputs of further steps, in chunks: each has the structure that the program returns."""

    def synapse(self, node: Any) -> Synapse:
        """A product with weights, prepared once for this run."""
        found = self._products.get(node.name)
        if found is None:
            found = self._products[node.name] = Synapse(self.network, node)
        return found

    def pair(self, node: Matmul) -> Pair:
        """A product of two sites' codes, prepared once for this run."""
        found = self._products.get(node.name)
        if found is None:
            found = self._products[node.name] = Pair(self.network, node, self.constants)
        return found

    def neurons(self, site: Site) -> int:
        """How many neurons of a site each sample has."""
        total = math.prod(self.folding.shape(site.name))
        return total // self.batch if site.name in self.layout.prefix else total

    def tracer(self, name: str) -> Tensor:
        """The codes of a site so far, in its shape."""
        return self.state.tracers[name]

    def hold(self, site: Site) -> int:
        """The number of first steps in which a site does not fire."""
        return self.drive.hold(self.stages[site.name])

    @property
    def free_from(self) -> int:
        """The first step with the input in full and no stage held back."""
        return max(self.ramp, self.drive.hold(len(self.stages) - 1) + 1)

    def share(self, first: int, steps: int, like: Tensor) -> Tensor:
        """The share of the input that has entered by each of these steps: `min(t, L)/L`, 1 in the end."""
        numbers = torch.arange(first + 1, first + steps + 1, dtype=like.dtype).clamp(max=self.ramp)
        return (numbers / self.ramp).to(like.device)  # a GPU would divide otherwise

    def entering(self, site: Site, u: Tensor) -> Tensor:
        """What has arrived of the input of a site by this step."""
        return u * self.share(self.state.done, 1, u)[0] if site.entry and self.ramp > 1 else u

    def count(self, site: Site, spikes: Tensor) -> None:
        """Write down how many spikes `[n, …]` each sample has fired in each step. A graded spike of m counts as m."""
        steps = len(spikes)
        prefix = self.layout.prefix.get(site.name)
        if prefix is None:  # samples share these neurons
            total = spikes.reshape(steps, 1, -1).sum(dim=2).expand(steps, self.batch)
        else:
            flat = spikes.reshape(steps, bind(prefix, self.sizes), self.batch, -1)
            total = flat.sum(dim=(1, 3))
        self.recording.counts.setdefault(site.name, []).append(total)

    def last_spike(self) -> Tensor:
        """For each sample the step (from 1) of its last spike so far; 0 if it has not fired."""
        chunks = zip(*self.recording.counts.values(), strict=True)
        return last_spike(torch.cat([torch.stack(counts).sum(dim=0) for counts in chunks]))

    def at_equilibrium(self, last: Tensor) -> Tensor:
        """Which samples are at equilibrium: a silent step has passed, the input in full, no stage held back.

        A step without a spike leaves every running sum as it was, so the next is silent too, if the input is constant
        and every neuron that wanted to fire was free to.
        """
        return (self.state.done > last) & (self.state.done >= self.free_from)
