"""Training: the program evaluated with gradients. What is trained is, node for node, what is frozen."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spikezip.engines.walk import collect, last_uses, sizes_of
from spikezip.errors import CalibrationError
from spikezip.ops import grid, kernels, rounding
from spikezip.program.analysis import source
from spikezip.program.floats import float_value, plain_product
from spikezip.program.functions import KINDS, Kind, evaluate, operators, torch_operator
from spikezip.program.nodes import (
    Function,
    Grid,
    Input,
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
from spikezip.program.sizes import Size, bind
from spikezip.quant.gradients import Learned, as_frozen, attention, backward_dtype, input_layer, matmul, synapse
from spikezip.quant.lsq import carried_codes, initial_scale, quantize

if TYPE_CHECKING:
    from spikezip.quant.network import QuantizedNetwork

_DROPOUT = frozenset(operators("dropout alpha_dropout feature_dropout"))


def learn(qann: "QuantizedNetwork", inputs: Mapping[str, Any], codes: dict[str, Tensor] | None = None) -> Any:
    """What the network returns for a batch, with gradients to all parameters; `codes` takes those of every site."""
    return _Pass(qann, inputs, codes).run()


@dataclass(frozen=True)
class Attention:
    """`softmax(q·kᵀ + mask)`, the site of the probabilities, and their product with v: one kernel on a GPU."""

    scores: Matmul
    mask: str | None
    p: Site
    mix: Matmul
    inside: frozenset[str]  # the nodes between q, k, v and the product with v


@dataclass(frozen=True)
class Plan:
    """What can be known of a training pass before there is a batch."""

    program: Program

    @cached_property
    def free(self) -> dict[str, tuple[str, ...]]:
        """Node → the values that are not needed once it is done."""
        return last_uses(self.program.nodes, self.program.returned)

    @cached_property
    def content(self) -> frozenset[str]:
        """The sites whose values something reads: a function, or a product behind dropout, which leaves the grid."""
        program = self.program
        found = {node.codes for node in program.nodes if isinstance(node, Values)}
        for node in program.products:
            if any(_is_dropped(program, name) for name in node.reads):
                found |= {root.name for name in node.reads if isinstance(root := source(program, name), Site)}
        return frozenset(found)

    @cached_property
    def twins(self) -> dict[str, str]:
        """Dropout node → what its original was called, where both values and codes pass it: they are dropped alike."""
        names = [node.name for node in self.program.nodes if _drops(node)]
        originals = {name: re.sub(r"\.codes(~\d+)?$", "", name) for name in names}
        called = list(originals.values())
        return {name: original for name, original in originals.items() if called.count(original) > 1}

    @cached_property
    def attentions(self) -> tuple[Attention, ...]:
        return tuple(_attentions(self.program))


class _Pass:
    """One forward pass. `values` holds tensors, and `Learned` where a node's value is codes."""

    def __init__(self, qann: "QuantizedNetwork", inputs: Mapping[str, Any], codes: dict[str, Tensor] | None) -> None:
        self.qann, self.inputs, self.codes = qann, inputs, codes
        self.program, self.plan = qann.program, qann.plan()
        self.sizes = sizes_of(self.program, inputs)
        self.tensors = qann.tensors()
        self.scales = {name: qann.scale(name) for name in qann.sites}
        like = next(iter(self.scales.values()))
        self.device, self.dtype = like.device, like.dtype
        self.values: dict[str, Any] = {}
        self.dropped: dict[str, Tensor] = {}
        self.fused = {each.mix.name: each for each in self.plan.attentions if self._in_one_piece(each)}
        self.inside = {name for each in self.fused.values() for name in each.inside}
        operands = [name for each in self.fused.values() for name in (each.scores.a, each.scores.b, each.mix.b)]
        self.read_by_kernels = {root.name for name in operands if (root := source(self.program, name)) is not None}

    def run(self) -> Any:
        for node in self.program.nodes:
            if node.name in self.inside:
                continue
            self.values[node.name] = self._value(node)
            for name in self.plan.free.get(node.name, ()):
                self.values.pop(name, None)
        return collect(self.program.output, self.values)

    def _value(self, node: Node) -> Any:
        if isinstance(node, Input):
            return self.inputs[node.name].to(self.dtype if node.dtype.is_floating_point else node.dtype)
        if isinstance(node, Weight):
            return self.tensors[node.key]
        if isinstance(node, Site):
            return self._site(node, self.values[node.u])
        if isinstance(node, Values):
            return self.values[node.codes].values
        if isinstance(node, Grid):
            return self._grid(node, self.values[node.weight])
        if isinstance(node, Function):
            return self._function(node)
        if node.name in self.fused:
            return self._attention(self.fused[node.name])
        return self._product(node)

    # --- sites and constants on a grid

    def _step_size(self, site: str) -> Tensor:
        scale = rounding.representable(self.scales[site].detach())
        return scale.view(()) if scale.numel() == 1 else scale

    def _site(self, node: Site, u: Tensor) -> Learned:
        if not self.qann.is_ready(node.name):
            if node.by_channel:
                raise CalibrationError(f"site {node.name!r} has a scale per channel: call spikezip.calibrate first")
            self.qann.set_scale(node.name, initial_scale(u, node.hi))
        # On a GPU what stands for values is in bfloat16, as the gradients are that the kernels of attention return.
        bare = node.name not in self.plan.content and (not u.is_cuda or node.name in self.read_by_kernels)
        rule = carried_codes if bare else quantize
        values, codes = rule(u, self.scales[node.name], node.lo, node.hi)
        if self.codes is not None:
            self.codes[node.name] = codes
        return Learned(values, codes, self._step_size(node.name), node.largest)

    def _grid(self, node: Grid, weight: Tensor) -> Learned:
        matrix = weight.detach()
        if node.site is not None and (step := self._step_size(node.site)).ndim:
            matrix = matrix * step
        # The tensor cores of a GPU take bfloat16, which holds 8-bit integers.
        dtype = torch.bfloat16 if matrix.is_cuda and node.bits == 8 and matrix.dtype == torch.float32 else None
        codes, scale = grid.weight_grid(matrix if node.rows else matrix.reshape(1, -1), node.bits, dtype)
        scale = scale if node.rows else scale.view(())
        return Learned(weight, codes.view(matrix.shape), scale, grid.reference.LARGEST_WEIGHT[node.bits], constant=True)

    # --- functions

    def _function(self, node: Function) -> Any:
        def bound(x: Any) -> Any:
            if isinstance(x, Ref):
                return self.values[x.name]
            return x.at(self.sizes) if isinstance(x, Size) else x

        args, kwargs = map_arguments(node.args, bound), map_arguments(node.kwargs, bound)
        if node.op in _DROPOUT:
            return self._dropout(node, args[0]) if _drops(node) else args[0]
        if args and isinstance(args[0], Learned):  # codes are moved as their values are
            x, *rest = args
            values, codes = (
                None if t is None else evaluate(node.op, (t, *rest), kwargs, t.dtype, self.device)
                for t in (x.values, x.codes)
            )
            return Learned(values, codes, x.step, x.largest, x.constant)
        return self._evaluate(node, args, kwargs)

    def _evaluate(self, node: Function, args: Any, kwargs: Any) -> Any:
        """As the frozen network does it. What it evaluates in float64 has the gradient of the plain operator."""
        rounded = KINDS[node.op] is Kind.ROUNDED and not (node.op == "aten.pow.Tensor_Scalar" and args[1] == 2)
        tensors = [self.values[name] for name in node.reads]
        if not rounded or not torch.is_grad_enabled() or not any(_has_gradient(t) for t in tensors):
            return evaluate(node.op, args, kwargs, node.dtype, self.device)
        plain = torch_operator(node.op)(*args, **kwargs)
        with torch.no_grad():
            exact = evaluate(node.op, args, kwargs, node.dtype, self.device)
        if isinstance(exact, Tensor):
            return as_frozen(plain, exact)
        return tuple(as_frozen(p, e) if _has_gradient(p) else e for p, e in zip(plain, exact, strict=True))

    def _dropout(self, node: Function, x: Tensor | Learned) -> Tensor | Learned:
        original = self.plan.twins.get(node.name)
        y = self.dropped.get(original or "")
        if y is None:
            values = x.values if isinstance(x, Learned) else x
            y = torch_operator(node.op)(values, node.args[1], True)
        if original is not None:
            self.dropped[original] = y
        return Learned(y, None, x.step, x.largest) if isinstance(x, Learned) else y

    # --- products

    def _product(self, node: Any) -> Tensor:
        operands = [self.values[name] for name in node.reads]
        first = operands[0]
        dropped = any(isinstance(x, Learned) and x.codes is None for x in operands)
        if isinstance(node, Matmul):
            if node.name in self.program.varying and not dropped:
                a, b = (x if isinstance(x, Learned) else self._unscaled(x) for x in operands)
                return matmul(node, a, b)
        elif not dropped:
            bias = None if node.bias is None else self.values[node.bias]
            if isinstance(first, Learned):
                return synapse(node, first, self.values[node.weight], bias)
            if isinstance(self.values[node.weight], Learned):
                return input_layer(node, first, self.values[node.weight], bias)
        floats = {name: self._floats(x, first) for name, x in zip(node.reads, operands, strict=True)}
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
        if not isinstance(x, Learned):
            return x
        behind = isinstance(first, Learned) and first.step.ndim and x.constant
        return x.floats() / first.step if behind else x.floats()  # type: ignore[union-attr]  # asked just before

    # --- attention in one piece

    def _in_one_piece(self, each: Attention) -> bool:
        """Whether kernels do all that lies between q, k, v and the mix: under autocast, with 16-bit gradients."""
        like = self.scales[each.p.name]
        if self.codes is not None or not kernels.on_gpu(like) or backward_dtype(like) != torch.bfloat16:
            return False
        # Only where it is used: importing the library must not need it.
        from spikezip.ops.sesa import triton_training as training

        roots = [source(self.program, name) for name in (each.scores.a, each.scores.b, each.mix.b)]
        sites = [root for root in roots if isinstance(root, Site)]
        fixed = (*sites, each.p)
        if len(sites) < 3 or any(s.by_channel or s.largest > 256 for s in fixed) or not self.qann.is_ready(each.p.name):
            return False
        batch, heads, queries, width = (bind(n, self.sizes) for n in self.program[each.scores.a].shape)
        keys = bind(each.scores.shape[-1], self.sizes)
        sums = (width * sites[0].largest * sites[1].largest, keys * each.p.largest * sites[2].largest)
        q, k = (torch.empty(batch, tokens, heads, width, device="meta") for tokens in (queries, keys))
        return max(sums) < 2**24 and self.dtype == torch.float32 and training.fits(q, k)

    def _attention(self, each: Attention) -> Tensor:
        q, k, v = (self.values[name] for name in (each.scores.a, each.scores.b, each.mix.b))
        mask = None
        if each.mask is not None:
            mask = self.values[each.mask]
            mask = mask.view(-1, *mask.shape[-2:]).expand(-1, q.values.shape[2], k.values.shape[3])
        p = each.p.name
        return attention(q, k, v, self.scales[p], self._step_size(p), each.p.hi, mask, each.scores.scaling)


def _has_gradient(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _drops(node: Node) -> bool:
    return isinstance(node, Function) and node.op in _DROPOUT and node.args[1] > 0


def _is_dropped(program: Program, name: str) -> bool:
    """Whether dropout lies between a site and what a product reads."""
    node = program[name]
    while isinstance(node, Function) and node.reads:
        if _drops(node):
            return isinstance(source(program, name), Site)
        node = program[node.reads[0]]
    return False


def _attentions(program: Program) -> Iterator[Attention]:
    """Every softmax between two products that nothing else looks into, with at most one mask, for all heads alike."""
    trained = set(program.varying)  # a mask that depends on these would need a gradient
    for node in program.nodes:
        if (isinstance(node, Weight) and node.trained) or any(name in trained for name in node.reads):
            trained.add(node.name)
    for p in program.sites.values():
        softmax, inside = program[p.u], [p.u, p.name]
        if not isinstance(softmax, Function) or softmax.op != "aten.softmax.int" or softmax.args[1] not in (-1, 3):
            continue
        scores, mask = program[softmax.reads[0]], None
        if isinstance(scores, Function) and scores.op == "aten.add.Tensor" and len(scores.reads) == 2:
            inside.append(scores.name)
            products = [name for name in scores.reads if isinstance(program[name], Matmul)]
            mask = next((name for name in scores.reads if name not in products), None)
            scores = program[products[0]] if products else scores
        mix: Node = p
        while len(readers := program.readers[mix.name]) == 1 and not isinstance(mix, Product):
            mix = readers[0]
            inside.append(mix.name)
            if not isinstance(mix, Matmul) and (not isinstance(mix, Function) or mix.op not in _DROPOUT or _drops(mix)):
                break
        if not isinstance(scores, Matmul) or not isinstance(mix, Matmul) or len(scores.shape) != 4 or p.lo != 0:
            continue
        inside[-1] = scores.name  # the mix stands for all of them
        alone = all(len(program.readers[name]) == 1 and name not in program.returned for name in inside)
        dropped = any(_is_dropped(program, name) for name in (scores.a, scores.b, mix.b))
        if alone and not dropped and mix.b not in inside and _takes_mask(program, mask, scores, trained):
            yield Attention(scores, mask, p, mix, frozenset(inside))


def _takes_mask(program: Program, mask: str | None, scores: Matmul, trained: set[str]) -> bool:
    if mask is None:
        return True
    shape = program[mask].shape
    over_samples = len(shape) == 2 or (len(shape) == 4 and shape[1] == 1 and shape[0] in (1, scores.shape[0]))
    return over_samples and mask not in trained and program[mask].dtype == torch.float32
