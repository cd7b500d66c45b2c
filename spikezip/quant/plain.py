"""A program in torch's own operators, with gradients, for calibration. Its last bits are not those of the network."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.walk import last_uses
from spikezip.program.batch import sizes_of
from spikezip.program.functions import evaluate, is_differentiable, operators, plain_product, torch_operator
from spikezip.program.nodes import Function, Grid, Input, Node, Program, Ref, Rows, Site, Values, Weight, map_arguments
from spikezip.program.sizes import Bindings, bind

SiteRule = Callable[[Site, Tensor], Tensor]
GridRule = Callable[[Grid, Tensor], Tensor]

_DROPOUT = operators("dropout alpha_dropout feature_dropout")


def evaluate_plain(
    program: Program,
    tensors: Mapping[str, Tensor],
    inputs: Mapping[str, Any],
    site: SiteRule | None = None,
    grid: GridRule | None = None,
    keep: Collection[str] = (),
    nodes: Iterable[Node] | None = None,
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The values that the program returns, by node, and those to `keep`.

    `site` makes the value of a site of what it reads, `grid` a weight of a weight; without them both stay in floats.
    A part of the program is evaluated with its `nodes`, and what these read of others in `known`.

    Example:
        >>> from spikezip.quant.network import quantize
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> qann, x = quantize(model, example=torch.zeros(2, 4)), torch.randn(5, 4)
        >>> found = evaluate_plain(qann.program, qann.tensors(), qann.prepare(x))
        >>> [torch.allclose(y, model(x), atol=1e-5) for y in found.values()]
        [True]
    """
    sizes = sizes_of(program, inputs)
    free = last_uses(program.nodes, {*program.returned, *keep})
    values: dict[str, Any] = dict(known or {})
    for node in program.nodes if nodes is None else nodes:
        values[node.name] = _value(node, values, tensors, inputs, sizes, site, grid)
        for name in free.get(node.name, ()):
            values.pop(name, None)
    return values


def _value(
    node: Node,
    values: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    inputs: Mapping[str, Any],
    sizes: Bindings,
    site: SiteRule | None,
    grid: GridRule | None,
) -> Any:
    if isinstance(node, Input):
        return inputs[node.name]
    if isinstance(node, Weight):
        return tensors[node.key]
    if isinstance(node, Site):
        u: Tensor = values[node.u]
        u = u.clamp(min=0) if node.relu else u
        return u if site is None else site(node, u)
    if isinstance(node, Grid):
        return values[node.weight] if grid is None else grid(node, values[node.weight])
    if isinstance(node, (Values, Rows)):
        return values[node.reads[0]]
    if isinstance(node, Function):
        return _function(node, values, sizes, next(iter(tensors.values())).device)
    return plain_product(node, values.__getitem__)


def _function(node: Function, values: Mapping[str, Any], sizes: Bindings, device: torch.device) -> Any:
    def bound(x: Any) -> Any:
        return values[x.name] if isinstance(x, Ref) else bind(x, sizes)

    args, kwargs = map_arguments(node.args, bound), map_arguments(node.kwargs, bound)
    if node.op in _DROPOUT:
        return args[0]
    own = node.op in ("aten.softmax.int", "aten.layer_norm.default")  # torch's are as differentiable, and quicker
    # What reads nothing has no gradient, and is told on which device it is made.
    if not node.reads or (is_differentiable(node.op, args) and not own):
        return evaluate(node.op, args, kwargs, node.dtype, device)
    return torch_operator(node.op)(*args, **kwargs)
