"""Attention whose quantized values are exponentials: the division of a softmax moves behind its product with v.

`softmax(x)·v = (e·v)/Σe` with `e = exp(x − max x)`. The largest exponential of a row is 1, so one scale suits the rows
that look at one token and those that look at all; probabilities of the latter would all become zero. The sum is that of
the quantized exponentials, so that what is rounded away is missing above and below alike.
"""

from dataclasses import replace

from spikezip.program.analysis import chain, moves_channels
from spikezip.program.functions import KINDS, Kind
from spikezip.program.nodes import Function, Linear, Matmul, Node, Program, Ref, Site, Values, map_arguments

_SOFTMAX, _EXP, _MAX = "aten.softmax.int", "aten.exp.default", "aten.amax.default"
_DROPOUT = "aten.dropout.default"
# Of quantized exponentials, one is at least a scale; before anything has fired, the sum is zero.
_LEAST = 2.0**-20


def with_exponentials(program: Program) -> Program:
    """The placed program with exponentials in place of probabilities, wherever a softmax is read by products alone.

    Example:
        >>> import torch, spikezip
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> config = spikezip.QuantConfig(attention="probabilities")
        >>> program = spikezip.quantize(layer, config, torch.randn(2, 5, 8)).program
        >>> [node.op for node in with_exponentials(program).nodes if "softmax" in node.name and node.kind == "function"]
        ['aten.amax.default', 'aten.sub.Tensor', 'aten.exp.default']
    """
    found = {site.name: mixes for site in program.sites.values() if (mixes := _mixes(program, site))}
    softmaxes = {program.sites[name].u: name for name in found}
    behind = {mix.name: name for name, mixes in found.items() for mix in mixes}
    nodes: list[Node] = []
    renamed: dict[str, str] = {}
    for node in program.nodes:
        if node.name in softmaxes:
            nodes += _exponentials(node)
            renamed[node.name] = nodes[-1].name
            continue
        nodes.append(node.reading(lambda name: renamed.get(name, name)))
        if isinstance(node, Matmul) and node.name in behind:
            nodes += _division(program, node, behind[node.name], {each.name for each in nodes})
            renamed[node.name] = nodes[-1].name
    output = map_arguments(program.output, lambda x: Ref(renamed.get(x.name, x.name)) if isinstance(x, Ref) else x)
    divided = {renamed[name] for name in behind}
    return _with_whole_channels(replace(program, nodes=tuple(nodes), output=output), divided)


def weighs_places(program: Program, name: str) -> bool:
    """Whether a value is attention over its last dimension: a softmax, or exponentials that are divided later."""
    node = program[name]
    while isinstance(node, Function) and node.reads and (KINDS[node.op] is Kind.MOVE or node.op == "aten.to.dtype"):
        node = program[node.reads[0]]
    if isinstance(node, Function) and node.op == _SOFTMAX:
        return node.args[1] in (-1, len(node.shape) - 1)
    return is_exponential(program, node.name)


def is_exponential(program: Program, name: str) -> bool:
    """Whether a value is exponentials in the place of a softmax."""
    node = program[name]
    if not isinstance(node, Function) or node.op != _EXP:
        return False
    below = program[node.reads[0]]
    return isinstance(below, Function) and any(getattr(program[x], "op", "") == _MAX for x in below.reads)


def _mixes(program: Program, site: Site) -> list[Matmul]:
    """The products of a site of probabilities, if nothing else reads them."""
    softmax = program[site.u]
    if not isinstance(softmax, Function) or softmax.op != _SOFTMAX or softmax.kwargs or site.lo:
        return []
    rank, (_, dim, *dtype) = len(softmax.shape), softmax.args
    last = dim % rank == rank - 1 and dtype in ([], [None], [softmax.dtype])
    alone = len(program.readers[softmax.name]) == 1 and softmax.name not in program.returned
    if not last or not alone or site.by_channel:
        return []
    found: list[Matmul] = []
    waiting = [site.name]
    while waiting:
        name = waiting.pop()
        if name in program.returned:
            return []
        for reader in program.readers[name]:
            if isinstance(reader, Matmul) and reader.a == name and reader.b != name:
                found.append(reader)
            elif isinstance(reader, Function) and KINDS[reader.op] is Kind.MOVE and not moves_channels(reader, program):
                waiting.append(reader.name)
            else:
                return []
    return found


def _with_whole_channels(program: Program, values: set[str]) -> Program:
    """With the sites of these values behind the movement that puts heads side by side, where weights read them.

    Their last dimension is then all channels of the product with weights, and each can have a scale of its own.
    """
    sites = (site for site in program.sites.values() if site.u in values)
    moved = {site.name: steps for site in sites if (steps := _steps_to_weights(program, site))}
    first = {steps[0].name: program.sites[name].u for name, steps in moved.items()}
    last = {steps[-1].name: program.sites[name] for name, steps in moved.items()}
    nodes: list[Node] = []
    for node in program.nodes:
        if node.name in moved:
            continue
        node = node.reading(lambda name: last[name].name if name in last else name)
        if node.name in first and isinstance(node, Function):
            node = replace(node, args=(Ref(first[node.name]), *node.args[1:]))
        nodes.append(node)
        if node.name in last:
            nodes.append(replace(last[node.name], shape=node.shape, u=node.name))
    return replace(program, nodes=tuple(nodes))


def _steps_to_weights(program: Program, site: Site) -> list[Function]:
    """The movement from a site to products with weights, if it moves channels, and nothing else reads what it moves."""
    found: list[Function] = []
    name = site.name
    while name not in program.returned:
        readers = program.readers[name]
        if readers and all(isinstance(reader, Linear) and reader.x == name for reader in readers):
            return found if any(moves_channels(step, program) for step in found) else []
        step = readers[0] if len(readers) == 1 else None
        if not isinstance(step, Function) or KINDS[step.op] is not Kind.MOVE or len(step.reads) != 1:
            break
        found.append(step)
        name = step.name
    return []


def _exponentials(softmax: Node) -> list[Node]:
    assert isinstance(softmax, Function)
    x, name, like = softmax.args[0], softmax.name, (softmax.dtype, softmax.module)
    largest = Function(f"{name}.max", (*softmax.shape[:-1], 1), *like, _MAX, (x, (-1,), True))
    below = Function(f"{name}.below", softmax.shape, *like, "aten.sub.Tensor", (x, Ref(largest.name)))
    return [largest, below, Function(f"{name}.exp", softmax.shape, *like, _EXP, (Ref(below.name),))]


def _division(program: Program, mix: Matmul, p: str, taken: set[str]) -> list[Node]:
    """What a product with exponentials is divided by: the sum of their values, moved as the product's operand was."""
    site, like = program[p], (mix.dtype, mix.module)
    values: Node = Values(f"{p}.values", site.shape, *like, codes=p)
    nodes = [] if values.name in taken else [values]
    for step in reversed(list(chain(program, mix.a, p))):
        if step.op == _DROPOUT:  # it drops of the probabilities, so after the division
            continue
        args = (Ref(values.name), *step.args[1:])
        values = replace(step, name=f"{mix.name}.{step.name.rpartition('.')[2]}", args=args)
        nodes.append(values)
    shape = (*values.shape[:-1], 1)
    total = Function(f"{mix.name}.sum", shape, *like, "aten.sum.dim_IntList", (Ref(values.name), (-1,), True))
    least = Function(f"{mix.name}.least", shape, *like, "aten.clamp.default", (Ref(total.name), _LEAST))
    args = (Ref(mix.name), Ref(least.name))
    return [*nodes, total, least, Function(f"{mix.name}.divided", mix.shape, *like, "aten.div.Tensor", args)]
