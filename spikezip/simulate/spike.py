"""The spike engine: the paper, step by step.

Neurons hold a membrane and fire ternary spikes. Every product is made from this step's spikes: `y_t = y_{t−1} + W·x_t`
for weights, the three products of SESA for attention. Running sums flow between modules, so that a model's own glue
works on any architecture; the spikes that reach a product are the change of the codes it reads.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spikezip.execution import SiteLike
from spikezip.ops import grid, neuron, sesa
from spikezip.simulate.engine import Engine, Settings
from spikezip.simulate.outputs import map_tensors, stack_outputs


class SpikeEngine(Engine):
    keeps_sums = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.sums: dict[tuple[nn.Module, str], Tensor] = {}  # accumulated potential of each product
        self.seen: dict[tuple[nn.Module, str], Tensor] = {}  # codes that each product has received so far

    def advance(self, network: Any, inputs: dict[str, Any], steps: int) -> Any:
        outputs = []
        for _ in range(steps):
            self.begin(1)
            output = network(**inputs)
            self.end()
            outputs.append(map_tensors(output, lambda x: x.unsqueeze(0)))
        return stack_outputs(outputs)

    def codes(self, site: SiteLike, u: Tensor) -> Tensor:
        u = self.entering(site, u)
        tracer = self.tracer(site, u)
        spike = torch.zeros_like(tracer) if self.held(site) else self.spike(site, u, tracer)
        self.tracers[site.name] = tracer + spike
        # Counts are integers far below 2^24, so the float sum is exact. A graded spike of m counts as m.
        self.spike_counts[site.name].append(spike.abs().reshape(1, self.settings.batch, -1).sum(dim=2))
        if self.wants_spikes(site):
            self.keep(site, spike.unsqueeze(0))
        return self.tracers[site.name]

    def entering(self, site: SiteLike, u: Tensor) -> Tensor:
        """What has arrived of the input of a site by this step."""
        return u * self.ramp(u.device, u.dtype)[0] if site.entry else u

    def spike(self, site: SiteLike, u: Tensor, tracer: Tensor) -> Tensor:
        """The spikes of neurons that may fire, from their running input and their tracer before."""
        membrane = neuron.membrane(u, tracer, site.step_size)
        threshold = site.step_size.to(torch.float64)
        return neuron.fire(membrane, tracer, threshold, site.lo, site.hi, self.settings.max_spike).to(u.dtype)

    def state(self) -> list[dict[Any, Tensor]]:
        return [*super().state(), self.sums, self.seen]

    def arriving(self, owner: nn.Module, tag: str, codes: Tensor) -> Tensor:
        """The spikes that reach a product in this step: the change of the codes at its end of the line."""
        key = (owner, tag)
        spikes = codes - self.seen[key] if key in self.seen else codes
        self.seen[key] = codes
        return spikes

    def linear(
        self, owner: nn.Module, tag: str, codes: Tensor, weight: Tensor, dtype: torch.dtype, largest: int
    ) -> Tensor:
        spikes = self.arriving(owner, tag, codes)
        added = grid.linear(spikes, weight, dtype, min(largest * 2, self.settings.max_spike))
        key = (owner, tag)
        self.sums[key] = self.sums[key] + added if key in self.sums else added
        return self.sums[key]

    def matmul(self, owner: nn.Module, tag: str, a: Tensor, b: Tensor, dtype: torch.dtype, largest: int) -> Tensor:
        a, b = a.to(dtype), b.to(dtype)
        added = sesa.step(self.arriving(owner, tag + ":a", a), self.arriving(owner, tag + ":b", b), a, b)
        key = (owner, tag)
        self.sums[key] = self.sums[key] + added if key in self.sums else added
        return self.sums[key]

    def inject(self, owner: nn.Module, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """The input enters once; what it has charged stays."""
        if owner not in self.injected:
            self.injected[owner] = layer(x)
        return self.injected[owner]
