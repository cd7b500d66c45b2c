"""What is left out at random in training, as nodes of a program: elsewhere these nodes give what they read."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from spikezip.errors import ConfigError
from spikezip.program.analysis import Depends, ancestors, dependence
from spikezip.program.attention import weighs_places
from spikezip.program.functions import KINDS, Kind, operators
from spikezip.program.nodes import Function, Node, Program, Ref, Site, Values
from spikezip.program.sizes import Size

_DROPOUT = operators("dropout alpha_dropout")
# Leaves out whole channels of a sample: a branch with a single channel is left out as a whole.
_DROP_PATH = "aten.feature_dropout.default"


def with_dropout(program: Program, probability: float, attention: bool = False) -> Program:
    """The program with this probability in every dropout; with `attention`, in those of its probabilities alone."""

    def changed(node: Node) -> Node:
        if not isinstance(node, Function) or node.op not in _DROPOUT:
            return node
        if attention and not _is_attention(program, _root(program, node.name)):
            return node
        return replace(node, args=(node.args[0], probability, *node.args[2:]))

    return replace(program, nodes=tuple(map(changed, program.nodes)))


def with_drop_path(program: Program, rate: float) -> Program:
    """The program with stochastic depth: in training, what is added to a residual stream is left out for some samples.

    The probability rises over the residual sums, from 0 at the first to `rate` at the last. What is added is scaled by
    1/(1 − p) for the samples that keep it, so that its expectation stays.
    """
    sums = dict(residual_sums(program))
    if not sums:
        raise ConfigError(f"drop_path={rate}: the network has no residual sums, nothing can be left out; set it to 0")
    rates = {name: rate * i / max(1, len(sums) - 1) for i, name in enumerate(sums)}
    nodes: list[Node] = []
    for node in program.nodes:
        if rates.get(node.name, 0.0) > 0:
            *more, dropped = _left_out(program[sums[node.name]], node, rates[node.name])
            nodes += [*more, dropped]
            node = node.reading(_instead_of(sums[node.name], dropped.name))
        nodes.append(node)
    return replace(program, nodes=tuple(nodes))


def _instead_of(name: str, by: str) -> Callable[[str], str]:
    return lambda read: by if read == name else read


def _left_out(branch: Node, total: Node, p: float) -> Iterator[Node]:
    """A branch, left out as a whole for each sample with probability p."""
    shape = (branch.shape[0], 1, *branch.shape[1:])
    name, common = f"{total.name}.branch", (branch.dtype, total.module)
    yield Function(f"{name}.one channel", shape, *common, "aten.unsqueeze.default", (Ref(branch.name), 1))
    yield Function(f"{name}.left out", shape, *common, _DROP_PATH, (Ref(f"{name}.one channel"), p, False))
    yield Function(name, branch.shape, *common, "aten.squeeze.dim", (Ref(f"{name}.left out"), 1))


def residual_sums(program: Program) -> Iterator[tuple[str, str]]:
    """Sums that add to a stream what a product computed from it: the sum, and what it adds to the stream."""
    (own, through, _), depends = ancestors(program), dependence(program)
    for node in program.nodes:
        pair = node.args[:2] if isinstance(node, Function) and node.op == "aten.add.Tensor" else ()
        names = [x.name for x in pair if isinstance(x, Ref)]
        if len(set(names)) < 2 or any(depends[name] is not Depends.NETWORK for name in names):
            continue
        if not all(_has_samples(program, program[name]) for name in names):
            continue
        first, second = (_root(program, name) for name in names)
        if through[first] & own[second]:
            yield node.name, names[0]
        elif through[second] & own[first]:
            yield node.name, names[1]


def _root(program: Program, name: str) -> str:
    """The value, or the codes, that a value consists of, moved or not."""
    node = program[name]
    while isinstance(node, Values) or (isinstance(node, Function) and KINDS[node.op] is Kind.MOVE and node.reads):
        node = program[node.reads[0]]
    return node.name


def _is_attention(program: Program, name: str) -> bool:
    node = program[name]
    return weighs_places(program, node.u if isinstance(node, Site) else name)


def _has_samples(program: Program, node: Node) -> bool:
    """Whether a value's first dimension is the batch."""
    return bool(node.shape) and isinstance(node.shape[0], Size) and str(node.shape[0]) == program.batch
