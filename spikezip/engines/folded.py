"""The folded engine: the accumulator domain, with time folded into the batch.

All steps of a chunk go through a node at once, as a batch of `T·B` samples. Products are those of the quantized
network; only the neuron knows about time: a scan over the chunk, which carries the tracer into the next one. What does
not change over time is computed once for `B` samples, and repeated where it meets something that does.

Nodes that a kernel takes together are one step (`fuse.py`); here is what the engine does with each kind of step.
A tracer may lie in memory as its kernel needs it, but `reshape(B, -1)` always gives a row per sample.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spikezip.engines import graphs
from spikezip.engines.engine import Engine, Recording, State
from spikezip.engines.fuse import Attention, Branch, Norm, Products, Step, Sum, fuse
from spikezip.engines.synapses import Synapse, windows
from spikezip.engines.walk import collect
from spikezip.errors import ConfigError
from spikezip.ops import grid, kernels, neuron, norm
from spikezip.program.analysis import source
from spikezip.program.functions import function_value
from spikezip.program.nodes import (
    Convolution,
    Function,
    Linear,
    Matmul,
    Node,
    Product,
    Site,
    Values,
)  # fmt: skip

# The share of sites and samples that fire nothing from which on kernels look for them: where next to none rests, they
# are 6 to 12 % slower; where most do, 4 to 16 % faster (`benchmarks/resting.py`).
RESTS = 0.3


@dataclass(frozen=True)
class Layers:
    """Products of the same codes and their neurons, prepared for kernels: constants one after another.

    `orders` give the dimensions of each site's shape in the order in which the product's output has them.
    """

    branches: tuple[Branch, ...]
    orders: tuple[tuple[int, ...], ...]
    weight: Tensor
    factor: Tensor
    bias: Tensor | None
    scale: Tensor


class FoldedEngine(Engine):
    name = "folded"
    use_graphs = True  # on a GPU
    graph_refused = ""  # why chunks are not recorded as a graph
    weights_checked = False  # whether graphs of earlier runs are known to be of these weights
    in_place = False  # whether tracers are changed where they lie, as a recorded chunk must do it
    resting = False  # whether kernels look for what rests, and leave it out
    at_once: int | None = None  # the most steps that have fitted into the memory, once some have not

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        refused = self.refused(self.layout)
        if refused:
            raise ConfigError(f"engine='folded' cannot run this network: {refused}; choose engine='spike'")
        self.plan = self.program.derived(fuse)
        self.recording.counts = {name: [] for name in self.program.sites}  # in the order of execution
        self.steps, self.folded_sizes = 0, self.folding.sizes(1)  # of the chunk that is computed
        self.masks: dict[str, tuple[bool, Tensor | None]] = {}
        self._scales: dict[str, Tensor] = {}
        self._layers: dict[tuple[str, ...], Layers | None] = {}

    @staticmethod
    def refused(layout: Any) -> str:
        """Why time cannot be folded into the batch; empty if it can."""
        return f"samples are not independent of one another ({layout.mixed})" if layout.mixed else ""

    # --- a chunk of steps

    def advance(self, steps: int) -> list[Any]:
        """The outputs of further steps, `[T, …]` for each tensor: of all at once, or of as many as the memory holds."""
        outputs, wanted, too_many = [], self.state.done + steps, 0
        while self.state.done < wanted:
            n = min(wanted - self.state.done, self.at_once or steps)
            before = self._snapshot()
            try:
                self.resting = self._rests()
                outputs.append(collect(self.program.output, graphs.advance(self, n)))
                continue
            except torch.OutOfMemoryError:
                if n == 1:
                    raise
            # Outside of the handler, which holds on to what was computed.
            self.state, self.recording = before
            self.at_once, too_many = n // 2, n
            self.folding.forget()
            graphs.forget(self.program)
            torch.cuda.empty_cache()
        if too_many:
            warnings.warn(
                f"{too_many} steps at once do not fit into the memory of the GPU: taking {self.at_once}. "
                "A smaller batch would leave room for more.",
                stacklevel=2,
            )
        return outputs

    def chunk(self, steps: int) -> dict[str, Any]:
        """A chunk of steps, kernel by kernel: the values that the program returns, `[T, …]` for each tensor."""
        if steps != self.steps:
            self.steps, self.folded_sizes = steps, self.folding.sizes(steps)
            self.folding.forget()  # constants for another number of steps
        values: dict[str, Any] = {}
        for step in self.plan:
            self._run(step, values)
            for name in step.spent:
                values.pop(name, None)
        self.state.done += steps
        return {name: self._unfold(name, self._value(name, values)) for name in self.program.returned}

    def prepare(self) -> tuple[Any, ...]:
        """Make what is derived from weights, and return what holds it: inside a graph it could not be made."""
        for node in self.program.moving:
            if isinstance(node, Matmul):
                self.pair(node)
            elif isinstance(node, Product):
                self.synapse(node)
            elif isinstance(node, Site):
                self._scale(node.name)
        for step in self.plan:
            if isinstance(step, Products):
                self._prepared(step.branches)
        return self._products, self._scales, self._layers, self.network.tensors

    def _snapshot(self) -> tuple[State, Recording]:
        kept = self.recording
        counts, trains = ({name: list(x) for name, x in lists.items()} for lists in (kept.counts, kept.trains))
        return replace(self.state, tracers=dict(self.state.tracers)), replace(
            kept, counts=counts, trains=trains, neuron_spikes=dict(kept.neuron_spikes)
        )

    def _rests(self) -> bool:
        """Whether much of the network was at rest in the last steps, so that it pays to look for what rests."""
        chunks = [counts[-1] for counts in self.recording.counts.values() if counts]
        if not chunks or not kernels.on_gpu(chunks[0]):
            return False
        return bool((torch.stack(chunks)[:, len(chunks[0]) // 2 :] == 0).float().mean() >= RESTS)

    def _unfold(self, name: str, x: Any) -> Any:
        """`[…, T·B, …]` → `[T, …, B, …]`: what the program returns in each step."""
        if not isinstance(x, Tensor):
            return x
        return (
            self.folding.unfold(name, x, self.steps) if name in self.layout.prefix else x.expand(self.steps, *x.shape)
        )

    def _value(self, name: str, values: dict[str, Any]) -> Any:
        """A value of this chunk; what does not change over time is repeated for `T·B` samples, once it is needed."""
        return values[name] if name in values else self.folding.constant(name, self.steps)

    def _shape(self, node: Node) -> tuple[int, ...]:
        """The shape of a value for all steps of this chunk."""
        return self.folding.shape(node.name, self.steps)

    def _scale(self, site: str) -> Tensor:
        if site not in self._scales:
            self._scales[site] = self.network.step_size(site)
        return self._scales[site]

    # --- steps and nodes

    def _run(self, step: Step, values: dict[str, Any]) -> None:
        if isinstance(step, Norm):
            self._run_norm(step, values)
        elif isinstance(step, Sum):
            values[step.total] = grid.add_scaled(self._value(step.x, values), *self._added(step, values))
        elif isinstance(step, Products) and self._run_products(step, values):
            pass
        elif not (isinstance(step, Attention) and self._attend(step, values)):
            for node in step.nodes:
                values[node.name] = self._evaluate(node, values)

    def _evaluate(self, node: Node, values: dict[str, Any]) -> Any:
        if isinstance(node, Site):
            return self._fire(node, values)
        if isinstance(node, Matmul):
            pair = self.pair(node)
            total = pair.total(self._value(node.a, values), self._value(node.b, values))
            return total.mul_(pair.factor.to(total.dtype)).to(pair.dtype)
        if isinstance(node, (Linear, Convolution)):
            synapse = self.synapse(node)
            totals = synapse.totals(values[node.x])
            if isinstance(node, Linear) and _is_simple(synapse) and synapse.factor is not None:
                return grid.scale_bias(totals[0], synapse.factor, synapse.bias)  # one pass over the data
            return synapse.output(totals)
        if isinstance(node, Values):
            return values[node.codes] * self._scale(node.codes)
        assert isinstance(node, Function)
        return self._function(node, {name: self._value(name, values) for name in node.reads})

    def _function(self, node: Function, read: Mapping[str, Any]) -> Any:
        return function_value(node, read, self.folded_sizes, self.network.device)

    # --- neurons

    def _before(self, site: Site) -> Tensor:
        """The tracer of a site before this chunk."""
        tracer = self.state.tracers.get(site.name)
        if tracer is not None:
            return tracer
        dtype = torch.int8 if site.lo >= -128 and site.hi <= 127 else self.network.dtype
        return torch.zeros(math.prod(self.folding.shape(site.name)), dtype=dtype, device=self.network.device)

    def _neurons(self, site: Site, tracer: Tensor, scale: Tensor | None = None) -> neuron.Neurons:
        """A site for kernels, with its tracer (and scale) in the order in which they go through its neurons."""
        scale = self._scale(site.name) if scale is None else scale
        return neuron.Neurons(tracer, scale, site.lo, site.hi, self.drive.max_spike, self.batch)

    def _held(self, site: Site) -> int:
        """In how many of the chunk's first steps a site does not fire."""
        return min(max(self.hold(site) - self.state.done, 0), self.steps)

    def _walk(self, site: Site, tracer: Tensor, walk: Callable[[int], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Codes `[T, n]` and spikes `[T, B]` of a chunk; `walk` computes those behind the steps that are held back."""
        held = self._held(site)
        if not held:
            return walk(0)
        codes, counts = [tracer.expand(held, -1)], [torch.zeros(held, self.batch, device=tracer.device)]
        if held < self.steps:
            free, fired = walk(held)
            codes, counts = [*codes, free], [*counts, fired]
        return torch.cat(codes), torch.cat(counts)

    def _fire(self, site: Site, values: dict[str, Any]) -> Tensor:
        """A chunk of steps of a layer of neurons: their codes in every step."""
        if site.entry:  # the same in every step
            rows = self._rows(site, self.folding.still(site.u), 1).expand(self.steps, -1)
            if self.ramp > 1:
                rows = rows * self.share(self.state.done, self.steps, rows)[:, None]
        else:
            rows = self._rows(site, self._value(site.u, values), self.steps)
        neurons = self._neurons(site, self._before(site).reshape(-1))
        codes, counts = self._walk(site, neurons.tracer, lambda held: neuron.walk(rows[held:], neurons))
        over_time = codes.view(self.steps, self.batch, self.folding.prefix(site.name), -1)
        value = over_time.permute(2, 0, 1, 3).reshape(self._shape(site))
        self._note(site, value, counts)
        self._move_on(site, codes[-1])
        return value

    def _rows(self, site: Site, u: Tensor, steps: int) -> Tensor:
        """Neurons sample after sample, `[T, B · prefix · rest]`."""
        outer = self.folding.prefix(site.name)
        return u.reshape(outer, steps, self.batch, -1).permute(1, 2, 0, 3).reshape(steps, -1)

    def _note(self, site: Site, codes: Tensor, counts: Tensor) -> None:
        """Write down what a site has fired; its tracer is still that of the chunk before."""
        self.recording.counts[site.name].append(counts)
        if self.recording.wants(site.name, self.drive):
            rows = torch.cat([self._before(site).reshape(1, -1), self._rows(site, codes, self.steps)])
            self.recording.keep(
                site.name, self.folding.in_shape(site.name, rows.to(torch.int16).diff(dim=0)), self.drive
            )

    def _move_on(self, site: Site, last: Tensor, own: bool = False) -> None:
        """Where a site's tracer stands after this chunk: a copy, unless it has memory of its own."""
        if not self.in_place:
            self.state.tracers[site.name] = last if own else last.clone()
        elif last.data_ptr() != self.state.tracers[site.name].data_ptr():
            self.state.tracers[site.name].copy_(last.reshape(self.state.tracers[site.name].shape))

    def tracer(self, name: str) -> Tensor:
        return self.folding.in_shape(name, self.state.tracers[name].reshape(1, -1))[0]

    def _moved(self, name: str) -> Tensor | None:
        """Spikes `[T, B]` of the site whose codes a value consists of: where there are none, it is as it was before.

        None unless kernels are to look at that.
        """
        site = source(self.program, name) if self.resting else None
        return self.recording.counts[site.name][-1] if isinstance(site, Site) else None

    # --- products with neurons behind them

    def _run_products(self, step: Products, values: dict[str, Any]) -> bool:
        """Products and neurons in one kernel on a GPU, else without scaling the sums; False where that is not exact."""
        codes = values[step.reads[0]]
        together = kernels.on_gpu(codes) and not any(self._held(branch.site) for branch in step.branches)
        groups = [step.branches] if together else [(branch,) for branch in step.branches]
        layers = [found for group in groups if (found := self._prepared(group)) is not None]
        if len(layers) < len(groups) or codes.dtype != torch.int8:
            return False
        for group in layers:
            self._walk_products(group, codes, values)
        return True

    def _walk_products(self, layers: Layers, codes: Tensor, values: dict[str, Any]) -> None:
        branches, site, product = layers.branches, layers.branches[0].site, layers.branches[0].product
        if isinstance(product, Convolution):
            codes = windows(codes, product, self.synapse(product).kernel)
        rows, moved = codes.reshape(self.steps, -1, codes.shape[-1]), self._moved(product.x)
        tracer = _stacked([self._in_product(b.site, order) for b, order in zip(branches, layers.orders, strict=True)])

        neurons = self._neurons(site, tracer, layers.scale)

        def walk(held: int) -> tuple[Tensor, Tensor]:
            given = layers.weight, layers.factor, layers.bias, neurons, None if moved is None else moved[held:]
            codes, counts = neuron.walk_products(rows[held:], *given)
            return (codes, counts) if len(branches) > 1 else (codes[0], counts[0])

        # Several products go together only if none of them is held back.
        walked, counts = walk(0) if len(branches) > 1 else (x[None] for x in self._walk(site, tracer[0], walk))
        for branch, each, fired in zip(branches, walked, counts, strict=True):
            value = self._in_site(branch, each.view(self._product_shape(branch)))
            self._note(branch.site, value, fired)
            values[branch.site.name] = value
        last = tracer.copy_(walked[:, -1]) if self.in_place else walked[:, -1].clone()
        for branch, order, each in zip(branches, layers.orders, last, strict=True):
            shape = self.folding.shape(branch.site.name)
            back = [order.index(i) for i in range(len(order))]
            self._move_on(branch.site, each.view([shape[i] for i in order]).permute(back), own=True)

    def _in_product(self, site: Site, order: tuple[int, ...]) -> Tensor:
        """The tracer of a site in the order of the product's output, `[n]`."""
        return self._before(site).reshape(self.folding.shape(site.name)).permute(order).reshape(-1)

    def _in_site(self, branch: Branch, x: Tensor) -> Tensor:
        """A product's output, channels last, as its site reads it."""
        x = x if isinstance(branch.product, Linear) else x.movedim(-1, 1)
        for node in branch.moves:
            x = self._function(node, {node.reads[0]: x})
        return x

    def _product_shape(self, branch: Branch) -> tuple[int, ...]:
        """The shape of a product with its channels last."""
        shape = self._shape(branch.product)
        return shape if isinstance(branch.product, Linear) else (shape[0], *shape[2:], shape[1])

    def _prepared(self, branches: tuple[Branch, ...]) -> Layers | None:
        """Products and their neurons for kernels, made once for this run; None where these cannot take them."""
        names = tuple(branch.site.name for branch in branches)
        if names not in self._layers:
            self._layers[names] = self._make_layers(branches)
        return self._layers[names]

    def _make_layers(self, branches: tuple[Branch, ...]) -> Layers | None:
        synapses = [self.synapse(branch.product) for branch in branches]
        orders = [order for branch in branches if (order := self._order(branch)) is not None]
        exact = all(_is_simple(synapse) and synapse.parts[0].weight.dtype == torch.int8 for synapse in synapses)
        if not exact or len(orders) < len(branches):
            return None
        biases = [synapse.bias for synapse in synapses if synapse.bias is not None]
        return Layers(
            branches,
            tuple(orders),
            _stacked([synapse.parts[0].weight for synapse in synapses]).contiguous(),
            _stacked([synapse.factor for synapse in synapses if synapse.factor is not None]),
            _stacked(biases) if biases else None,
            _stacked([self._scale(branch.site.name) for branch in branches]),
        )

    def _order(self, branch: Branch) -> tuple[int, ...] | None:
        """The site's dimensions as the product has them; None if what lies between copies its elements."""
        product = torch.empty(self._product_shape(branch), device="meta")
        moved = self._in_site(branch, product)
        order = tuple(sorted(range(moved.ndim), key=moved.stride, reverse=True))
        viewed = moved.untyped_storage()._cdata == product.untyped_storage()._cdata
        return order if viewed and moved.permute(order).is_contiguous() else None

    # --- residual sums and LayerNorm

    def _added(self, step: Sum, values: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The codes that a sum adds, moved as their values were, and their scale."""
        codes = values[step.codes]
        for node in step.moves:
            others = {name: self._value(name, values) for name in node.reads[1:]}
            codes = self._function(node, {**others, node.reads[0]: codes})
        return codes, self._scale(step.codes)

    def _run_norm(self, step: Norm, values: dict[str, Any]) -> None:
        site, total, added = step.site, step.sum, None
        neurons = self._neurons(site, self._before(site).reshape(-1))
        weight, bias = (None if name is None else self.folding.still(name) for name in (step.weight, step.bias))
        x = self._value(step.norm.reads[0] if total is None else total.x, values)

        def rows(x: Tensor) -> Tensor:
            return x.reshape(self.steps, -1, x.shape[-1])

        if total is not None:
            codes, size = self._added(total, values)
            if self._held(site):  # in these steps, the kernel would not make the sum
                x = values[total.total] = grid.add_scaled(x, codes, size)
            else:
                added = rows(codes), size
        read = rows(x)

        def walk(held: int) -> tuple[Tensor, Tensor]:
            summed, walked, counts = norm.walk_norm(read[held:], weight, bias, step.eps, neurons, added)
            if total is not None and added is not None:
                values[total.total] = summed.view(x.shape)
            return walked, counts

        walked, counts = self._walk(site, neurons.tracer, walk)
        values[site.name] = walked.view(self._shape(site))
        self._note(site, values[site.name], counts)
        self._move_on(site, walked[-1])

    # --- attention

    def mask(self, step: Attention) -> tuple[bool, Tensor | None]:
        """Whether the kernel takes a mask, and that `[masks, queries, keys]`; None if it is zero everywhere.

        Looked at once for each run: it makes a GPU wait.
        """
        if step.mask is None:
            return True, None
        if step.mask not in self.masks:
            *rows, queries, keys = self.folding.shape(step.scores.name)
            mask = self.folding.still(step.mask)
            mask = mask[(None,) * (len(rows) + 2 - mask.ndim)]
            fits = mask.dtype == torch.float32 and len(mask) in (1, rows[0]) and mask.shape[1:-2].numel() == 1
            padded = None
            if fits and bool(mask.any()):
                padded = mask.new_zeros(len(mask), queries, -(-keys // 4) * 4)[..., :keys]  # in tiles of 16 bytes
                padded.copy_(mask.flatten(0, -3))
            self.masks[step.mask] = fits, padded
        return self.masks[step.mask]

    def _attend(self, step: Attention, values: dict[str, Any]) -> bool:
        """Attention in one kernel, which keeps scores and probabilities to itself; False where it cannot do that."""
        p, o, scores, mix = step.p, step.o, self.pair(step.scores), self.pair(step.mix)
        q = values[step.scores.a]
        if not kernels.on_gpu(q) or not kernels.moves_tiles(q.device) or q.ndim not in (3, 4):
            return False
        from spikezip.ops.sesa import triton  # only where it is used: importing the library must not need it

        k = values[step.scores.b].transpose(-1, -2) if step.k is None else values[step.k].squeeze(2)
        v = values[step.mix.b] if step.v is None else values[step.v].squeeze(2)
        sums = scores.accumulator(q.shape[-1]), mix.accumulator(k.shape[-2])
        fits, mask = self.mask(step)
        if (
            not (fits and triton.fits(q) and v.shape[-1] == q.shape[-1])
            or any(x.dtype != torch.int8 or len(x) != len(q) for x in (q, k, v))
            or any(dtype != torch.float32 for dtype in sums)
            or any(self.recording.wants(site.name, self.drive) for site in (p, o))
            or len(q) % (self.steps * self.batch)
        ):
            return False

        def by_token(x: Tensor) -> Tensor:
            """`[T, rows, tokens, heads, width]`; without a dimension for heads, each is a row."""
            return (x.transpose(1, 2) if x.ndim == 4 else x.unsqueeze(2)).unflatten(0, (self.steps, -1))

        def layer(site: Site, tracer: Tensor) -> triton.Layer:
            return triton.Layer(tracer, self._scale(site.name), site.lo, site.hi, self._held(site))

        turned = by_token(q), by_token(k), by_token(v)
        _, rows, queries, heads, width = turned[0].shape
        p_layer = layer(p, self._before(p).reshape(rows, heads, queries, k.shape[-2]))
        o_layer = layer(o, self._before(o).reshape(rows, heads, queries, width).transpose(1, 2))
        found = [self._moved(name) for name in (step.scores.a, step.scores.b, step.mix.b)]
        moved = [counts for counts in found if counts is not None]  # of all three, or of none
        out, last, p_fired, o_fired = triton.attention(
            *turned, mask, p_layer, o_layer, scores.factor, mix.factor, self.drive.max_spike, self.batch,
            self.in_place, moved,
        )  # fmt: skip
        values[o.name] = out.flatten(0, 1).transpose(1, 2).reshape(self._shape(o))
        self.recording.counts[p.name].append(p_fired)
        self.recording.counts[o.name].append(o_fired)
        self._move_on(p, last, own=True)
        self._move_on(o, out[-1].transpose(1, 2))
        return True


def _is_simple(synapse: Synapse) -> bool:
    """Whether sums are exact in float32, and scaled with a factor for each channel."""
    factor, part = synapse.factor, synapse.parts[0]
    exact = len(synapse.parts) == 1 and part.dtype == synapse.dtype == torch.float32
    return exact and factor is not None and factor.ndim == 1


def _stacked(tensors: list[Tensor]) -> Tensor:
    """Tensors of one size, one after another: as they are, where they lie so in memory already."""
    first, size = tensors[0], tensors[0].numel()
    start, storage = first.storage_offset(), first.untyped_storage().data_ptr()
    if len(tensors) == 1 or all(
        x.is_contiguous() and x.storage_offset() == start + i * size and x.untyped_storage().data_ptr() == storage
        for i, x in enumerate(tensors)
    ):
        return first.as_strided((len(tensors), *first.shape), (size, *first.stride()))
    return torch.stack(tensors)
