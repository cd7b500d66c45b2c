"""Training: the program evaluated with gradients. What is trained is, node for node, what is frozen."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spikezip.engines.walk import collect, last_uses
from spikezip.errors import CalibrationError
from spikezip.ops import grid, kernels, rounding
from spikezip.program.analysis import source
from spikezip.program.batch import sizes_of
from spikezip.program.functions import (
    evaluate,
    float_value,
    is_differentiable,
    operators,
    plain_product,
    torch_operator,
)
from spikezip.program.nodes import (
    Function,
    Grid,
    Input,
    Matmul,
    Node,
    Program,
    Ref,
    Rows,
    Site,
    Values,
    Weight,
    map_arguments,
)
from spikezip.program.sizes import bind
from spikezip.quant.gradients import Learned, as_frozen, attention, backward_dtype, matmul, synapse
from spikezip.quant.lsq import carried_codes, initial_scale, on_grid, quantize

if TYPE_CHECKING:
    from spikezip.quant.network import QuantizedNetwork

_ALPHA_DROPOUT = "aten.alpha_dropout.default"
_DROPOUT = operators("dropout alpha_dropout feature_dropout")


def learn(qann: "QuantizedNetwork", inputs: Mapping[str, Any], codes: dict[str, Tensor] | None = None) -> Any:
    """What the network returns for a batch, with gradients to all parameters; `codes` takes those of every site.

    Dropout drops only where the network is in `train()`.
    """
    step = _Pass(qann, inputs, codes)
    step.run(qann.program.nodes)
    return collect(qann.program.output, step.values)


def learn_part(
    qann: "QuantizedNetwork",
    inputs: Mapping[str, Any],
    nodes: Iterable[Node],
    known: Mapping[str, Any],
    keep: Collection[str],
    mixing: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Any]:
    """The values to `keep`, of some nodes, given what they read of others: a part of a training pass.

    `mixing` makes a mask for a tensor: where it is true, a site hands on its input as it is, cut to its range.
    """
    step = _Pass(qann, inputs, None, mixing)
    step.values.update(known)
    step.run(nodes, keep)
    return {name: step.values[name] for name in keep}


@dataclass(frozen=True)
class Attention:
    """`softmax(q·kᵀ + mask)`, the site p of the probabilities, and their product with v: one kernel on a GPU."""

    scores: Matmul
    mask: str | None
    p: Site
    mix: Matmul
    inside: tuple[str, ...]  # the nodes that the kernel stands for, without the last


@dataclass(frozen=True)
class Plan:
    """What can be known of a training pass before there is a batch."""

    program: Program

    @cached_property
    def free(self) -> dict[str, tuple[str, ...]]:
        """Node → the values that are not needed once it is done."""
        return last_uses(self.program.nodes, self.program.returned)

    @cached_property
    def content(self) -> set[str]:
        """The sites whose values something reads: a function, or a product behind dropout, which leaves the grid."""
        found = {node.codes for node in self.program.nodes if isinstance(node, Values)}
        for node in self.program.products:
            if any(_is_dropped(self.program, name) for name in node.reads):
                found |= {root.name for name in node.reads if (root := source(self.program, name)) is not None}
        return found

    @cached_property
    def originals(self) -> dict[str, str]:
        """Dropout → its name before sites were placed, where values and codes pass it: both are dropped alike."""
        names = {n.name: re.sub(r"\.codes(~\d+)?$", "", n.name) for n in self.program.nodes if _drops(n)}
        times = Counter(names.values())
        return {name: original for name, original in names.items() if times[original] > 1}

    @cached_property
    def attentions(self) -> list[Attention]:
        found = (_attention(self.program, site) for site in self.program.sites.values())
        return [each for each in found if each is not None]


class _Pass:
    """One forward pass. `values` holds tensors, and `Learned` where a node's value is integers."""

    def __init__(
        self,
        qann: "QuantizedNetwork",
        inputs: Mapping[str, Any],
        codes: dict[str, Tensor] | None,
        mixing: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.qann, self.inputs, self.codes, self.mixing = qann, inputs, codes, mixing
        self.program, self.plan, self.tensors = qann.program, qann.plan(), qann.tensors()
        self.sizes = sizes_of(self.program, inputs)
        self.scales = {name: qann.scale(name) for name in qann.sites}
        like = next(iter(self.scales.values()))
        self.device, self.dtype = like.device, like.dtype
        self.values: dict[str, Any] = {}
        self.dropped: dict[str, Tensor] = {}
        self.fused = {each.mix.name: each for each in self.plan.attentions if self._is_one_kernel(each)}
        self.inside = {name for each in self.fused.values() for name in each.inside}
        self.read_by_kernels = {site.name for each in self.fused.values() for site in self._operands(each)}

    def run(self, nodes: Iterable[Node], keep: Collection[str] = ()) -> None:
        for node in nodes:
            if node.name not in self.inside:
                self.values[node.name] = self._value(node)
                if self.qann.watch is not None:
                    self.qann.watch(node, self.values)
                for name in self.plan.free.get(node.name, ()):
                    if name not in keep:
                        self.values.pop(name, None)

    def _value(self, node: Node) -> Any:
        if isinstance(node, Input):
            return self.inputs[node.name].to(self.dtype if node.dtype.is_floating_point else node.dtype)
        if isinstance(node, Weight):
            return self.tensors[node.key]
        if isinstance(node, Values):
            return self.values[node.codes].values
        if isinstance(node, Site):
            return self._site(node, self.values[node.u])
        if isinstance(node, Rows):
            rows = self.values[node.x]
            return on_grid(rows.reshape(-1, rows.shape[-1]), node.bits).view(rows.shape)
        if isinstance(node, Grid):
            return self._grid(node, self.values[node.weight])
        if isinstance(node, Function):
            return self._function(node)
        return self._kernel(self.fused[node.name]) if node.name in self.fused else self._product(node)

    def _step_size(self, site: str) -> Tensor:
        scale = rounding.representable(self.scales[site].detach())
        return scale.view(()) if scale.numel() == 1 else scale

    def _site(self, node: Site, u: Tensor) -> Learned:
        if not self.qann.is_ready(node.name):
            if node.by_channel:
                raise CalibrationError(f"site {node.name!r} has a scale per channel: call spikezip.calibrate first")
            self.qann.set_scale(node.name, initial_scale(u, node.hi))
        # On a GPU what stands for values is in bfloat16, as the gradients are that the kernel of attention returns.
        bare = node.name not in self.plan.content and (not u.is_cuda or node.name in self.read_by_kernels)
        bare = bare and self.mixing is None
        values, codes = (carried_codes if bare else quantize)(u, self.scales[node.name], node.lo, node.hi)
        if self.codes is not None:
            self.codes[node.name] = codes
        if self.mixing is not None:
            step = self._step_size(node.name)
            plain = torch.minimum(torch.maximum(u, node.lo * step), node.hi * step)
            return Learned(torch.where(self.mixing(u), plain, values), None, step, node.largest)
        return Learned(values, codes, self._step_size(node.name), node.largest)

    def _grid(self, node: Grid, weight: Tensor) -> Learned:
        step = None if node.site is None else self._step_size(node.site)
        matrix = weight.detach() if step is None or not step.ndim else weight.detach() * step
        # The tensor cores of a GPU take bfloat16, which holds 8-bit integers.
        dtype = torch.bfloat16 if matrix.is_cuda and node.bits == 8 and matrix.dtype == torch.float32 else None
        codes, scale = grid.weight_grid(matrix if node.rows else matrix.reshape(1, -1), node.bits, dtype)
        largest = grid.reference.LARGEST_WEIGHT[node.bits]
        return Learned(weight, codes.view(matrix.shape), scale if node.rows else scale.view(()), largest)

    # --- functions

    def _function(self, node: Function) -> Any:
        def bound(x: Any) -> Any:
            return self.values[x.name] if isinstance(x, Ref) else bind(x, self.sizes)

        args, kwargs = map_arguments(node.args, bound), map_arguments(node.kwargs, bound)
        if node.op in _DROPOUT:
            return self._drop(node, args[0]) if self.qann.training and _drops(node) else args[0]
        if not args or not isinstance(args[0], Learned):
            return self._evaluate(node, args, kwargs)
        x, *rest = args  # codes are moved as their values are

        def moved(t: Tensor) -> Any:
            return evaluate(node.op, (t, *rest), kwargs, t.dtype, self.device)

        return Learned(moved(x.values), None if x.codes is None else moved(x.codes), x.step, x.largest)

    def _evaluate(self, node: Function, args: Any, kwargs: Any) -> Any:
        """As the frozen network does it. Functions of our own get the gradient of the plain operator."""
        if is_differentiable(node.op, args) or not any(_has_gradient(self.values[name]) for name in node.reads):
            return evaluate(node.op, args, kwargs, node.dtype, self.device)
        plain = torch_operator(node.op)(*args, **kwargs)
        with torch.no_grad():
            exact = evaluate(node.op, args, kwargs, node.dtype, self.device)
        if isinstance(exact, Tensor):
            return as_frozen(plain, exact)
        return tuple(as_frozen(p, e) if _has_gradient(p) else e for p, e in zip(plain, exact, strict=True))

    def _drop(self, node: Function, x: Tensor | Learned) -> Tensor | Learned:
        values = x.values if isinstance(x, Learned) else x
        original = self.plan.originals.get(node.name)
        if original is None or node.op == _ALPHA_DROPOUT:
            y = torch_operator(node.op)(values, node.args[1], True)
        else:  # the same places of values and of codes, which may be rounded or not
            if original not in self.dropped:
                ones = torch.ones(values.shape, dtype=values.dtype, device=values.device)
                self.dropped[original] = torch_operator(node.op)(ones, node.args[1], True)
            y = values * self.dropped[original]
        return Learned(y, None, x.step, x.largest) if isinstance(x, Learned) else y

    # --- products

    def _product(self, node: Any) -> Tensor:
        operands = {name: self.values[name] for name in node.reads}
        first, second, *_ = operands.values()
        dropped = any(isinstance(x, Learned) and x.codes is None for x in (first, second))
        if not dropped and isinstance(node, Matmul) and node.name in self.program.varying:
            return matmul(node, *(x if isinstance(x, Learned) else self._unscaled(x) for x in (first, second)))
        if not dropped and not isinstance(node, Matmul) and any(isinstance(x, Learned) for x in (first, second)):
            return synapse(node, first, second, None if node.bias is None else operands[node.bias])
        floats = {name: self._floats(x, first) for name, x in operands.items()}
        plain = plain_product(node, floats.__getitem__)
        if dropped:
            return plain
        with torch.no_grad():
            exact = float_value(node, floats, self.sizes, self.device)
        return as_frozen(plain, exact) if _has_gradient(plain) else exact

    def _unscaled(self, x: Tensor) -> Learned:
        """A float constant, where weights are not on a grid."""
        return Learned(x, x.detach(), torch.ones((), dtype=self.dtype, device=self.device), 1)

    def _floats(self, x: Tensor | Learned, first: Tensor | Learned) -> Tensor:
        """An operand in floats: a site's values, or a weight on its grid, without the scales of channels before it."""
        if not isinstance(x, Learned) or x.codes is None:
            return x.values if isinstance(x, Learned) else x
        if not isinstance(first, Learned) or not first.step.ndim:
            return x.on_grid
        return as_frozen(x.values, x.on_grid.detach() / first.step)  # the gradient is the weight's: straight through

    # --- attention as one kernel

    def _operands(self, each: Attention) -> list[Site]:
        roots = (source(self.program, name) for name in (each.scores.a, each.scores.b, each.mix.b))
        return [root for root in roots if isinstance(root, Site)]

    def _is_one_kernel(self, each: Attention) -> bool:
        """Whether a kernel does all that lies between q, k, v and the mix: under autocast, with 16-bit gradients."""
        like, sites = self.scales[each.p.name], [*self._operands(each), each.p]
        if self.codes is not None or not kernels.on_gpu(like) or backward_dtype(like) != torch.bfloat16:
            return False
        # Only where it is used: importing the library must not need it.
        from spikezip.ops.sesa.triton_training import fits

        batch, heads, queries, width = (bind(size, self.sizes) for size in self.program[each.scores.a].shape)
        keys = bind(each.scores.shape[-1], self.sizes)
        largest = [site.largest for site in sites if not site.by_channel]
        if len(largest) < 4 or max(largest) > 256 or not self.qann.is_ready(each.p.name) or like.dtype != torch.float32:
            return False
        q, k = (torch.empty(batch, tokens, heads, width, device="meta") for tokens in (queries, keys))
        return max(width * largest[0] * largest[1], keys * largest[2] * largest[3]) < 2**24 and fits(q, k)

    def _kernel(self, each: Attention) -> Tensor:
        from spikezip.ops.sesa.triton_training import Scales

        q, k, v = (self.values[name] for name in (each.scores.a, each.scores.b, each.mix.b))
        mask = None if each.mask is None else self.values[each.mask]
        if mask is not None:
            mask = (mask[:, 0] if mask.ndim == 4 else mask[None]).expand(-1, q.values.shape[2], k.values.shape[3])
        p = self._step_size(each.p.name)
        scales = Scales(q.step, k.step, v.step, p, each.p.hi, each.scores.scaling)
        return attention(q, k, v, self.scales[each.p.name], mask, scales)


def _has_gradient(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled()


def _drops(node: Node) -> bool:
    return isinstance(node, Function) and node.op in _DROPOUT and node.args[1] > 0


def _is_dropped(program: Program, name: str) -> bool:
    """Whether dropout lies between a site and what a product reads."""
    node = program[name]
    while isinstance(node, Function) and node.reads and not _drops(node):
        node = program[node.reads[0]]
    return _drops(node) and isinstance(source(program, name), Site)


def _attention(program: Program, p: Site) -> Attention | None:
    """The attention whose probabilities a site quantizes, if nothing else reads what lies in between."""
    softmax, mask = program[p.u], None
    if not isinstance(softmax, Function) or softmax.op != "aten.softmax.int" or softmax.args[1] not in (-1, 3) or p.lo:
        return None
    scores, inside = program[softmax.reads[0]], [softmax.name, p.name]
    if isinstance(scores, Function) and scores.op == "aten.add.Tensor" and len(scores.reads) == 2:
        inside.append(scores.name)
        scores, mask = program[scores.reads[0]], scores.reads[1]
    inside.append(scores.name)
    mix = next(iter(program.readers[p.name]), p)
    while isinstance(mix, Function) and mix.op in _DROPOUT and not _drops(mix) and program.readers[mix.name]:
        inside.append(mix.name)
        mix = program.readers[mix.name][0]
    if not isinstance(scores, Matmul) or not isinstance(mix, Matmul) or len(scores.shape) != 4 or mix.b in inside:
        return None
    alone = all(len(program.readers[name]) == 1 and name not in program.returned for name in inside)
    dropped = any(_is_dropped(program, name) for name in (scores.a, scores.b, mix.b))
    if not alone or dropped or (mask is not None and not _is_mask(program, mask, scores)):
        return None
    return Attention(scores, mask, p, mix, tuple(inside))


def _is_mask(program: Program, name: str, scores: Matmul) -> bool:
    """Whether a kernel takes what is added to scores: the same for all heads, and without a gradient."""
    shape, behind = program[name].shape, {name}
    for node in reversed(program.nodes):
        behind |= set(node.reads) if node.name in behind else set()
    learned = any(isinstance(program[n], Site) or getattr(program[n], "trained", False) for n in behind)
    one = len(shape) == 2 or (len(shape) == 4 and shape[1] == 1 and shape[0] in (1, scores.shape[0]))
    return one and not learned and program[name].dtype == torch.float32
