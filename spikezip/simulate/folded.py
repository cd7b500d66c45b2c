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

    def code_dtype(self, site: SiteLike, like: Tensor) -> torch.dtype:
        return torch.int8 if site.lo >= -128 and site.hi <= 127 else like.dtype

    def codes(self, site: SiteLike, u: Tensor) -> Tensor:
        return self._fire(site, u, None)

    def values(self, site: SiteLike, u: Tensor) -> tuple[Tensor, Tensor]:
        flat, back = in_memory_order(u, site)
        u = flat.permute(back)
        values = torch.empty_like(u)  # laid out as u is
        return values, self._fire(site, u, values)

    def _fire(self, site: SiteLike, u: Tensor, values: Tensor | None) -> Tensor:
        """The tracers of all steps. Neurons stand in the order in which their sums lie in memory: none is copied."""
        steps = self.steps
        flat, back = in_memory_order(u, site)
        there = [back.index(i) for i in range(u.ndim)]
        if site.entry and self.settings.ramp > 1:
            ramp = self.ramp(u.device, u.dtype).repeat_interleave(u.shape[0] // steps)
            flat = flat * ramp.view(-1, *[1] * (u.ndim - 1))
        before = self.tracer(site, u[: u.shape[0] // steps])
        rows = flat.reshape(steps, -1)
        out = None if values is None else values.permute(there).view(rows.shape)
        tracers, counts = self._walk(site, rows, before.permute(there).reshape(-1), out)
        self.spike_counts[site.name].append(counts)
        codes = tracers.view(flat.shape).permute(back)
        over_time = codes.unflatten(0, (steps, -1))
        if self.wants_spikes(site):
            wide = torch.cat([before[None], over_time]).to(torch.int16)  # int8 codes may lie further apart than 127
            self.keep(site, wide.diff(dim=0))
        self.tracers[site.name] = over_time[-1].clone()
        return codes

    def _walk(self, site: SiteLike, u: Tensor, tracer: Tensor, values: Tensor | None) -> tuple[Tensor, Tensor]:
        """Tracers `[n, neurons]` and spikes `[n, B]` of a chunk; in its first steps the site may be held back."""
        batch, held = self.settings.batch, self.held(site)
        if values is not None and held:
            scale = site.step_size
            values[:held] = (tracer.view(-1, max(scale.numel(), 1)) * scale).view(-1)
        if held == self.steps:
            return tracer.repeat(held, 1), u.new_zeros(held, batch)
        limits = (site.step_size, site.lo, site.hi, self.settings.max_spike)
        tracers, counts = neuron.walk(u[held:], tracer, *limits, batch, None if values is None else values[held:])
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


def in_memory_order(u: Tensor, site: SiteLike) -> tuple[Tensor, list[int]]:
    """A tensor with its dimensions in the order in which they lie in memory, and how to permute them back.

    The samples stay first, and channels that have a scale each stay last. What does not lie in one piece is copied.

    Example:
        >>> from spikezip.spiking import Neuron
        >>> heads = torch.zeros(2, 3, 4, 5).transpose(1, 2)
        >>> flat, back = in_memory_order(heads, Neuron("q", torch.tensor(1.0), -4, 3))
        >>> flat.shape, back
        (torch.Size([2, 3, 4, 5]), [0, 2, 1, 3])
    """
    if not u.is_contiguous() and u.ndim > 1:
        order = [0, *sorted(range(1, u.ndim), key=u.stride, reverse=True)]
        flat = u.permute(order)
        if flat.is_contiguous() and (not site.step_size.ndim or order[-1] == u.ndim - 1):
            return flat, [order.index(i) for i in range(u.ndim)]
    return u.contiguous(), list(range(u.ndim))
