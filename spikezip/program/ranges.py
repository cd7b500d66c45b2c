"""Change the ranges of sites in a program that has them: their codes, and whether each channel has its own scale."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from spikezip.program.analysis import chain, moves_channels
from spikezip.program.functions import KINDS, Kind
from spikezip.program.nodes import Function, Grid, Linear, Node, Program, Rows, Site, Values


@dataclass(frozen=True)
class Codes:
    """The codes of a site, and whether there is a scale for each of its channels."""

    lo: int
    hi: int
    by_channel: bool


def can_fold(program: Program) -> frozenset[str]:
    """The sites that can have a scale per channel at no cost: it becomes part of the weights that read them.

    All products that read the codes are linear, over the channels as the site has them, with weights that are on no
    other grid. Functions read values, which may have any scales.

    Example:
        >>> import torch, spikezip
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
        >>> sorted(can_fold(spikezip.quantize(model, example=torch.randn(2, 4)).program))
        ['2.in']
    """
    return frozenset(name for name, site in program.sites.items() if _folds(program, site))


def _folds(program: Program, site: Site) -> bool:
    if not site.shape or not isinstance(site.shape[-1], int):
        return False
    for reader in _readers(program, site.name):
        if isinstance(reader, Values):
            continue
        if not isinstance(reader, Linear) or reader.x == reader.weight:
            return False
        if any(moves_channels(step, program) for step in chain(program, reader.x, site.name)):
            return False
        grid = program[reader.weight]
        if isinstance(grid, Grid):
            sites = {_site_of(program, each) for each in program.readers[grid.name]}
            others = [each for each in program.readers[grid.weight] if each is not grid and _is_gridded(program, each)]
            if len(sites) > 1 or others or grid.name in program.returned:
                return False
    return site.name not in program.returned


def _is_gridded(program: Program, reader: Node) -> bool:
    """Whether what reads a weight is a grid, or rows of it are looked up for one: two grids would have to be stored."""
    return isinstance(reader, Grid) or any(isinstance(row, Rows) for row in program.readers[reader.name])


def linear_readers(program: Program, name: str) -> list[Linear] | None:
    """The linear products that read the codes of a site, moved or not; None if anything else reads them."""
    readers = list(_readers(program, name))
    found = [reader for reader in readers if isinstance(reader, Linear)]
    return found if len(found) == len(readers) and name not in program.returned else None


def _site_of(program: Program, node: Node) -> str:
    """The value that a product reads, before it was moved."""
    if not isinstance(node, Linear):
        return node.name
    read = program[node.x]
    while isinstance(read, Function) and KINDS[read.op] in (Kind.MOVE, Kind.SELECT) and read.reads:
        read = program[read.reads[0]]
    return read.name


def _readers(program: Program, name: str) -> Iterator[Node]:
    """What reads codes, behind nodes that move them; the output of the network shows up as the node that it is."""
    for reader in program.readers[name]:
        if isinstance(reader, Function):
            if reader.name in program.returned or KINDS[reader.op] not in (Kind.MOVE, Kind.SELECT):
                yield reader
            else:
                yield from _readers(program, reader.name)
        else:
            yield reader


def with_codes(program: Program, wanted: Mapping[str, Codes]) -> Program:
    """The program with other codes at some sites."""
    changed = {name for name, codes in wanted.items() if codes.by_channel != program.sites[name].by_channel}
    renamed: dict[str, str] = {}
    behind: dict[str, str | None] = {}
    for name in changed:
        for reader in _readers(program, name):
            if not isinstance(reader, Linear) or not isinstance(grid := program[reader.weight], Grid):
                continue
            site = name if wanted[name].by_channel else None
            plain = grid.name.removesuffix(f" behind {grid.site}")
            renamed[grid.name] = f"{plain} behind {site}" if site else plain
            behind[grid.name] = site
    nodes: list[Node] = []
    for node in program.nodes:
        if isinstance(node, Site) and node.name in wanted:
            codes = wanted[node.name]
            node = replace(node, lo=codes.lo, hi=codes.hi, by_channel=codes.by_channel)
        elif isinstance(node, Grid) and node.name in behind:
            node = replace(node, name=renamed[node.name], site=behind[node.name])
        nodes.append(node.reading(lambda name: renamed.get(name, name)))
    return replace(program, nodes=tuple(nodes))
