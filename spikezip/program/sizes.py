"""Sizes that are known only when a batch is there: integer expressions over the symbols of a program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from spikezip.errors import CoverageError

Bindings = Mapping[str, int]  # symbol → its size in this batch

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": lambda *args: sum(args),
    "*": lambda *args: prod(args),
    "//": lambda a, b: a // b,
    "/": lambda a, b: a / b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "max": max,
    "min": min,
    "float": float,
    "int": int,
    "floor": lambda a: int(a // 1),
    "ceil": lambda a: -int(-a // 1),
}
# How sympy and torch call these operations.
_NAMES = {
    "Add": "+", "Mul": "*", "FloorDiv": "//", "CleanDiv": "//", "IntTrueDiv": "/", "FloatTrueDiv": "/",
    "Mod": "%", "PythonMod": "%", "Pow": "**", "PowByNatural": "**", "FloatPow": "**", "Max": "max", "Min": "min",
    "ToFloat": "float", "TruncToInt": "int", "FloorToInt": "floor", "floor": "floor",
    "CeilToInt": "ceil", "ceiling": "ceil",
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """A symbol (`op="symbol"`), or an operation on sizes and numbers.

    Example:
        >>> windows = Size("*", (4, Size("symbol", ("b",))))
        >>> str(windows), windows.at({"b": 3}), windows.symbols
        ('4*b', 12, frozenset({'b'}))
    """

    op: str
    args: tuple[Any, ...]

    def at(self, bindings: Bindings) -> Any:
        """The number that this is for a batch."""
        if self.op == "symbol":
            return bindings[self.args[0]]
        return _OPERATIONS[self.op](*(bind(arg, bindings) for arg in self.args))

    @property
    def symbols(self) -> frozenset[str]:
        if self.op == "symbol":
            return frozenset(self.args)
        return frozenset().union(*(arg.symbols for arg in self.args if isinstance(arg, Size)))

    def __str__(self) -> str:
        if self.op == "symbol":
            return str(self.args[0])
        if self.op in ("+", "*", "//", "/", "%", "**"):
            inner = (f"({a})" if isinstance(a, Size) and a.op != "symbol" else str(a) for a in self.args)
            return self.op.join(inner)
        return f"{self.op}({', '.join(map(str, self.args))})"

    def to_json(self) -> list[Any]:
        return [self.op, *(arg.to_json() if isinstance(arg, Size) else arg for arg in self.args)]

    @classmethod
    def from_json(cls, data: list[Any]) -> "Size":
        """The size that `to_json` wrote; anything else is refused.

        Example:
            >>> Size.from_json(["*", 4, ["symbol", "b"]])
            Size(op='*', args=(4, Size(op='symbol', args=('b',))))
        """
        op, *args = data
        if op == "symbol" and len(args) == 1 and isinstance(args[0], str):
            return cls("symbol", (args[0],))
        if op not in _OPERATIONS or any(not isinstance(a, (int, float, list)) for a in args):
            raise ValueError(f"{data!r} is not a size")
        return cls(op, tuple(cls.from_json(a) if isinstance(a, list) else a for a in args))


def bind(size: Any, bindings: Bindings) -> Any:
    """A number as it is; a size for this batch.

    Example:
        >>> bind(3, {}), bind(Size("symbol", ("b",)), {"b": 2})
        (3, 2)
    """
    return size.at(bindings) if isinstance(size, Size) else size


def from_torch(value: Any, names: Mapping[str, str]) -> Any:
    """A number or a symbolic one of torch (SymInt, SymFloat) as a number or a `Size`; `names` renames symbols."""
    node = getattr(value, "node", None)
    return value if node is None else _from_sympy(node.expr, names)


def _from_sympy(expression: Any, names: Mapping[str, str]) -> Any:
    if expression.is_Integer:
        return int(expression)
    if expression.is_Rational or expression.is_Float:
        return float(expression)
    if expression.is_Symbol:
        if str(expression) not in names:
            raise CoverageError(f"a size depends on the values of a tensor ({expression}), not on its shape alone")
        return Size("symbol", (names[str(expression)],))
    op = _NAMES.get(type(expression).__name__)
    if op is None:
        raise CoverageError(f"a size is computed by {type(expression).__name__}, which is not supported")
    args = [_from_sympy(arg, names) for arg in expression.args]
    if op == "**" and isinstance(args[1], int) and args[1] < 0:
        raise CoverageError(f"a size is a fraction: {expression}")
    return Size(op, tuple(args))
