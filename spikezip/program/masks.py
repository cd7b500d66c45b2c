"""Leave out masks that mask nothing: sums with a tensor that is zero whatever the input and its sizes are.

Models of transformers write a mask down though nothing is padded: `where(arange(n) >= 0, 0, -inf)`. What a tensor made
from sizes alone can hold is followed as an interval, so that the number of tokens may stay a symbol.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import torch

from spikezip.program.functions import operators
from spikezip.program.nodes import Function, Program, Ref, map_arguments

Interval = tuple[float, float]

_MOVES = frozenset(
    operators(
        "unsqueeze squeeze squeeze.dim expand expand_as reshape view_as transpose.int permute slice.Tensor select.int "
        "index_select gather index.Tensor repeat flatten.using_ints to.dtype type_as broadcast_to"
    )
)
_COMPARE: dict[str, Callable[[Interval, Interval], bool | None]] = {
    "ge": lambda a, b: True if a[0] >= b[1] else False if a[1] < b[0] else None,
    "gt": lambda a, b: True if a[0] > b[1] else False if a[1] <= b[0] else None,
    "le": lambda a, b: True if a[1] <= b[0] else False if a[0] > b[1] else None,
    "lt": lambda a, b: True if a[1] < b[0] else False if a[0] >= b[1] else None,
}
_TRUE, _FALSE = (1.0, 1.0), (0.0, 0.0)


def without_neutral_masks(program: Program) -> Program:
    """The program without sums of a value and a mask of zeros."""
    known: dict[str, Interval] = {}
    renamed: dict[str, str] = {}
    nodes = []
    for node in program.nodes:
        kept = None
        if isinstance(node, Function):
            found = _interval(node, known)
            if found is not None:
                known[node.name] = found
            kept = _neutral_sum(program, node, known)
        if kept is None:
            nodes.append(node.reading(lambda name: renamed.get(name, name)))
        else:
            renamed[node.name] = renamed.get(kept, kept)
    if not renamed:
        return program
    output = map_arguments(program.output, lambda x: Ref(renamed.get(x.name, x.name)) if isinstance(x, Ref) else x)
    return replace(program, nodes=tuple(nodes), output=output).without_dead_nodes()


def _neutral_sum(program: Program, node: Function, known: dict[str, Interval]) -> str | None:
    """The value that a sum is, if its other operand is zero everywhere."""
    if node.op != "aten.add.Tensor" or node.kwargs or len(node.args) != 2 or node.name in known:
        return None
    for value, mask in (node.args, node.args[::-1]):
        if not isinstance(value, Ref) or not isinstance(mask, Ref) or known.get(mask.name) != _FALSE:
            continue
        same = program[value.name].shape == node.shape and program[value.name].dtype == node.dtype
        return value.name if same else None
    return None


def _interval(node: Function, known: dict[str, Interval]) -> Interval | None:
    """What the elements of a function lie between, if that follows from its arguments alone."""
    name, _, overload = node.op.removeprefix("aten.").partition(".")
    args = [_of(x, known) for x in node.args]
    if node.op in _MOVES:
        return args[0]
    if name == "arange":
        return (0.0, inf) if overload == "default" else None if args[0] is None else (args[0][0], inf)
    if name in ("zeros", "zeros_like", "new_zeros"):
        return _FALSE
    if name in ("ones", "ones_like", "new_ones"):
        return _TRUE
    if name in ("full", "new_full", "full_like"):
        return args[1]
    if name == "scalar_tensor":
        return args[0]
    if name == "where":
        return _chosen(args[0], args[1], args[2])
    if name == "masked_fill":
        return _chosen(args[1], args[2], args[0])
    if len(args) < 2 or args[0] is None or args[1] is None or node.kwargs:
        return None
    a, b = args[0], args[1]
    if name == "add":
        return a[0] + b[0], a[1] + b[1]
    if name in _COMPARE:
        holds = _COMPARE[name](a, b)
        return None if holds is None else _TRUE if holds else _FALSE
    if node.dtype == torch.bool and name in ("__and__", "bitwise_and", "logical_and"):
        return b if a == _TRUE else a if b == _TRUE else None
    if node.dtype == torch.bool and name in ("__or__", "bitwise_or", "logical_or"):
        return b if a == _FALSE else a if b == _FALSE else None
    return None


def _chosen(condition: Interval | None, yes: Interval | None, no: Interval | None) -> Interval | None:
    return yes if condition == _TRUE else no if condition == _FALSE else None


def _of(x: Any, known: dict[str, Interval]) -> Interval | None:
    if isinstance(x, Ref):
        return known.get(x.name)
    return (float(x), float(x)) if isinstance(x, (bool, int, float)) else None
