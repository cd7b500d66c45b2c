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
from spikezip.ops.compiled import numba_is_here
from spikezip.ops.neuron.fast import triton_is_here
from spikezip.simulate.engine import Engine
from spikezip.simulate.outputs import map_tensors
from spikezip.spiking.unscaled import Unscaled, plain

After = tuple[Tensor, Tensor | None] | None


class FoldedEngine(Engine):
    def takes_unscaled(self, total: Tensor) -> bool:
        return triton_is_here() if total.is_cuda else total.dtype == torch.int32 and numba_is_here()

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
        return plain(x).view(self.steps, self.settings.batch, *x.shape[1:])

    def code_dtype(self, site: SiteLike, like: Tensor) -> torch.dtype:
        return torch.int8 if site.lo >= -128 and site.hi <= 127 else like.dtype

    def codes(self, site: SiteLike, u: Tensor) -> Tensor:
        return self._fire(site, u, None)

    def values(self, site: SiteLike, u: Tensor) -> tuple[Tensor, Tensor]:
        values = torch.empty(u.shape, dtype=u.dtype, device=u.device)
        order = _order(u)
        if order is not None:  # laid out as u is
            values = torch.empty([u.shape[i] for i in order], dtype=u.dtype, device=u.device).permute(_back(order))
        return values, self._fire(site, u, values)

    def _fire(self, site: SiteLike, u: Tensor, values: Tensor | None) -> Tensor:
        """The tracers of all steps. Neurons stand in the order in which their sums lie in memory: none is copied."""
        steps = self.steps
        u, after = self._sums(site, u)
        order = _order(u) if not site.step_size.ndim else None  # channels that have a scale each stay last
        order = order or list(range(u.ndim))
        flat = u.permute(order).contiguous()
        if site.entry and self.settings.ramp > 1:
            ramp = self.ramp(u.device, u.dtype).repeat_interleave(u.shape[0] // steps)
            flat = flat * ramp.view(-1, *[1] * (u.ndim - 1))
        before = self.tracer(site, u[: u.shape[0] // steps])
        rows = flat.view(steps, -1)
        out = None if values is None else values.permute(order)
        filled = out if out is None or out.is_contiguous() else torch.empty_like(out).contiguous()
        tracers, counts = self._walk(
            site, rows, before.permute(order).reshape(-1), None if filled is None else filled.view(rows.shape), after
        )
        if out is not None and filled is not None and filled is not out:
            out.copy_(filled)
        self.spike_counts[site.name].append(counts)
        codes = tracers.view(flat.shape).permute(_back(order))
        over_time = codes.unflatten(0, (steps, -1))
        if self.wants_spikes(site):
            all_codes = torch.cat([before[None], over_time])
            if min(self.settings.max_spike, site.hi - site.lo) > 127:
                all_codes = all_codes.to(torch.int16)  # int8 codes may lie further apart than int8 can say
            self.keep(site, all_codes.diff(dim=0))
        self.tracers[site.name] = over_time[-1].clone()
        return codes

    def _sums(self, site: SiteLike, u: Tensor) -> tuple[Tensor, After]:
        """Running sums; or integer sums with the factor and the bias that make running sums of them."""
        if not isinstance(u, Unscaled):
            return u, None
        # Whoever needed the scaled tensor may have changed it.
        if u.made or site.entry or self.code_dtype(site, u) != torch.int8:
            return u.scaled(), None
        if site.step_size.ndim and not u.moved.is_contiguous():
            return u.scaled(), None
        return u.moved, (u.scale, u.bias)

    def _walk(
        self, site: SiteLike, u: Tensor, tracer: Tensor, values: Tensor | None, after: After
    ) -> tuple[Tensor, Tensor]:
        """Tracers `[n, neurons]` and spikes `[n, B]` of a chunk; in its first steps the site may be held back."""
        batch, held = self.settings.batch, self.held(site)
        if values is not None and held:
            scale = site.step_size
            values[:held] = (tracer.view(-1, max(scale.numel(), 1)) * scale).view(-1)
        if held == self.steps:
            return tracer.repeat(held, 1), torch.zeros(held, batch, device=u.device)
        limits = (site.step_size, site.lo, site.hi, self.settings.max_spike)
        free = None if values is None else values[held:]
        tracers, counts = neuron.walk(u[held:], tracer, *limits, batch, free, after)
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


def _order(u: Tensor) -> list[int] | None:
    """The dimensions in the order in which they lie in memory, samples first; None if they do not lie in one piece.

    Example:
        >>> _order(torch.zeros(2, 3, 4, 5).transpose(1, 2)), _order(torch.zeros(2, 3)[:, :2])
        ([0, 2, 1, 3], None)
    """
    order = [0, *sorted(range(1, u.ndim), key=u.stride, reverse=True)]
    return order if u.permute(order).is_contiguous() else None


def _back(order: list[int]) -> list[int]:
    return [order.index(i) for i in range(len(order))]
