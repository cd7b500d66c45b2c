"""A program in blocks, such as the layers of a transformer: one value enters each, and one leaves it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from spikezip.program.analysis import Depends, dependence, source
from spikezip.program.nodes import Node, Program, Site, Weight


@dataclass(frozen=True)
class Block:
    """A part of a program.

    Attributes:
        nodes: what varies over time in it, and what that reads of values made from weights alone, in order.
        end: the value that leaves it; of the last block, the last value that varies.
        weights: keys of the trained weights that nothing else reads.
    """

    nodes: tuple[Node, ...]
    end: str
    weights: tuple[str, ...]

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if isinstance(node, Site))


def blocks_of(program: Program) -> tuple[Block, ...]:
    """The blocks of a program with sites: it is cut where one value is all that goes on, and the block's name changes.

    Example:
        >>> import torch, spikezip
        >>> layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(3)]
        >>> program = spikezip.quantize(torch.nn.Sequential(*layers), example=torch.randn(2, 8)).program
        >>> [(block.end, block.sites, block.weights) for block in blocks_of(program)]
        [('1.0.linear', ('1.0.in',), ('1.0.weight', '1.0.bias')), ('2.1.relu', ('2.0.in',), ('2.0.weight', '2.0.bias'))]
    """
    depends = dependence(program)
    constant = [node for node in program.nodes if depends[node.name] is Depends.WEIGHTS]
    parts = [tuple(behind(constant, _read_by(part)) + part) for part in _cut(program)]
    entering = [node for node in program.constant if depends[node.name] is not Depends.WEIGHTS]
    outside = behind(constant, _read_by(entering))
    readers: dict[str, int] = {}
    for nodes in (outside, *parts):
        for key in {node.key for node in nodes if isinstance(node, Weight)}:
            readers[key] = readers.get(key, 0) + 1

    def own(nodes: Iterable[Node]) -> tuple[str, ...]:
        trained = (node.key for node in nodes if isinstance(node, Weight) and node.trained)
        return tuple(key for key in dict.fromkeys(trained) if readers[key] == 1)

    return tuple(Block(nodes, nodes[-1].name, own(nodes)) for nodes in parts)


def behind(nodes: Sequence[Node], names: Iterable[str]) -> list[Node]:
    """Of some nodes, those that these values are made of, in order."""
    wanted, found = set(names), []
    for node in reversed(nodes):
        if node.name in wanted:
            found.append(node)
            wanted.update(node.reads)
    return found[::-1]


def block_name(path: str) -> str:
    """The path of a module or site up to its first number.

    Example:
        >>> block_name("encoder.layer.3.output.dense"), block_name("pooler.dense")
        ('encoder.layer.3', 'pooler')
    """
    parts = path.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: number + 1])


def _cut(program: Program) -> Iterator[list[Node]]:
    """The nodes that vary, in pieces with a site in each. Values between them are plain, and no codes."""
    moving = program.moving
    last = {name: i for i, node in enumerate(moving) for name in node.reads}
    alive: set[str] = set()
    piece: list[Node] = []
    for i, node in enumerate(moving):
        piece.append(node)
        alive = {name for name in (*alive, node.name) if last.get(name, -1) > i}
        whole = alive == {node.name} and _is_plain(program, node)
        if whole and _begins_block(node, moving[i + 1 :]) and any(isinstance(each, Site) for each in piece):
            yield piece
            piece = []
    yield piece


def _is_plain(program: Program, node: Node) -> bool:
    """Whether a value is one tensor of floats, and no codes."""
    return bool(node.shape) and node.dtype.is_floating_point and source(program, node.name) is None


def _begins_block(node: Node, following: Sequence[Node]) -> bool:
    """Whether a block begins behind a node.

    A site stands in the module whose output it quantizes: what comes behind it says where it belongs to.
    """
    first = next((each for each in following if not isinstance(each, Site)), None)
    if first is None or not any(isinstance(each, Site) for each in following):
        return False
    return block_name(first.module) != block_name(node.module)


def _read_by(nodes: Iterable[Node]) -> set[str]:
    return {name for node in nodes for name in node.reads}
