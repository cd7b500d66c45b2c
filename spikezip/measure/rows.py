"""What was counted, as rows that add up over batches and go to JSON and back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from spikezip.errors import ConfigError
from spikezip.measure.plain import Plain

LINEAR, SCORES, MIX, INPUT = "linear", "scores", "mix", "input"


@dataclass(frozen=True)
class _Row(Plain):
    """A row keeps what says which row it is; everything else is a number that adds up (None: not known)."""

    keys: ClassVar[tuple[str, ...]] = ("name", "kind")

    def same(self, other: Self) -> bool:
        return all(getattr(self, key) == getattr(other, key) for key in self.keys)

    def __add__(self, other: Self) -> Self:
        sums = {}
        for item in fields(self):
            a, b = getattr(self, item.name), getattr(other, item.name)
            if item.name == "fan_out":
                sums[item.name] = a if a == b else None
            elif item.name not in self.keys:
                sums[item.name] = None if a is None or b is None else a + b
        return replace(self, **sums)


@dataclass(frozen=True)
class Product(_Row):
    """A product driven by spikes: each costs `fan_out` accumulates. Numbers are sums over samples and steps.

    Attributes:
        kind: "linear", "scores" (Q·K) or "mix" (P·V). Attention has three rows for each product, those of SESA.
        source: the site whose spikes drive it.
        bits: of the number that one accumulate adds: a weight, or a code of the other operand; None: 32-bit float.
        fan_out: None where it differs between batches (texts of other lengths).
        real_spikes, real_accumulates: without padded tokens; None where this was not counted.
    """

    keys: ClassVar[tuple[str, ...]] = ("name", "kind", "source", "bits")

    name: str
    kind: str
    source: str
    bits: int | None
    spikes: int
    fan_out: int | None
    accumulates: int
    real_spikes: int | None = None
    real_accumulates: int | None = None


@dataclass(frozen=True)
class Dense(_Row):
    """The same product without time, as the quantized and the float network compute it. kind "input": the SNN too.

    Attributes:
        left_bits, right_bits: of the operands in the quantized network; None: 32-bit float.
        macs: multiply–accumulates; `outputs`: sums that are written; both once per inference, summed over samples.
    """

    keys: ClassVar[tuple[str, ...]] = ("name", "kind", "left_bits", "right_bits")

    name: str
    kind: str
    left_bits: int | None
    right_bits: int | None
    macs: int
    outputs: int


@dataclass(frozen=True)
class Layer(_Row):
    """The neurons of a site. `updates`: neurons that a step had to look at, summed over steps and samples."""

    keys: ClassVar[tuple[str, ...]] = ("name", "bits")

    name: str
    bits: int
    neurons: int
    spikes: int
    updates: int


@dataclass(frozen=True)
class Function(_Row):
    """A function between products: softmax, a norm, an activation, an addition.

    Attributes:
        evaluations: how often, over samples and steps; `elements` and `rows` (vectors) are sums over those.
        single_elements, single_rows: of one evaluation per sample, as networks without time make it.
    """

    name: str
    kind: str
    evaluations: int
    elements: int
    rows: int
    single_elements: int
    single_rows: int


@dataclass(frozen=True)
class Operations(Plain):
    """Operations of a spiking network, counted from its spikes, for one batch or the sum of many.

    Attributes:
        steps: T, of the longest run. After a run's end its network is silent.
        per_step: "linear", "scores", "mix" (accumulates), "spikes", "updates"; for each the sum over samples, by step.
        function_elements, function_rows: kind of function → the same.
        untimed: accumulates of products that read a part of a site that was not recorded: known in sum from the
            neurons' counts, but not when.

    Example:
        >>> row = Product("fc", "linear", "norm", 8, spikes=3, fan_out=4, accumulates=12)
        >>> one = Operations(1, 2, (row,), (), (), (), {"linear": (8, 4), "spikes": (2, 1)})
        >>> two = one + one
        >>> two.samples, two.products[0].accumulates, two.per_step["linear"], two.n_pre, two.n_post
        (2, 24, (16, 8), 12.0, 3.0)
        >>> Operations.from_json(two.to_json()) == two
        True
    """

    samples: int
    steps: int
    products: tuple[Product, ...]
    dense: tuple[Dense, ...]
    layers: tuple[Layer, ...]
    functions: tuple[Function, ...]
    per_step: dict[str, tuple[int, ...]]
    function_elements: dict[str, tuple[int, ...]] = field(default_factory=dict)
    function_rows: dict[str, tuple[int, ...]] = field(default_factory=dict)
    untimed: int = 0

    def __add__(self, other: "Operations") -> "Operations":
        steps = max(self.steps, other.steps)
        return Operations(
            samples=self.samples + other.samples,
            steps=steps,
            products=_added(self.products, other.products),
            dense=_added(self.dense, other.dense),
            layers=_added(self.layers, other.layers),
            functions=_added(self.functions, other.functions),
            per_step=_over_time(self.per_step, other.per_step, steps),
            function_elements=_over_time(self.function_elements, other.function_elements, steps),
            function_rows=_over_time(self.function_rows, other.function_rows, steps),
            untimed=self.untimed + other.untimed,
        )

    @property
    def n_pre(self) -> float:
        """Spikes delivered through synapses (the paper's N_pre), of an inference: the mean over samples."""
        return self.accumulates() / self.samples

    @property
    def n_post(self) -> float:
        """Spikes fired by neurons (the paper's N_post), of an inference: the mean over samples."""
        return sum(self.per_step["spikes"]) / self.samples

    def accumulates(self, *kinds: str) -> int:
        """Accumulates of products of these kinds, or of all; summed over samples and steps."""
        return sum(row.accumulates for row in self.products if not kinds or row.kind in kinds)

    def real_accumulates(self) -> int | None:
        """The same without padded tokens; None where this was not counted."""
        rows = [row.real_accumulates for row in self.products]
        return None if any(row is None for row in rows) else sum(row for row in rows if row is not None)

    def macs(self, *kinds: str) -> int:
        """Multiply–accumulates of the same products without time, summed over samples."""
        return sum(row.macs for row in self.dense if not kinds or row.kind in kinds)

    def per_inference(self) -> dict[str, float | None]:
        """Means over samples: the numbers that a table shows."""
        real = self.real_accumulates()
        functions: dict[str, int] = {}
        for row in self.functions:
            functions[row.kind] = functions.get(row.kind, 0) + row.elements
        sums: dict[str, int | None] = {
            "spikes": sum(self.per_step["spikes"]),
            "linear accumulates": self.accumulates(LINEAR),
            "attention accumulates": self.accumulates(SCORES, MIX),
            "accumulates without padding": real,
            "neuron updates": sum(row.updates for row in self.layers),
            "input layer MACs": self.macs(INPUT),
            "MACs without time": self.macs(),
            **{f"{kind} elements": elements for kind, elements in functions.items()},
        }
        return {name: None if total is None else total / self.samples for name, total in sums.items()}


def _added(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(left) != len(right) or not all(a.same(b) for a, b in zip(left, right, strict=True)):
        raise ConfigError("these operations are of different networks: only batches of the same one add up")
    return tuple(a + b for a, b in zip(left, right, strict=True))


def _over_time(
    left: Mapping[str, Sequence[int]], right: Mapping[str, Sequence[int]], steps: int
) -> dict[str, tuple[int, ...]]:
    names: Iterable[str] = dict.fromkeys([*left, *right])
    long = [({name: _long(counts.get(name, ()), steps) for name in names}) for counts in (left, right)]
    return {name: tuple(a + b for a, b in zip(long[0][name], long[1][name], strict=True)) for name in names}


def _long(values: Sequence[int], steps: int) -> tuple[int, ...]:
    return (*values, *[0] * (steps - len(values)))
