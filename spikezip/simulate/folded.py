"""The folded engine: the accumulator domain, with time folded into the batch.

All steps of a chunk go through a layer at once, as a batch of `n·B`. Products are those of the quantized network;
only the neuron knows about time: a scan over the chunk, which carries the tracer into the next one.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spikezip.execution import SiteLike
from spikezip.ops import kernels, neuron, norm
from spikezip.ops.compiled import numba_is_here
from spikezip.simulate import graphs
from spikezip.simulate.engine import Engine
from spikezip.simulate.fused import attend
from spikezip.simulate.outputs import map_tensors, stack_outputs
from spikezip.spiking.norm import Normed
from spikezip.spiking.repeated import Repeated
from spikezip.spiking.unscaled import Product, Sum, Unscaled, plain

After = tuple[Tensor, Tensor | None] | None
Sums = Tensor | Product  # among tensors also a `Normed`, a LayerNorm that waits


class FoldedEngine(Engine):
    in_place = False  # whether tracers are changed where they lie, as a graph must do it, which is replayed
    resting = False  # whether kernels look for what rests, and leave it out
    at_once: int | None = None  # the most steps that have fitted into the memory, once some have not

    def takes_unscaled(self, total: Tensor) -> bool:
        return kernels.on_gpu(total) or (total.dtype == torch.int32 and numba_is_here())

    def defers(self, codes: Tensor, weight: Tensor) -> bool:
        return codes.dtype == weight.dtype == torch.int8 and kernels.on_gpu(codes)

    def attend(
        self, owner: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float
    ) -> tuple[Tensor, Tensor] | None:
        return attend(self, owner, q, k, v, mask, scaling)

    def norm(self, owner: nn.LayerNorm, x: Tensor) -> Tensor:
        if not norm.takes(x, owner.weight, owner.bias):
            return super().norm(owner, plain(x))
        return Normed.of(x if isinstance(x, Sum) else plain(x), owner)

    def moved(self, source: str) -> Tensor | None:
        """Spikes `[n, B]` of a site in this advance: where there are none, what reads it gets what it got before.

        None unless kernels are to look at that, or if the site has not fired yet.
        """
        fired = self.resting and source in self._fired_here and self.spike_counts[source]
        return self.spike_counts[source][-1] if fired else None

    def advance(self, network: Any, inputs: dict[str, Any], steps: int) -> Any:
        """As many steps at once as are asked for, or as the memory of the GPU holds."""
        outputs, wanted, too_many = [], self.done + steps, 0
        while self.done < wanted:
            n = min(wanted - self.done, self.at_once or steps)
            before, full = self.snapshot(), False
            try:
                self.begin(n)
                outputs.append(graphs.advance(self, network, inputs, n))
                self.end()
            except torch.OutOfMemoryError:
                if n == 1:
                    raise
                full = True
            if full:  # outside of the handler, which holds on to what was computed
                self.go_back(before)
                self.at_once, too_many = n // 2, n
                graphs.forget()
                torch.cuda.empty_cache()
        if too_many:
            warnings.warn(
                f"{too_many} steps at once do not fit into the memory of the GPU: taking {self.at_once}. "
                "A smaller batch would leave room for more.",
                stacklevel=2,
            )
        return outputs[0] if len(outputs) == 1 else stack_outputs(outputs)

    def run(self, network: Any, inputs: dict[str, Any], steps: int) -> Any:
        """A chunk of steps, launched kernel by kernel. The clock is the caller's."""
        self.steps = steps
        folded = {k: self._fold(v) if isinstance(v, Tensor) else v for k, v in inputs.items()}
        return map_tensors(network(**folded), self._unfold)

    def _fold(self, x: Tensor) -> Tensor:
        """`[B, …]` → `[n·B, …]`, time first; tensors that are shared by the batch stay as they are."""
        if x.ndim == 0 or x.shape[0] != self.settings.batch:
            return x
        return x.repeat(self.steps, *[1] * (x.ndim - 1))

    def _unfold(self, x: Tensor) -> Tensor:
        return plain(x).view(self.steps, self.settings.batch, *x.shape[1:])

    def code_dtype(self, site: SiteLike, like: Tensor) -> torch.dtype:
        return torch.int8 if site.lo >= -128 and site.hi <= 127 else like.dtype

    def values(self, site: SiteLike, u: Tensor) -> tuple[Tensor, Tensor]:
        """Values wait in their codes: products want these, and a sum makes values as it adds them."""
        codes = self.codes(site, u)
        if codes.dtype != torch.int8:
            return codes * site.step_size, codes
        return Unscaled.of(codes, site.step_size, None, site), codes

    def codes(self, site: SiteLike, u: Tensor) -> Tensor:
        """The tracers of all steps."""
        return self.codes_of(((site, u),))[0]

    def codes_of(self, inputs: Sequence[tuple[SiteLike, Tensor]]) -> list[Tensor]:
        waiting = [self._prepare(site, u) for site, u in inputs]
        walked = self._walk_products(waiting) if _alike(waiting) else [self._walk(each) for each in waiting]
        return [self._finish(each, *result) for each, result in zip(waiting, walked, strict=True)]

    def _prepare(self, site: SiteLike, u: Tensor) -> "_Waiting":
        """Neurons stand in the order in which their sums lie in memory: none is copied."""
        steps = self.steps
        sums, after = self._sums(site, u)
        order = list(range(u.ndim))
        if (
            not isinstance(sums, (Normed, Repeated)) and not site.step_size.ndim
        ):  # channels that have a scale each stay last
            order = _order(u.moved if isinstance(u, Unscaled) and after is not None else plain(u)) or order
        shape = (u.shape[0] // steps, *u.shape[1:])
        before = self.tracer(site, torch.empty((), dtype=u.dtype, device=u.device).expand(shape))
        if isinstance(sums, Repeated):
            sums = sums.once.reshape(1, -1).expand(steps, -1)
        elif not isinstance(sums, (Product, Normed)):
            sums = self._rows(site, sums.permute(order).contiguous())
        return _Waiting(site, sums, after, [u.shape[i] for i in order], order, before, self.held(site))

    def _finish(self, waiting: "_Waiting", tracers: Tensor, counts: Tensor) -> Tensor:
        site, before = waiting.site, waiting.before
        self.spike_counts[site.name].append(counts)
        codes = tracers.view(waiting.shape).permute(_back(waiting.order))
        over_time = codes.unflatten(0, (self.steps, -1))
        if self.wants_spikes(site):
            all_codes = torch.cat([before[None], over_time])
            if min(self.settings.max_spike, site.hi - site.lo) > 127:
                all_codes = all_codes.to(torch.int16)  # int8 codes may lie further apart than int8 can say
            self.keep(site, all_codes.diff(dim=0))
        self.move_on(site, over_time[-1])
        return codes

    def move_on(self, site: SiteLike, last: Tensor, own: bool = False) -> None:
        """Where a site's tracers stand after this chunk: a copy, unless they have memory of their own."""
        if self.in_place:
            if last.data_ptr() != self.tracers[site.name].data_ptr():
                self.tracers[site.name].copy_(last)
        else:
            self.tracers[site.name] = last if own else last.clone()

    def _rows(self, site: SiteLike, flat: Tensor) -> Tensor:
        """Running sums `[n, neurons]`; while the input rises, of its share."""
        if site.entry and self.settings.ramp > 1:
            ramp = self.ramp(flat.device, flat.dtype).repeat_interleave(flat.shape[0] // self.steps)
            flat = flat * ramp.view(-1, *[1] * (flat.ndim - 1))
        return flat.view(self.steps, -1)

    def _sums(self, site: SiteLike, u: Tensor) -> tuple[Sums, After]:
        """Running sums; or integer sums, perhaps still to be computed, with the factor and the bias that scale them."""
        if isinstance(u, Normed) and (u.made or site.entry or self.code_dtype(site, u) != torch.int8):
            return u.scaled(), None
        if isinstance(u, Repeated) and not u.made and neuron.takes_steady(u.once):
            return u, None
        if not isinstance(u, Unscaled):
            return u if isinstance(u, Normed) else plain(u), None
        # Whoever needed the scaled tensor may have changed it.
        whole = "whole" in u.made or site.entry or u.site is not None or not u.scale.ndim
        if whole or self.code_dtype(site, u) != torch.int8 or u.numel() != _size(u):
            return u.scaled(), None
        if not u.moved.is_contiguous() and (site.step_size.ndim or _order(u.moved) is None):
            return u.scaled(), None
        return (u.product if u.product is not None and u.waits else u.total()), (u.scale, u.bias)

    def _walk(self, waiting: "_Waiting") -> tuple[Tensor, Tensor]:
        """Tracers `[n, neurons]` and spikes `[n, B]` of a chunk; in its first steps the site may be held back."""
        site, u, held, tracer = waiting.site, waiting.sums, waiting.held, waiting.tracer()
        batch = self.settings.batch
        if held == self.steps:
            return tracer.repeat(held, 1), torch.zeros(held, batch, device=tracer.device)
        limits = (tracer, site.step_size, site.lo, site.hi, self.settings.max_spike, batch)
        if isinstance(u, Product):
            [(tracers, counts)] = self._walk_products([waiting])
        elif isinstance(u, Normed):
            tracers, counts = self._walk_norm(u, held, limits)
        else:
            tracers, counts = neuron.walk(u[held:], *limits, waiting.after)
        if held:
            tracers = torch.cat([tracer.expand(held, -1), tracers])
            counts = torch.cat([counts.new_zeros(held, batch), counts])
        return tracers, counts

    def _walk_norm(self, u: Normed, held: int, limits: Any) -> tuple[Tensor, Tensor]:
        """Neurons behind a LayerNorm, with the residual sum in front of it where that is still to come."""
        layer = u.layer

        def rows(x: Tensor) -> Tensor:
            return x.reshape(self.steps, -1, x.shape[-1])

        if isinstance(u.x, Sum) and not u.x.made and not held:
            late = u.x
            added = (rows(late.codes), late.scale)
            x, tracers, counts = norm.walk_sum(rows(late.x), added, layer.weight, layer.bias, layer.eps, *limits)
            late.made.append(x.view(late.shape))
            return tracers, counts
        return norm.walk_norm(rows(plain(u.x))[held:], layer.weight, layer.bias, layer.eps, *limits)

    def _walk_products(self, waiting: list["_Waiting"]) -> list[tuple[Tensor, Tensor]]:
        """Products of the same codes, for as many steps, with neurons of the same range: together."""
        one, products = waiting[0], [each.sums for each in waiting if isinstance(each.sums, Product)]
        afters = [each.after for each in waiting if each.after is not None]  # products come with factor and bias
        codes = products[0].codes.reshape(self.steps, -1, products[0].codes.shape[-1])[one.held :]
        moved = self.moved(products[0].source)
        biases = [bias for _, bias in afters if bias is not None]
        tracers, counts = neuron.walk_products(
            codes,
            _stacked([product.weight for product in products]),
            _stacked([factor for factor, _ in afters]),
            _stacked(biases) if biases else None,
            _stacked([each.tracer() for each in waiting]),
            _stacked([each.site.step_size for each in waiting]),
            *(one.site.lo, one.site.hi, self.settings.max_spike, self.settings.batch),
            moved if moved is None else moved[one.held :],
        )
        return list(zip(tracers, counts, strict=True))

    def inject(self, owner: nn.Module, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """The input does not change: its layer is evaluated once, and repeated for every step."""
        if owner not in self.injected:
            self.injected[owner] = layer(x[: x.shape[0] // self.steps])
        once = self.injected[owner]
        if self.settings.ramp == 1 and kernels.on_gpu(once):
            return Repeated.of(once, self.steps)
        return once.repeat(self.steps, *[1] * (once.ndim - 1))


class _Waiting(NamedTuple):
    """A site whose neurons are about to walk: their sums, how these are scaled, and how they lie in memory."""

    site: SiteLike
    sums: Sums
    after: After
    shape: list[int]
    order: list[int]
    before: Tensor
    held: int

    def tracer(self) -> Tensor:
        return self.before.permute(self.order).reshape(-1)


def _alike(waiting: list[_Waiting]) -> bool:
    """Whether these are products that may go together: of the same codes, of one size, with neurons of one kind."""

    def kind(each: _Waiting) -> tuple[Any, ...] | None:
        if not isinstance(each.sums, Product) or each.after is None or each.held:
            return None
        site = each.site
        scale, bias = site.step_size, each.after[1]
        return id(each.sums.codes), each.sums.weight.shape, site.lo, site.hi, scale.shape, scale.dtype, bias is None

    kinds = {kind(each) for each in waiting}
    return len(waiting) > 1 and len(kinds) == 1 and None not in kinds


def _stacked(tensors: list[Tensor]) -> Tensor:
    return tensors[0][None] if len(tensors) == 1 else torch.stack(tensors)


def _size(u: Unscaled) -> int:
    """How many integers a tensor stands for, before anything was cut off."""
    return math.prod(u.product.shape) if u.product is not None else u.made["total"].numel()


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
