"""Embedding tables on an integer grid: what is looked up lies on the grid of its row."""

from dataclasses import replace

from spikezip.errors import ConfigError
from spikezip.program.nodes import Function, Grid, Node, Program, Rows, Weight

LOOKUP = "aten.embedding.default"


def tables_on_grid(program: Program, bits: int) -> Program:
    """The program with a `Rows` node behind every lookup in a trained table.

    A table that is an output layer as well (tied weights) is one tensor, and lies on one grid: both need equal bits.
    """
    lookups = [node for node in program.nodes if isinstance(node, Function) and _looks_up(program, node)]
    if not lookups:
        raise ConfigError(f"embedding_bits={bits}: the network has no embedding table; leave it None")
    keys = {found.key: node for node in lookups if isinstance(found := program[node.reads[0]], Weight)}
    for node in program.nodes:
        table = program[node.weight] if isinstance(node, Grid) else None
        shared = keys.get(table.key) if isinstance(table, Weight) else None
        if isinstance(node, Grid) and shared is not None and node.bits != bits:
            raise ConfigError(
                f"embedding_bits={bits}, weight_bits={node.bits}: {shared.module} and {node.module} are one table, "
                f"and one table lies on one grid; set embedding_bits to {node.bits}"
            )
    renamed = {node.name: f"{node.name}.rows" for node in lookups}
    nodes: list[Node] = []
    for node in program.nodes:
        nodes.append(node.reading(lambda name: renamed.get(name, name)))
        if node.name in renamed:
            nodes.append(Rows(renamed[node.name], node.shape, node.dtype, node.module, x=node.name, bits=bits))
    return replace(program, nodes=tuple(nodes))


def _looks_up(program: Program, node: Function) -> bool:
    table = program[node.reads[0]] if node.op == LOOKUP else None
    return isinstance(table, Weight) and table.trained
