"""Where sites stand. One rule: every operand of a product that varies over time passes a site.

Two policies. `products` places what the rule asks for, and only products read the codes: the least that is exact.
`paper` places the sites of the paper: those, and also sites on what enters a residual sum and behind the last norm; a
value with a site is read as the site has it by everybody.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from spikezip.errors import ConfigError, CoverageError
from spikezip.program.analysis import (
    Depends,
    ancestors,
    chain,
    constant_source,
    dependence,
    is_move,
    moves_channels,
    not_negative,
    origin,
)
from spikezip.program.attention import with_exponentials
from spikezip.program.nodes import (
    Convolution,
    Function,
    Grid,
    Linear,
    Matmul,
    Node,
    Product,
    Program,
    Ref,
    Site,
    Values,
    map_arguments,
)  # fmt: skip
from spikezip.quant.config import QuantConfig

_ADD = "aten.add.Tensor"
_SOFTMAX = "aten.softmax.int"
_RELU = "aten.relu.default"


@dataclass
class _Wanted:
    """A site to be placed on a value: the products that read it, and where in attention they do."""

    readers: list[Product] = field(default_factory=list)
    role: str = ""  # q, k, v, p or o, with the path of the attention before it
    stream: bool = False  # whether a residual sum starts here


def place(program: Program, config: QuantConfig, modules: Mapping[str, Any] | None = None) -> Program:
    """The program with sites, as `config` asks for them. `modules` gives the class of every module, for names."""
    placer = _Placer(program, config, modules or {})
    placer.want_products()
    if not placer.wanted:
        raise CoverageError(
            "the network has no product whose input varies, so nothing in it would spike: "
            "it needs at least two layers with weights"
        )
    if placer.paper:
        placer.want_residuals()
        placer.want_norms()
    placed = placer.rewrite()
    return with_exponentials(placed) if config.exponentials else placed


class _Placer:
    def __init__(self, program: Program, config: QuantConfig, modules: Mapping[str, Any]) -> None:
        self.program, self.config, self.modules = program, config, modules
        self.paper = config.placement == "paper"
        self.depends = dependence(program)
        self.wanted: dict[str, _Wanted] = {}  # value → its site
        self.reads: dict[tuple[str, str], str] = {}  # (product, operand slot) → the value whose site it reads
        self.roles = _attention_roles(program, self.depends)
        self.sums: set[str] = set()  # residual sums
        self.moved: dict[tuple[str, str], str] = {}  # (movement, codes that it moves) → the node with moved codes

    # --- which values get a site

    def want_products(self) -> None:
        for node in self.program.products:
            for slot in _varying_slots(self.program, node, self.depends):
                value = self._site_of(getattr(node, slot))
                self.reads[node.name, slot] = value
                wanted = self.wanted.setdefault(value, _Wanted())
                wanted.readers.append(node)
                wanted.role = wanted.role or self.roles.get((node.name, slot), "")

    def _site_of(self, operand: str) -> str:
        """The value whose site serves an operand: up through movement; in the paper also from a token to its norm."""
        value = origin(self.program, operand, self.depends)
        if self.paper:
            whole = origin(self.program, operand, self.depends, select=True)
            if self._is_norm(self.program[whole]):
                return whole
        return value

    def want_residuals(self) -> None:
        """A residual sum adds to a stream what was computed from it: both get a site, unless they are sums themselves.

        So the stream is a sum of codes' values all along.
        """
        program, (own, through, _) = self.program, ancestors(self.program)
        for node in program.nodes:
            pair = _summands(node)
            if pair is None or any(self.depends[name] is not Depends.NETWORK for name in pair):
                continue
            roots = [origin(program, name, self.depends) for name in pair]
            if not (through[roots[0]] & own[roots[1]] or through[roots[1]] & own[roots[0]]):
                continue
            self.sums.add(node.name)
            for name, root in zip(pair, roots, strict=True):
                if root in self.sums or root in self.wanted:
                    continue
                # A stream that starts here is taken as it is read: behind the dropout of an embedding.
                value = root if isinstance(program[root], Product) else name
                if value not in self.wanted:
                    self.wanted[value] = _Wanted(stream=not isinstance(program[root], Product))

    def want_norms(self) -> None:
        """A norm that reads a residual sum, or whose output the network returns, gets a site: the last norm, too."""
        for node in self.program.nodes:
            if not self._is_norm(node) or self.depends[node.name] is not Depends.NETWORK:
                continue
            if any(origin(self.program, name, self.depends) in self.sums for name in node.reads):
                self.wanted.setdefault(self._norm_output(node), _Wanted())

    def _norm_output(self, node: Node) -> str:
        """The last value that a norm's module makes, where it is written as several functions."""
        while True:
            readers = self.program.readers[node.name]
            if len(readers) != 1 or readers[0].module != node.module or not isinstance(readers[0], Function):
                return node.name
            node = readers[0]

    def _is_norm(self, node: Node) -> bool:
        if not isinstance(node, Function):
            return False
        return "Norm" in self._class_of(node.module) or node.op == "aten.layer_norm.default"

    def _class_of(self, path: str) -> str:
        found = self.modules.get(path.split("@")[0])
        return found.__name__ if isinstance(found, type) else str(found or "")

    # --- names

    def _names(self) -> dict[str, str]:
        taken = {node.name for node in self.program.nodes}
        found = {}
        for node in self.program.nodes:
            if node.name not in self.wanted:
                continue
            name = base = self._name(node, self.wanted[node.name])
            count = 1
            while name in taken:
                count += 1
                name = f"{base}~{count}"
            taken.add(name)
            found[node.name] = name
        return found

    def _name(self, node: Node, wanted: _Wanted) -> str:
        if wanted.role:
            return wanted.role
        if isinstance(node, Product):
            return node.scaled_in or node.module or f"{node.name}.out"
        if wanted.stream:
            return self._stream_name(node)
        reader = wanted.readers[0] if wanted.readers else None
        if sum(size != 1 for size in node.shape) <= 2 and reader is not None:  # no tokens any more: what a head reads
            return f"{reader.module or reader.name}.in"
        if self._is_norm(node):
            return node.module
        leaf = node.module and not any(path.startswith(node.module.split("@")[0] + ".") for path in self.modules)
        if leaf or reader is None:
            return node.module or node.name
        return f"{reader.module or reader.name}.in"

    def _stream_name(self, node: Node) -> str:
        """The outermost module that returns this value alone: `embeddings` for what its dropout gives."""
        path = node.module
        parent = path.rpartition(".")[0]
        last = [n.name for n in self.program.nodes if n.module == parent or n.module.startswith(parent + ".")]
        whole = bool(parent) and last[-1] == node.name and self.modules.get(f"{parent}()") is True
        return (parent if whole else path) or node.name

    # --- the new program

    def rewrite(self) -> Program:
        """Put the sites in: products read codes, moved as their values were; others read values."""
        self.positive = not_negative(self.program, self.depends)
        self.names = self._names()
        self._check_patterns()
        self.nodes: dict[str, Node] = {}
        self.values: dict[str, str] = {}  # value with a site → the node with the values of its codes
        for node in self.program.nodes:
            self._add(self._with_codes(node) if isinstance(node, Product) else node.reading(self._value_of))
            if node.name in self.wanted:
                self._add_site(node)
        output = map_arguments(self.program.output, lambda x: Ref(self._value_of(x.name)) if isinstance(x, Ref) else x)
        placed = replace(self.program, nodes=tuple(self.nodes.values()), output=output).without_dead_nodes()
        return _mark_entries(placed)

    def _add(self, node: Node) -> str:
        found = self.nodes.setdefault(node.name, node)
        assert type(found) is type(node), f"two nodes are called {node.name}"
        return node.name

    def _value_of(self, name: str) -> str:
        return self.values.get(name, name)

    def _check_patterns(self) -> None:
        names = self.names.values()
        idle = [pattern for pattern in self.config.sites if not any(fnmatchcase(name, pattern) for name in names)]
        if idle:
            raise ConfigError(f"no site matches {', '.join(map(repr, idle))}; spikezip.coverage(model) lists the sites")

    def _add_site(self, node: Node) -> None:
        name, signed = self.names[node.name], node.name not in self.positive
        settings = self.config.site(name)
        relu = isinstance(node, Function) and node.op == _RELU
        try:
            lo, hi = settings.range(signed, self.config.levels)
            if relu and lo < 0:
                raise ConfigError(f"codes from {lo}: this site is the ReLU itself, so its codes begin at 0")
            if settings.per_channel:
                self._check_channels(node)
        except ConfigError as error:
            raise ConfigError(f"site {name!r}: {error}") from None
        # The range of a site behind a ReLU is the ReLU.
        u = self._value_of(node.reads[0]) if relu else node.name
        site = Site(
            name, node.shape, node.dtype, node.module, u=u, signed=signed, relu=relu, lo=lo, hi=hi,
            by_channel=bool(settings.per_channel),
        )  # fmt: skip
        self._add(site)
        if self.paper and self.depends[node.name] is Depends.NETWORK:  # layers go on reading an input as it is
            values = Values(f"{name}.values", node.shape, node.dtype, node.module, codes=name)
            self.values[node.name] = self._add(values)

    def _check_channels(self, node: Node) -> None:
        """A scale per channel must be one per column of the weights of every product that reads the site."""
        for (product, slot), value in self.reads.items():
            if value != node.name:
                continue
            reader = self.program[product]
            steps = chain(self.program, getattr(reader, slot), value)
            if not isinstance(reader, Linear) or any(moves_channels(step, self.program) for step in steps):
                raise ConfigError("per_channel=True: products inside attention take one scale for all channels")

    def _with_codes(self, node: Product) -> Node:
        """A product with its operands on the grid: codes of sites, and integer weights."""
        new = node.reading(self._value_of)
        by_channel = None
        for slot in node.operands:
            value = self.reads.get((node.name, slot))
            if value is not None:
                site = self.nodes[self.names[value]]
                moved: dict[str, Any] = {slot: self._moved(getattr(node, slot), value, site.name)}
                new = replace(new, **moved)
                by_channel = site.name if isinstance(site, Site) and site.by_channel else by_channel
        if self.config.weight_bits is None:
            return new
        if isinstance(node, (Linear, Convolution)):
            constant = self.depends[node.weight] is Depends.WEIGHTS and self.depends[node.x] > Depends.WEIGHTS
            changes: dict[str, Any] = {"weight": self._grid(node.weight, True, by_channel)} if constant else {}
            return replace(new, **changes)
        for slot in ("a", "b"):  # a product of a value and a constant, such as relative positions
            operand = getattr(node, slot)
            source = constant_source(self.program, operand, self.depends)
            if self.depends[node.name] is Depends.NETWORK and source is not None:
                gridded: dict[str, Any] = {slot: self._moved(operand, source, self._grid(source, False, None))}
                new = replace(new, **gridded)
        return new

    def _grid(self, weight: str, rows: bool, site: str | None) -> str:
        node = self.program[weight]
        name = f"{weight}.grid" if rows else f"{weight}.grid of one scale"
        name = f"{name} behind {site}" if site else name
        bits = self.config.weight_bits
        assert bits is not None
        return self._add(
            Grid(name, node.shape, node.dtype, node.module, weight=weight, bits=bits, rows=rows, site=site)
        )

    def _moved(self, operand: str, value: str, codes: str) -> str:
        """The codes of an operand that is made by moving a value, whose codes are at hand."""
        for step in reversed(list(chain(self.program, operand, value))):
            key = step.name, codes
            if key not in self.moved:
                name = f"{step.name}.codes"
                name = name if name not in self.nodes else f"{name}~{len(self.moved)}"
                copy = replace(step, name=name, args=(Ref(codes), *step.args[1:])).reading(self._value_of)
                self.moved[key] = self._add(copy)
            codes = self.moved[key]
        return codes


def _varying_slots(program: Program, node: Product, depends: dict[str, Depends]) -> tuple[str, ...]:
    """The operands of a product that pass a site."""
    if isinstance(node, (Linear, Convolution)):
        if depends[node.weight] is not Depends.WEIGHTS:
            raise CoverageError(
                f"{node.name}: a convolution with a computed kernel is not supported; write it as a matmul"
            )
        return ("x",) if depends[node.x] is Depends.NETWORK else ()
    assert isinstance(node, Matmul)
    if Depends.NETWORK not in (depends[node.a], depends[node.b]):
        return ()
    return tuple(slot for slot in ("a", "b") if constant_source(program, getattr(node, slot), depends) is None)


def _summands(node: Node) -> tuple[str, str] | None:
    """The two operands of a sum of tensors of one shape."""
    if not isinstance(node, Function) or node.op != _ADD:
        return None
    a, b = node.args[:2]
    return (a.name, b.name) if isinstance(a, Ref) and isinstance(b, Ref) and a.name != b.name else None


def _attention_roles(program: Program, depends: dict[str, Depends]) -> dict[tuple[str, str], str]:
    """(product, operand slot) → `PATH.q` and so on, for every softmax between two products.

    The scores may be scaled, masked, capped or added up between the first product and the softmax.
    """
    found: dict[tuple[str, str], str] = {}
    for node in program.nodes:
        if not isinstance(node, Function) or node.op != _SOFTMAX:
            continue
        path = node.module
        prefix = f"{path}." if path else ""
        mixes = _matmuls_behind(program, node.name, depends)
        scores = _matmul_before(program, node.name)
        if not mixes or scores is None:
            continue
        found.setdefault((scores.name, "a"), f"{prefix}q")
        found.setdefault((scores.name, "b"), f"{prefix}k")
        for mix in mixes:
            slot = "a" if origin(program, mix.a, depends) == node.name else "b"
            found.setdefault((mix.name, slot), f"{prefix}p")
            found.setdefault((mix.name, "b" if slot == "a" else "a"), f"{prefix}v")
            for reader in _products_behind(program, mix.name, depends):
                found.setdefault((reader.name, "x"), f"{prefix}o")
    return found


def _matmul_before(program: Program, name: str) -> Matmul | None:
    """The product of two values that a softmax's input was made from: nearest first, at most some functions away."""
    waiting, seen = [name], set()
    while waiting:
        node = program[waiting.pop(0)]
        if isinstance(node, Matmul):
            return node
        if isinstance(node, Function) and node.name not in seen:
            seen.add(node.name)
            waiting += node.reads
        if len(seen) > 24:
            return None
    return None


def _matmuls_behind(program: Program, name: str, depends: dict[str, Depends]) -> list[Matmul]:
    found = [node for node in _products_behind(program, name, depends) if isinstance(node, Matmul)]
    return found


def _products_behind(program: Program, name: str, depends: dict[str, Depends]) -> list[Product]:
    """The products that read a value, moved or not."""
    found: list[Product] = []
    waiting = [name]
    while waiting:
        for reader in program.readers[waiting.pop()]:
            if isinstance(reader, Product):
                found.append(reader)
            elif is_move(reader, depends, select=False):
                waiting.append(reader.name)
    return found


def _mark_entries(program: Program) -> Program:
    """Sites whose input does not change over time: there the input enters the spiking network."""
    moving: set[str] = set()
    nodes = []
    for node in program.nodes:
        if isinstance(node, Site):
            node = replace(node, entry=node.u not in moving)
            moving.add(node.name)
        elif any(name in moving for name in node.reads):
            moving.add(node.name)
        nodes.append(node)
    return replace(program, nodes=tuple(nodes))
