"""The folded engine: the accumulator domain, with time folded into the batch.

All steps of a chunk go through a layer at once, as a batch of `n·B`. Products are those of the quantized network;
only the neuron knows about time: a scan over the chunk, which carries the tracer into the next one.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spikezip.execution import SiteLike
from spikezip.ops import neuron
from spikezip.simulate.engine import Engine
from spikezip.simulate.outputs import map_tensors


class FoldedEngine(Engine):
    def advance(self, network: Any, inputs: dict[str, Any], steps: int) -> Any:
        self.begin(steps)
        folded = {k: self._fold(v) if isinstance(v, Tensor) else v for k, v in inputs.items()}
        output = network(**folded)
        self.end()
        return map_tensors(output, self._unfold)

    def _fold(self, x: Tensor) -> Tensor:
        """`[B, …]` → `[n·B, …]`, time first; tensors that are shared by the batch stay as they are."""
        if x.ndim == 0 or x.shape[0] != self.settings.batch:
            return x
        return x.repeat(self.steps, *[1] * (x.ndim - 1))

    def _unfold(self, x: Tensor) -> Tensor:
        return x.view(self.steps, self.settings.batch, *x.shape[1:])

    def codes(self, site: SiteLike, u: Tensor) -> Tensor:
        steps = self.steps
        over_time = u.reshape(steps, u.shape[0] // steps, *u.shape[1:])
        if site.entry:
            ramp = self.ramp(u.device, u.dtype)
            over_time = over_time * ramp.view(steps, *[1] * (u.ndim))
        tracer = self.tracer(site, over_time[0])
        tracers, counts = self._walk(site, over_time.reshape(steps, -1), tracer.reshape(-1))
        tracers = tracers.view(over_time.shape)
        self.spike_counts[site.name].append(counts)
        if self.wants_spikes(site):
            self.keep(site, tracers - torch.cat([tracer[None], tracers[:-1]]))
        self.tracers[site.name] = tracers[-1].clone()
        return tracers.view(u.shape)

    def _walk(self, site: SiteLike, u: Tensor, tracer: Tensor) -> tuple[Tensor, Tensor]:
        """Tracers `[n, neurons]` and spikes `[n, B]` of a chunk; in its first steps the site may be held back."""
        batch, held = self.settings.batch, self.held(site)
        if held == self.steps:
            return tracer.repeat(held, 1), u.new_zeros(held, batch)
        limits = (site.step_size, site.lo, site.hi, self.settings.max_spike)
        tracers, counts = neuron.walk(u[held:], tracer, *limits, batch)
        if held:
            tracers = torch.cat([tracer.expand(held, -1), tracers])
            counts = torch.cat([counts.new_zeros(held, batch), counts])
        return tracers, counts

    def inject(self, owner: nn.Module, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """The input does not change: its layer is evaluated once, and repeated for every step."""
        if owner not in self.injected:
            self.injected[owner] = layer(x[: x.shape[0] // self.steps])
        once = self.injected[owner]
        return once.repeat(self.steps, *[1] * (once.ndim - 1))
