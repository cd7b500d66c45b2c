"""One forward pass of one sample that multiplies nothing and notes what would be computed.

Sites, products and inputs give tensors of zeros that autograd can follow. From the gradient of what a product reads,
with respect to the site it reads from, follows which neurons arrive there and how often, whatever the model's own glue
did in between: slices, windows, padding. From the graph in front of a function follows whose spikes change its input.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spikezip.errors import SpikezipError
from spikezip.execution import Execution, SiteLike, executing
from spikezip.measure.shapes import AttentionShape, FunctionShape, InputShape, Layout, LinearShape, SiteShape
from spikezip.simulate import SpikingModel
from spikezip.spiking.attention import Attention
from spikezip.spiking.differential import Differential
from spikezip.spiking.embedding import SpikingEmbedding
from spikezip.spiking.neuron import Neuron
from spikezip.spiking.synapse import SpikingInput, SpikingLinear

# Operations of torch between the modules that are known by their class: what each computes, by its name in aten.
ARITHMETIC = {
    **dict.fromkeys(("add", "sub", "rsub"), "add"),
    **dict.fromkeys(("mul", "div"), "multiply"),
    **dict.fromkeys(("mean", "sum", "_adaptive_avg_pool2d", "avg_pool2d"), "sum"),
    **{name: name for name in ("tanh", "relu", "gelu", "silu", "sigmoid")},
    "_softmax": "softmax",
}
# Those that move values, change their sign or their format. What is in neither table counts as "other".
# fmt: off
MOVES = frozenset((
    "view", "_unsafe_view", "reshape", "_reshape_alias", "permute", "transpose", "t", "slice", "select", "cat",
    "stack", "clone", "_to_copy", "expand", "unsqueeze", "squeeze", "index", "index_select", "gather", "roll",
    "constant_pad_nd", "split", "split_with_sizes", "unbind", "detach", "alias", "copy", "repeat", "flip",
    "neg", "lift_fresh", "as_strided", "unfold", "masked_fill", "fill", "zero",
))
# fmt: on
ACTIVATIONS = {
    "GELU": "gelu",
    "GELUActivation": "gelu",
    "NewGELUActivation": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "GELUTanh": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "QuickGELUActivation": "gelu_sigmoid",
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "Tanh": "tanh",
    "ReLU": "relu",
    "Sigmoid": "sigmoid",
}
KNOWN = (SpikingLinear, SpikingInput, Neuron, Attention, Differential)


def trace(snn: SpikingModel, inputs: dict[str, Any]) -> Layout:
    """The layout of a network for one sample's inputs."""
    tracer = Tracer(snn)
    given = {k: tracer.leaf(v) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in inputs.items()}
    with ExitStack() as stack:
        tracer.watch(snn, stack)
        stack.enter_context(torch.enable_grad())
        stack.enter_context(executing(tracer))
        stack.enter_context(_Watch(tracer))
        snn.network(**given)
    return Layout(
        tracer.sites,
        tuple(tracer.linears),
        tuple(tracer.attentions.values()),
        tuple(tracer.functions),
        tuple(tracer.inputs),
    )


class Tracer(Execution):
    """Answers for sites and products with zeros, and remembers what was asked."""

    keeps_sums = True

    def __init__(self, snn: SpikingModel) -> None:
        self.sites: dict[str, SiteShape] = {}
        self.linears: list[LinearShape] = []
        self.attentions: dict[str, AttentionShape] = {}
        self.functions: list[FunctionShape] = []
        self.inputs: list[InputShape] = []
        self.stack: list[str] = []  # names of the modules that are running
        self.quiet = 0  # how many of them are known by their class, so that what they compute inside is not noted
        self.softmaxes = {m.p.name: name for name, m in snn.named_modules() if isinstance(m, Attention)}
        self.outputs: dict[str, Tensor] = {}  # site → the tensor that stands for its codes
        self.arriving: dict[str, str] = {}  # product → what arrives there: a site, or a part of one
        self.origins: dict[int, tuple[Tensor, frozenset[str]]] = {}
        self.found: dict[Any, frozenset[str]] = {}

    # What the network asks of an execution.

    def codes(self, site: SiteLike, u: Tensor) -> Tensor:
        sources = self.sources([u])
        levels = site.hi - site.lo + 1
        self.sites[site.name] = SiteShape(site.name, tuple(u.shape), sources, site.entry, levels)
        if site.name in self.softmaxes:
            self.note(f"{self.softmaxes[site.name]}.softmax", "softmax", u.numel(), u.numel() // u.shape[-1], sources)
        self.outputs[site.name] = self.root(u, {site.name})
        return self.outputs[site.name].clone()  # so that glue may change it in place

    def linear(
        self, owner: nn.Module, tag: str, codes: Tensor, weight: Tensor, dtype: torch.dtype, largest: int
    ) -> Tensor:
        # In float64, where no fused kernel without a gradient takes over.
        total = codes.new_zeros(*codes.shape[:-1], weight.shape[0], dtype=torch.float64)
        assert isinstance(owner, SpikingLinear)
        return self.root(total, {self.arriving[owner.name]}).clone()

    def matmul(self, owner: nn.Module, tag: str, a: Tensor, b: Tensor, dtype: torch.dtype, largest: int) -> Tensor:
        assert isinstance(owner, Attention)
        heads, queries, keys = a.shape[:-2].numel(), a.shape[-2], b.shape[-1]
        name = self.softmaxes[owner.p.name]
        if tag == "qk":
            groups = a.shape[1] // self.sites[owner.k.name].shape[1]
            sites = (owner.q.name, owner.k.name, owner.v.name, owner.p.name)
            width = self.sites[owner.v.name].shape[-1]
            shape = AttentionShape(name, *sites, heads, queries, keys, a.shape[-1], width, groups)
            self.attentions[name] = shape
        left, right = (owner.q, owner.k) if tag == "qk" else (owner.p, owner.v)
        total = a.new_zeros(*a.shape[:-1], b.shape[-1], dtype=torch.float64)
        return self.root(total, {left.name, right.name}).clone()

    def inject(self, owner: nn.Module, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        assert isinstance(owner, SpikingInput)
        with torch.no_grad():
            y = layer(x.detach())
        macs = y.numel() * owner.codes[0].numel()
        self.inputs.append(InputShape(owner.name, macs, y.numel(), owner.codes.numel(), owner.weight_bits))
        if owner.bias is not None:
            self.note(f"{owner.name}.bias", "add", y.numel(), 0, frozenset())
        return self.leaf(y)

    # Tensors that autograd follows, and where they come from.

    def root(self, like: Tensor, sites: Iterable[str]) -> Tensor:
        """A tensor of zeros from which a graph starts; it changes when one of the `sites` fires."""
        tensor = torch.zeros_like(like, requires_grad=True)
        self.origins[id(tensor)] = tensor, frozenset(sites)
        return tensor

    def leaf(self, like: Tensor) -> Tensor:
        """What the input alone decides: no spike ever changes it."""
        with torch.enable_grad():
            return self.root(like.detach(), ()).clone()

    def sources(self, tensors: Iterable[Tensor]) -> frozenset[str]:
        """The sites whose spikes change one of the tensors."""
        found: frozenset[str] = frozenset()
        for tensor in tensors:
            if tensor.grad_fn is not None:
                found |= self._behind(tensor.grad_fn)
            elif id(tensor) in self.origins:
                found |= self.origins[id(tensor)][1]
        return found

    def _behind(self, start: Any) -> frozenset[str]:
        waiting = [start]
        while waiting:
            node = waiting[-1]
            before = [follower for follower, _ in node.next_functions if follower is not None]
            missing = [follower for follower in before if follower not in self.found]
            if missing and node not in self.found:
                waiting += missing
                continue
            waiting.pop()
            variable = getattr(node, "variable", None)
            own = self.origins[id(variable)][1] if id(variable) in self.origins else frozenset()
            self.found[node] = own.union(*(self.found[follower] for follower in before))
        return self.found[start]

    # What is noted.

    def note(self, name: str, kind: str, elements: int, rows: int, sources: frozenset[str]) -> None:
        taken = sum(function.name == name or function.name.startswith(f"{name}#") for function in self.functions)
        self.functions.append(FunctionShape(f"{name}#{taken + 1}" if taken else name, kind, elements, rows, sources))

    def computed(self, operation: str, args: Any, result: Any) -> None:
        """An operation of torch between modules."""
        operands = [a for a in tree_leaves(args) if isinstance(a, Tensor) and a.requires_grad]
        results = [r for r in tree_leaves(result) if isinstance(r, Tensor)]
        if not operands or not results or operation in MOVES:
            return
        kind = ARITHMETIC.get(operation, "other")
        sized, rows = results[0], 0
        if kind == "sum":
            sized, rows = operands[0], results[0].numel()
        elif kind == "softmax":
            rows = sized.numel() // sized.shape[-1]
        self.note(".".join([*self.stack[-1:], operation]), kind, sized.numel(), rows, self.sources(operands))

    def product(self, layer: SpikingLinear, x: Tensor) -> None:
        site = layer.source
        (gradient,) = torch.autograd.grad(x.sum(), self.outputs[site.name], retain_graph=True, allow_unused=True)
        if gradient is None:
            raise SpikezipError(f"{layer.name} does not read the site {site.name!r} that it was given")
        times = (gradient / site.step_size).round().to(torch.int64).cpu()
        shape = LinearShape(
            name=layer.name,
            source=site.name,
            inputs=x.numel(),
            outputs=x.numel() // layer.in_features * layer.out_features,
            out_features=layer.out_features,
            weight_bits=layer.weight_bits,
            weights=layer.codes.numel(),
            bias=layer.bias is not None,
            read=None if bool((times == 1).all()) else times.flatten(),
        )
        self.linears.append(shape)
        self.arriving[layer.name] = shape.arriving
        if shape.bias:
            self.note(f"{layer.name}.bias", "add", shape.outputs, 0, frozenset())

    def watch(self, snn: SpikingModel, stack: ExitStack) -> None:
        """Follow which module is running, and note those that are known by their class."""
        for name, module in snn.named_modules():
            if isinstance(module, (nn.Embedding, SpikingEmbedding)):
                # In front of its own site: what a table gives enters as an input does.
                handle = module.register_forward_hook(lambda m, args, y: self.leaf(y), prepend=True)
                stack.callback(handle.remove)
            stack.callback(module.register_forward_pre_hook(self._entered(name)).remove)
            stack.callback(module.register_forward_hook(self._left).remove)

    def _entered(self, name: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, args: Any) -> None:
            self.stack.append(name)
            kind = function_kind(module)
            self.quiet += bool(kind) or isinstance(module, KNOWN)
            if isinstance(module, SpikingLinear):
                self.product(module, args[0])
            elif kind and args[0].requires_grad:
                x = args[0]
                rows = x.numel() // x.shape[-1] if kind in ("layernorm", "rmsnorm") else 0
                self.note(name, kind, x.numel(), rows, self.sources([x]))

        return hook

    def _left(self, module: nn.Module, args: Any, output: Any) -> None:
        self.stack.pop()
        self.quiet -= bool(function_kind(module)) or isinstance(module, KNOWN)


class _Watch(TorchDispatchMode):
    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.tracer.quiet:
            self.tracer.computed(func.overloadpacket.__name__.removesuffix("_"), (args, kwargs), result)
        return result


def function_kind(module: nn.Module) -> str:
    """What a module computes, if it is a norm or an elementwise function; else nothing.

    Example:
        >>> function_kind(nn.LayerNorm(2)), function_kind(Differential(nn.GELU())), function_kind(nn.Identity())
        ('layernorm', 'gelu', '')
    """
    if isinstance(module, nn.LayerNorm):
        return "layernorm"
    if isinstance(module, nn.RMSNorm) or type(module).__name__.endswith("RMSNorm"):
        return "rmsnorm"
    if isinstance(module, Differential):
        return ACTIVATIONS.get(module.function_name, "function")
    return ""
