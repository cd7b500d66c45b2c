"""What becomes of every part of a network, without converting it; and what stands in the way."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from spikezip.errors import ConfigError, CoverageError
from spikezip.program.analysis import Depends, dependence, not_portable, source
from spikezip.program.capture import Captured, capture
from spikezip.program.functions import KINDS, Kind
from spikezip.program.nodes import Function, Input, Node, Product, Program, Site
from spikezip.program.place import place
from spikezip.program.tidy import tidy
from spikezip.quant.config import QuantConfig

_MOVEMENT = (Kind.MOVE, Kind.SELECT)


@dataclass(frozen=True)
class Coverage:
    """What becomes of every part of a network. Printing it gives the table.

    `complete` says whether the network can be quantized, `problems` why not: the reason first, then all that is known.
    `products` gives, for each product, the sites that it reads; none for input layers. `functions` counts by kind.
    """

    model: str
    rows: tuple[tuple[str, str], ...] = ()  # module path, what becomes of it
    sites: tuple[str, ...] = ()
    products: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    functions: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        width = min(max((len(path) for path, _ in self.rows), default=0), 60)
        lines = [f"{path:<{width}}  {what}".rstrip() for path, what in self.rows]
        counts = ", ".join(f"{count} {kind}" for kind, count in self.functions.items()) or "none"
        if self.rows:
            lines.append(f"{self.model}: {len(self.sites)} sites, {len(self.products)} products; functions: {counts}")
        lines += [*self.notes, *(f"✗ {problem}" for problem in self.problems)]
        return "\n".join([*lines, "complete" if self.complete else f"{self.model} cannot be converted"])

    __repr__ = __str__


def coverage(
    model: nn.Module, example: Mapping[str, Any] | Tensor | None = None, config: QuantConfig | None = None
) -> Coverage:
    """What `quantize` would make of a model; it never fails because of the model, it says what is wrong.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> print(coverage(model, torch.randn(2, 4)))
        input  input [b, 4]
        0      input layer
        2.in   site, codes 0…31, the input enters here
        2      linear product, reads 2.in
        Sequential: 1 sites, 2 products; functions: none
        complete
    """
    name = type(model).__name__
    captured = None
    try:
        if example is None:
            example = _derived(model)
        captured = capture(model, example)
        return _table(name, place(tidy(captured.program), config or QuantConfig(), captured.modules))
    except Exception as error:  # the model's own code may raise anything
        return _failed(name, captured, error)


def explained(error: CoverageError, model: nn.Module, captured: Captured | None) -> CoverageError:
    """The error as `quantize` raises it: the reason in one line, and all that is known as `.coverage`."""
    reason = str(error).partition("\n")[0]
    short = CoverageError(f"{reason}\nspikezip.coverage(model, example) lists what is known; so does error.coverage")
    short.coverage = _failed(type(model).__name__, captured, error)
    return short


def _derived(model: nn.Module) -> Any:
    if not hasattr(model, "main_input_name"):
        raise ConfigError(
            "the inputs of this model are not known: pass example=batch, inputs by name or the first alone"
        )
    from spikezip.models.examples import example_inputs  # models build on programs, not the other way round

    return example_inputs(model)


def _failed(name: str, captured: Captured | None, error: Exception) -> Coverage:
    """What is known of a network in which something stands in the way."""
    known = () if captured is None else _table(name, captured.program).rows
    cause = error.__cause__
    more = () if cause is None else (f"{type(cause).__name__}: {cause}".strip(),)
    return Coverage(name, known, problems=(str(error) or type(error).__name__, *more))


def _table(name: str, program: Program) -> Coverage:
    depends = dependence(program)
    rows: list[tuple[str, str]] = []
    products: dict[str, tuple[str, ...]] = {}
    kinds: Counter[str] = Counter()
    used: dict[str, list[str]] = {}  # module → its functions
    for node in program.nodes:
        if isinstance(node, Product):
            products[node.name] = _sites_read(program, node)
            rows.append((node.module or node.name, _product(node, products[node.name], depends[node.name])))
        elif isinstance(node, Site):
            entry = ", the input enters here" if node.entry else ""
            relu = ", in the place of a ReLU" if node.relu and not node.name.endswith(".in") else ""
            rows.append((node.name, f"site, codes {node.lo}…{node.hi}{relu}{entry}"))
        elif isinstance(node, Input):
            rows.append((node.name, f"input [{', '.join(map(str, node.shape))}]"))
        elif isinstance(node, Function) and depends[node.name] is Depends.NETWORK:
            kind = KINDS[node.op]
            kinds[kind.value] += 1
            if kind not in _MOVEMENT:
                path = node.module or node.name
                if path not in used:
                    rows.append((path, ""))  # filled in below, at the place of its first function
                used.setdefault(path, []).append(f"{node.op.split('.')[1]} ({kind.value})")
    shown = tuple((path, what or f"functions: {', '.join(dict.fromkeys(used[path]))}") for path, what in rows)
    notes = [] if program.batch else [f"for this batch size only: {program.fixed}"]
    dependent = not_portable(program) if program.sites else ()
    if dependent:
        notes.append(f"not portable, codes may depend on the machine: {', '.join(dependent)}")
    return Coverage(name, shown, tuple(program.sites), products, dict(kinds), notes=tuple(notes))


def _sites_read(program: Program, node: Product) -> tuple[str, ...]:
    found = [source(program, name) for name in node.reads]
    return tuple(dict.fromkeys(site.name for site in found if isinstance(site, Site)))


def _product(node: Node, sites: tuple[str, ...], depends: Depends) -> str:
    if sites:
        return f"{type(node).__name__.lower()} product, reads {' and '.join(sites)}"
    if depends is Depends.NETWORK:
        return "input layer"
    return "constant" if depends is Depends.WEIGHTS else "constant over time"
