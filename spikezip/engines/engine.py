"""What the engines share: the network, the input's constants, the clock, and what is written down."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from spikezip.engines.run import last_spike
from spikezip.engines.state import Drive, Recording, State
from spikezip.engines.synapses import Pair, Synapse
from spikezip.engines.walk import constants, sizes_of, uses_of_moving
from spikezip.program.freeze import Frozen
from spikezip.program.layout import Layout
from spikezip.program.nodes import Matmul, Site
from spikezip.program.sizes import bind


class Engine(ABC):
    """One input through one network. `advance` takes further steps; `state` is what it carries between them."""

    name: ClassVar[str]

    def __init__(self, network: Frozen, layout: Layout, inputs: Mapping[str, Any], drive: Drive) -> None:
        self.network, self.program, self.layout, self.drive = network, network.program, layout, drive
        self.sizes = sizes_of(self.program, inputs)
        self.batch = self._batch(inputs)
        self.constants = constants(network, inputs, self.sizes)
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
        total = math.prod(bind(size, self.sizes) for size in site.shape)
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
