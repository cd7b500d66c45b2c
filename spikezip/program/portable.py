"""Does a network give the same codes on every machine? What of it does not."""

from spikezip.program.analysis import Depends, dependence, source
from spikezip.program.functions import KINDS, Kind
from spikezip.program.nodes import Convolution, Function, Grid, Node, Product, Program, Site, Weight


def not_portable(program: Program) -> tuple[str, ...]:
    """What makes the codes of a network depend on the machine, by name; nothing, for most networks.

    What depends on weights alone is computed once, when the network is converted, and stored with it.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spikezip.quant.network import quantize
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> not_portable(quantize(model, example=torch.randn(2, 4)).program)
        ()
    """
    depends = dependence(program)
    found: dict[str, None] = {}
    for node in program.nodes:
        if depends[node.name] is not Depends.WEIGHTS:
            found.update(dict.fromkeys(reasons(program, node)))
    return tuple(found)


def reasons(program: Program, node: Node) -> list[str]:
    """Why the value of one node depends on the machine; empty if it does not."""
    if isinstance(node, Function):
        name = node.op.split(".")[1] if "." in node.op else node.op
        if KINDS[node.op] is Kind.WIDE or (name == "index_put" and _accumulates(node)):
            return [name]
        return [f"{name} of complex numbers"] if node.dtype.is_complex else []
    if not isinstance(node, Product):
        return []
    if node.name in program.varying:
        operands = [source(program, name) for name in node.reads[:2]]
        integers = all(isinstance(x, (Site, Grid)) or (isinstance(x, Weight) and x.bits) for x in operands)
        return [] if integers else ["float weights"]
    weight = source(program, node.reads[1])
    if isinstance(node, Convolution) and weight is None:
        return ["convolution of floats"]
    return []


def _accumulates(node: Function) -> bool:
    return node.kwargs.get("accumulate", False) or (len(node.args) > 3 and bool(node.args[3]))
