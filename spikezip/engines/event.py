"""The event engine: only what fired costs work. For the CPU.

It computes what the spike engine computes. But neurons are looked at only if their input has changed or they are on
the way to their codes, and everything else only at moments at which something that it reads has changed: a layer at
rest costs nothing. The moments of an advance are evaluated as one batch (`event_plan.py`), and a product adds what the
spikes bring where these are few (`event_neurons.py`).
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.event_neurons import TOGETHER, CompiledNeurons, LinearNeurons, Neurons, linear_source
from spikezip.engines.event_plan import Call, Evaluation, Folding, Group, Line, Step, make_groups
from spikezip.engines.spike import SpikeEngine
from spikezip.engines.state import Drive
from spikezip.engines.synapses import Pair
from spikezip.engines.walk import collect
from spikezip.errors import ConfigError
from spikezip.ops.compiled import numba_is_here
from spikezip.ops.neuron import Layer, Source
from spikezip.program.analysis import source
from spikezip.program.freeze import Frozen
from spikezip.program.layout import Layout
from spikezip.program.nodes import Function, Linear, Matmul, Node, Product, Site, Values, Weight


class EventEngine(SpikeEngine):
    """Values of heads are kept in `now`, as they are after the last step; `lines` say how they change in an advance."""

    name = "event"

    def __init__(self, network: Frozen, layout: Layout, inputs: Mapping[str, Any], drive: Drive) -> None:
        if network.device.type != "cpu":
            raise ConfigError(
                f"engine='event' computes on the CPU, and the network is on {network.device}: "
                "move it with snn.cpu(), or choose engine='folded' (engine='auto' does)"
            )
        super().__init__(network, layout, inputs, drive)
        self.compiles = numba_is_here() and network.dtype == torch.float32
        self.folding = Folding(network, layout, self.sizes, self.batch, self.constants)
        self.groups, self.same = make_groups(network)
        self.now: dict[str, Any] = {}
        self.lines: dict[str, Line] = {}
        self.layers: dict[str, Neurons] = {}
        self.inexact = {node.name for node in network.moving if not self._is_exact(node)}
        self.evaluations = {group.head.name: self._prepare(group) for group in self.groups}
        self.holds = {name: self.hold(site) for name, site in self.program.sites.items()}

    def advance(self, steps: int) -> list[Any]:
        """The outputs of further steps, one for each."""
        self.lines = {}
        for group in self.groups:
            changes = self._changes(group)
            if isinstance(group.head, Site):
                self._fire_steps(group, group.head, steps, changes)
            elif changes:
                name = group.head.name
                line = Line(changes, self._evaluate(group, changes), self.now.get(name), self._share(group))
                self.lines[name] = line
                self.now[name] = line.data[-1] if len(line.data) == 1 else line.data[-1].clone()  # a view keeps all
            for name in group.last:
                self.lines.pop(name, None)
        self.state.done += steps
        return [self._output(step) for step in range(steps)]

    def _changes(self, group: Group) -> list[int]:
        """The steps of this advance after which something that a group reads is new. In the first, all is."""
        lines = [self.lines[name].steps for name in group.reads if name in self.lines]
        first = [] if self.state.done else [0]
        if len(lines) == 1 and (not first or lines[0][0] == 0):
            return lines[0]
        return sorted(set(first).union(*lines))

    def _share(self, group: Group) -> list[float] | None:
        """Which share of the codes that a group moves changes at each moment; None if it does something else."""
        line = self.lines.get(group.reads[0]) if group.moves else None
        return None if line is None else line.share

    def _output(self, step: int) -> Any:
        def value(name: str) -> Any:
            known = self.same.get(name, name)
            if known in self.lines:
                return self.lines[known].after(step)
            return self.now[known] if known in self.now else self.constants[known]

        return collect(self.program.output, {name: value(name) for name in self.program.returned})

    # --- functions and products

    def _prepare(self, group: Group) -> Evaluation:
        """How a group is evaluated; neurons may take over the end of it, and read what is before."""
        head, steps, raw = group.head, group.inner, ""
        if isinstance(head, Site):
            neurons, raw = self._neurons(group, head)
            self.layers[head.name] = neurons
            steps = steps[:-1] if isinstance(neurons, LinearNeurons) else steps
        else:
            steps = (*steps, Step(head, head.reads))
        calls = [self._call(step, step.node.name == raw) for step in steps]
        # Sums of floats have an order: they are made step by step.
        folds = self.folding.suits(group) and self.inexact.isdisjoint(node.name for node, _ in steps)
        start = group.reads[0] if group.reads else head.reads[0]
        largest = max(prod(self.folding.shape(name)) for name in (head.name, *(step.node.name for step in steps)))
        return Evaluation(steps, calls, start, self.folding, folds, max(1, TOGETHER // max(1, largest)))

    def _is_exact(self, node: Node) -> bool:
        """Whether a node is no product, or one of integers."""
        if not isinstance(node, Product):
            return True
        if isinstance(node, Matmul):
            return None not in (source(self.program, node.a), source(self.program, node.b))
        weight = self.program[node.reads[1]]
        return isinstance(weight, Weight) and weight.bits is not None

    def _call(self, step: Step, raw: bool) -> Callable[[dict[str, Any], int], Any]:
        """How a node is evaluated, from the values that it reads; a raw one without its scale."""
        node, reads = step
        if isinstance(node, Function):
            return Call(node, self.folding)
        if isinstance(node, Values):
            scale, name = self.network.step_size(node.codes), node.codes
            return lambda values, _: values[name].to(scale.dtype) * scale  # not in place: wide codes are floats
        if node.name in self.inexact:
            dtype = self.network.dtype
            return lambda values, _: self._product(node, {name: values[name].to(dtype) for name in reads})
        if isinstance(node, Matmul):
            pair, a, b = self.pair(node), node.a, node.b
            if raw:
                return lambda values, _: _matmul(pair, values[a], values[b])
            return lambda values, _: pair.output(_matmul(pair, values[a], values[b]))
        synapse = self.synapse(node)
        x = synapse.node.x
        return lambda values, _: synapse.output(synapse.totals(values[x]))

    def _evaluate(self, group: Group, steps: list[int]) -> Tensor:
        """The value of a group's head after these steps, `[n, …]`; of a site, what arrives there."""
        evaluation, moments = self.evaluations[group.head.name], len(steps)
        if not group.reads:
            x: Tensor = self.constants[evaluation.last]
            return x.expand(moments, *x.shape)
        given = {name: self._at(name, steps) for name in group.reads}
        if not evaluation.folds:
            return torch.stack([evaluation.run({name: x[i] for name, x in given.items()}) for i in range(moments)])
        folded = {name: self.folding.fold(name, x) for name, x in given.items()}
        return self.folding.unfold(evaluation.last, evaluation.run(folded, moments), moments)

    def _at(self, name: str, steps: list[int]) -> Tensor:
        if name in self.lines:
            return self.lines[name].at(steps)
        x: Tensor = self.now[name]
        return x.expand(len(steps), *x.shape)

    # --- neurons

    def _neurons(self, group: Group, site: Site) -> tuple[Neurons, str]:
        """The neurons of a site, and the product whose scale they apply themselves, if there is one."""
        shape = self.folding.shape(site.name)
        scale = self.network.step_size(site.name)
        samples = self.batch if site.name in self.layout.prefix else 1
        plain = Neurons(site, prod(shape), samples, scale, self.drive.max_spike)
        if not self.compiles or not prod(shape):
            return plain, ""
        product = group.inner[-1].node if group.inner else None
        sums = samples, prod(shape) // (samples * shape[-1]), shape[-1]
        read, raw = Source(sums), ""
        if isinstance(product, Linear) and self._has_integer_sums(product) and self.folding.prefix(site.name) == 1:
            synapse, rows = self.synapse(product), prod(shape[:-1])
            if Layer.suits(linear_source(synapse, rows, samples), scale, site.lo, site.hi):
                linear = LinearNeurons(site, synapse, rows, samples, scale, self.drive.max_spike, group.moves)
                return linear, ""
        elif isinstance(product, Matmul) and product.name not in self.inexact:
            pair = self.pair(product)
            depth = self.folding.shape(product.a)[-1]
            if pair.factor.numel() == 1 and pair.accumulator(depth) == torch.float32:
                read, raw = Source(sums, pair.factor.reshape(1)), product.name
        if Layer.suits(read, scale, site.lo, site.hi):
            return CompiledNeurons(site, read, samples, scale, self.drive.max_spike), raw
        return plain, ""

    def _has_integer_sums(self, product: Linear) -> bool:
        """Whether a product is one of int8 codes with int8 weights, whose sums float32 holds."""
        if product.name in self.inexact:
            return False
        synapse = self.synapse(product)
        narrow = synapse.site.lo >= -128 and synapse.site.hi <= 127
        return narrow and [part.dtype for part in synapse.parts] == [torch.float32]

    def _fire_steps(self, group: Group, site: Site, steps: int, moments: list[int]) -> None:
        neurons, name, done = self.layers[site.name], site.name, self.state.done
        ramps = site.entry and self.ramp > 1
        if ramps:
            moments = list(range(min(max(self.ramp - done, 0), steps)))
        if not moments and not neurons.awake:
            self._write_down(site, torch.zeros(steps, self.batch, dtype=torch.int64), None, steps)
            return

        def arriving(some: list[int]) -> Tensor:
            u = self._evaluate(group, some)
            if ramps:
                u = u * self.share(done, steps, u)[some].view(-1, *(1 for _ in u.shape[1:]))
            return self._by_sample(site, u)

        if isinstance(neurons, LinearNeurons):
            neurons.share = self._share(group)
        held = min(max(self.holds[name] - done, 0), steps)
        together = self.evaluations[name].together
        codes, counts = neurons.advance(steps, held, moments, arriving, together)
        fired = counts.sum(dim=1).tolist()
        changed = [step for step in range(steps) if fired[step] or not (done or step)]
        if changed:
            first, last = changed[0] + 1, changed[-1] + 2
            some = codes[first:last] if last - first == len(changed) else codes[torch.tensor(changed) + 1]
            share = [fired[step] / neurons.codes.numel() for step in changed]
            self.lines[name] = Line(changed, self._in_shape(site, some), self.now.get(name), share)
            self.now[name] = self._in_shape(site, neurons.codes[None])[0]
        self._write_down(site, counts.expand(steps, self.batch), codes, steps)

    def _by_sample(self, site: Site, u: Tensor) -> Tensor:
        """`[n, …]` → `[n, neurons]`, sample after sample."""
        outer = self.folding.prefix(site.name)
        if outer > 1 and not isinstance(self.layers[site.name], LinearNeurons):
            u = u.reshape(len(u), outer, self.batch, -1).transpose(1, 2)
        return u.reshape(len(u), -1).contiguous()

    def _in_shape(self, site: Site, rows: Tensor) -> Tensor:
        """The other way round."""
        outer, shape = self.folding.prefix(site.name), self.folding.shape(site.name)
        if outer > 1:
            rows = rows.reshape(len(rows), self.batch, outer, -1).transpose(1, 2)
        return rows.reshape(len(rows), *shape)

    def _write_down(self, site: Site, counts: Tensor, codes: Tensor | None, steps: int) -> None:
        """Record the spikes of all steps; there are no codes if the layer rests."""
        self.recording.counts.setdefault(site.name, []).append(counts)
        self.state.tracers[site.name] = self.layers[site.name].codes
        if not self.recording.wants(site.name, self.drive):
            return
        if codes is None:
            spikes = torch.zeros(steps, *self.folding.shape(site.name), dtype=torch.int8)
        else:
            spikes = self._in_shape(site, codes.to(torch.int16).diff(dim=0))
        self.recording.keep(site.name, spikes, self.drive)

    def tracer(self, name: str) -> Tensor:
        return self._in_shape(self.program.sites[name], self.state.tracers[name][None])[0]


def _matmul(pair: Pair, a: Tensor, b: Tensor) -> Tensor:
    """The sums of a product of codes. Operands are brought in order on the way to floats: torch would do that twice."""
    dtype = pair.accumulator(a.shape[-1])
    return pair.total(_in_order(a, dtype), _in_order(b, dtype))


def _in_order(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.ndim > 1 and x.stride(-2) == 1 and x.stride(-1) != 1:  # a transpose, which products take as it is
        return _in_order(x.mT, dtype).mT
    return x.to(dtype, memory_format=torch.contiguous_format)
