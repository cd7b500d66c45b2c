"""The event engine: only what fired costs work. For the CPU.

It computes what the spike engine computes. But neurons are looked at only if their input has changed or they are on
the way to their codes, and everything else only after steps in which something that it reads has changed: a layer at
rest costs nothing.

Nodes form groups. The value of the last node of a group, its head, is kept; what the others compute is of use to the
head alone. A group goes through all steps of an advance before the next one has its turn: then it is known in which of
them something that it reads has changed, and it is evaluated for these *moments* only, as one batch. A product adds
what the spikes bring where these are few (`event_neurons.py`).
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spikezip.engines.engine import Drive
from spikezip.engines.event_neurons import TOGETHER, CompiledNeurons, LinearNeurons, Neurons, linear_source
from spikezip.engines.spike import SpikeEngine
from spikezip.engines.synapses import Pair
from spikezip.engines.walk import Folding, collect
from spikezip.errors import ConfigError
from spikezip.ops.compiled import numba_is_here
from spikezip.ops.neuron import Layer, Source
from spikezip.program.analysis import source
from spikezip.program.freeze import Frozen
from spikezip.program.functions import KINDS, Kind, evaluate
from spikezip.program.layout import Layout
from spikezip.program.nodes import (
    Function,
    Linear,
    Matmul,
    Node,
    Product,
    Program,
    Ref,
    Site,
    Values,
    Weight,
    map_arguments,
)  # fmt: skip
from spikezip.program.sizes import Size


@dataclass(frozen=True)
class Line:
    """How a value changes during an advance: `data` holds what it is after each of these steps, `[n, …]`.

    `before` is what it was; there is none in the first step of a run, in which all is new. `share` is, for codes, which
    share of them changed at each step, at most.
    """

    steps: list[int]
    data: Tensor
    before: Tensor | None
    share: list[float] | None = None

    def at(self, steps: list[int]) -> Tensor:
        """The value after each of these steps, `[n, …]`."""
        if steps == self.steps:
            return self.data
        first = bisect_right(self.steps, steps[0]) - 1
        if first >= 0 and (len(steps) == 1 or self.steps[first : first + len(steps)] == steps):
            return self.data[first : first + len(steps)]
        return torch.stack([self.after(step) for step in steps])

    def after(self, step: int) -> Tensor:
        """The value after one step."""
        number = bisect_right(self.steps, step) - 1
        if number >= 0:
            return self.data[number]
        assert self.before is not None
        return self.before


class Step(NamedTuple):
    """A node of the program, and the names of what it reads."""

    node: Node
    reads: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """A head, the nodes that are evaluated for it before, and the values of other heads that these read.

    `last` are values of which it is the last reader. `moves` says that the inner nodes, but for a product at the end,
    do nothing but move the elements of the one value that is read.
    """

    head: Node
    inner: tuple[Step, ...]
    reads: tuple[str, ...]
    last: tuple[str, ...]
    moves: bool


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
        self.groups, self.same = self.program.derived(make_groups)
        self.now: dict[str, Any] = {}
        self.lines: dict[str, Line] = {}
        self.layers: dict[str, Neurons] = {}
        self.inexact = {node.name for node in self.program.moving if not self._is_exact(node)}
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

    def _prepare(self, group: Group) -> "Evaluation":
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
        folds = self._can_fold(group) and self.inexact.isdisjoint(node.name for node, _ in steps)
        start = group.reads[0] if group.reads else head.reads[0]
        largest = max(prod(self.folding.shape(name)) for name in (head.name, *(step.node.name for step in steps)))
        return Evaluation(steps, calls, start, self.folding, folds, max(1, TOGETHER // max(1, largest)))

    def _can_fold(self, group: Group) -> bool:
        """Whether all moments of a group can be evaluated as one batch: it is known where the samples lie."""
        names = (group.head.name, *group.reads)
        return not self.layout.mixed and all(name in self.layout.prefix for name in names)

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
            self.lines[name] = Line(changed, self.folding.in_shape(name, some), self.now.get(name), share)
            self.now[name] = self.folding.in_shape(name, neurons.codes[None])[0]
        self._write_down(site, counts.expand(steps, self.batch), codes, steps)

    def _by_sample(self, site: Site, u: Tensor) -> Tensor:
        """`[n, …]` → `[n, neurons]`, sample after sample."""
        outer = self.folding.prefix(site.name)
        if outer > 1 and not isinstance(self.layers[site.name], LinearNeurons):
            u = u.reshape(len(u), outer, self.batch, -1).transpose(1, 2)
        return u.reshape(len(u), -1).contiguous()

    def _write_down(self, site: Site, counts: Tensor, codes: Tensor | None, steps: int) -> None:
        """Record the spikes of all steps; there are no codes if the layer rests."""
        self.recording.counts.setdefault(site.name, []).append(counts)
        self.state.tracers[site.name] = self.layers[site.name].codes
        if not self.recording.wants(site.name, self.drive):
            return
        if codes is None:
            spikes = torch.zeros(steps, *self.folding.shape(site.name), dtype=torch.int8)
        else:
            spikes = self.folding.in_shape(site.name, codes.to(torch.int16).diff(dim=0))
        self.recording.keep(site.name, spikes, self.drive)

    def tracer(self, name: str) -> Tensor:
        return self.folding.in_shape(name, self.state.tracers[name][None])[0]


def _matmul(pair: Pair, a: Tensor, b: Tensor) -> Tensor:
    """The sums of a product of codes. Operands are brought in order on the way to floats: torch would do that twice."""
    dtype = pair.accumulator(a.shape[-1])
    return pair.total(_in_order(a, dtype), _in_order(b, dtype))


def _in_order(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.ndim > 1 and x.stride(-2) == 1 and x.stride(-1) != 1:  # a transpose, which products take as it is
        return _in_order(x.mT, dtype).mT
    return x.to(dtype, memory_format=torch.contiguous_format)


# --- what is evaluated together


def make_groups(program: Program) -> tuple[list[Group], dict[str, str]]:
    """The groups of a network, in the order of execution, and values that have another name in them."""
    steps, same = _steps(program)
    moving = {step.node.name for step in steps}
    returned = {same.get(name, name) for name in program.returned}
    # Tuples are no values to be kept, and values of codes are made faster than they are fetched: all readers evaluate
    # these.
    several = {reads[0] for node, reads in steps if isinstance(node, Function) and node.op == "getitem"}
    several |= {node.name for node, _ in steps if isinstance(node, Values)} - returned
    readers: dict[str, set[int]] = {name: set() for name in moving}  # value → groups by number, from the last
    members: list[list[Step]] = []
    for step in reversed(steps):
        name = step.node.name
        groups = readers[name]
        if name not in several and (isinstance(step.node, Site) or name in returned or len(groups) > 1):
            groups = {len(members)}
            members.append([])
        for number in groups:
            members[number].append(step)
        for read in step.reads:
            if read in moving:
                readers[read] |= groups
    seen: set[str] = set(returned)
    found: list[Group] = []
    for own in members:  # from the last to the first
        own.reverse()
        names = {node.name for node, _ in own}
        reads = tuple({name: None for _, reads in own for name in reads if name in moving and name not in names})
        last = tuple(name for name in reads if name not in seen)
        seen.update(reads)
        *inner, head = own
        movers = inner[:-1] if inner and isinstance(inner[-1].node, Product) else inner
        moves = len(reads) == 1 and all(_is_move(node) for node, _ in movers)
        found.append(Group(head.node, tuple(inner), reads, last, moves))
    return found[::-1], same


def _steps(program: Program) -> tuple[list[Step], dict[str, str]]:
    """The nodes that vary over time, without those whose value is the same as another one; these by its name."""
    same: dict[str, str] = {}
    values_of: dict[str, str] = {}
    steps: list[Step] = []
    for node in program.moving:
        if any(name in same for name in node.reads):
            node = node.reading(lambda name: same.get(name, name))
        if isinstance(node, Function) and node.op in _SAME:
            same[node.name] = node.reads[0]
        elif isinstance(node, Values) and values_of.setdefault(node.codes, node.name) != node.name:
            same[node.name] = values_of[node.codes]
        else:
            steps.append(Step(node, node.reads))
    return steps, same


_SAME = frozenset(f"aten.{name}.default" for name in ("dropout", "alpha_dropout", "feature_dropout"))


def _is_move(node: Node) -> bool:
    return isinstance(node, Function) and KINDS[node.op] in (Kind.MOVE, Kind.SELECT)


class Call:
    """A function with its arguments bound: sizes once for each number of moments, values at every call."""

    def __init__(self, node: Function, folding: Folding) -> None:
        self.node, self.folding = node, folding
        self.places = [(i, x.name) for i, x in enumerate(node.args) if isinstance(x, Ref)]
        self.flat = len(self.places) == len(node.reads)
        self.bound: dict[int, tuple[list[Any], Any]] = {}

    def __call__(self, values: Mapping[str, Any], moments: int) -> Any:
        node, bound = self.node, self.bound.get(moments)
        if bound is None:
            sizes = self.folding.sizes(moments)

            def number(x: Any) -> Any:
                return x.at(sizes) if isinstance(x, Size) else x

            bound = self.bound[moments] = list(map_arguments(node.args, number)), map_arguments(node.kwargs, number)
        args, kwargs = bound
        if self.flat:
            args = args.copy()
            for place, name in self.places:
                args[place] = values[name]
        else:
            args, kwargs = map_arguments(bound, lambda x: values[x.name] if isinstance(x, Ref) else x)
        return evaluate(node.op, args, kwargs, node.dtype, self.folding.network.device)


class Evaluation:
    """The calls of a group's nodes, one after another, for some moments at once or for one."""

    def __init__(
        self, steps: Sequence[Step], calls: Sequence[Any], start: str, folding: Folding, folds: bool, together: int
    ) -> None:
        self.last = steps[-1].node.name if steps else start
        self.folding, self.folds, self.together = folding, folds, together
        self.calls = [(step.node.name, call) for step, call in zip(steps, calls, strict=True)]
        varying = folding.program.varying
        self.constants = [name for _, reads in steps for name in reads if name not in varying]
        self.given: dict[int, dict[str, Any]] = {}  # moments → constants for that many

    def run(self, values: dict[str, Any], moments: int = 1) -> Any:
        """The last value, from those of other groups."""
        if self.constants:
            given = self.given.get(moments)
            if given is None:
                given = {name: self.folding.constant(name, moments) for name in self.constants}
                self.given[moments] = given
            values.update(given)
        for name, call in self.calls:
            values[name] = call(values, moments)
        return values[self.last]
