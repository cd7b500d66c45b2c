"""Sizes that are known only when a batch is there: integer expressions over the symbols of a program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log2, prod
from typing import Any

from spikezip.errors import CoverageError, InputError

Bindings = Mapping[str, int]  # symbol → its size in this batch

# A size from a file may be anything: numbers are those of 64 bits, and expressions are as small as real ones.
_LARGEST = 2**63 - 1
_MOST_ARGUMENTS = 64
_DEEPEST = 64


def _power(a: float, b: float) -> Any:
    if abs(a) > 1 and b * log2(abs(a)) > 64:  # known before it is computed: a tower of powers never ends
        raise OverflowError
    return a**b


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": lambda *args: sum(args),
    "*": lambda *args: prod(args),
    "//": lambda a, b: a // b,
    "/": lambda a, b: a / b,
    "%": lambda a, b: a % b,
    "**": _power,
    "max": max,
    "min": min,
    "float": float,
    "int": int,
    "floor": lambda a: int(a // 1),
    "ceil": lambda a: -int(-a // 1),
}
_ARGUMENTS = {"//": 2, "/": 2, "%": 2, "**": 2, "float": 1, "int": 1, "floor": 1, "ceil": 1}
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
        args = [bind(arg, bindings) for arg in self.args]
        try:
            found = _OPERATIONS[self.op](*args)
            if -_LARGEST <= found <= _LARGEST:
                return found
        except (ArithmeticError, TypeError, ValueError):  # division by zero, too large, no real number
            pass
        raise InputError(f"the size {self} has no value for a batch with {dict(bindings)}")

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
    def from_json(cls, data: Any, deepest: int = _DEEPEST) -> "Size":
        """The size that `to_json` wrote; anything else is refused, and so is what would be too much work.

        Example:
            >>> Size.from_json(["*", 4, ["symbol", "b"]])
            Size(op='*', args=(4, Size(op='symbol', args=('b',))))
        """
        if type(data) is not list or not 2 <= len(data) <= 1 + _MOST_ARGUMENTS or type(data[0]) is not str:
            raise ValueError(f"{str(data)[:80]} is not a size")
        if not deepest:
            raise ValueError(f"a size has more than {_DEEPEST} operations inside one another")
        op, *args = data
        if op == "symbol" and len(args) == 1 and type(args[0]) is str:
            return cls("symbol", (args[0],))
        if op not in _OPERATIONS or len(args) != _ARGUMENTS.get(op, len(args)):
            raise ValueError(f"{str(data)[:80]} is not a size")
        return cls(op, tuple(cls.from_json(a, deepest - 1) if type(a) is list else _number(a) for a in args))


def _number(x: Any) -> int | float:
    if not isinstance(x, (int, float)) or isinstance(x, bool) or not abs(x) <= _LARGEST:  # NaN is refused, too
        raise ValueError(f"{str(x)[:80]} is no number of a size")
    return x


def bind(size: Any, bindings: Bindings) -> Any:
    """A number as it is; a size for this batch.

    Example:
        >>> bind(3, {}), bind(Size("symbol", ("b",)), {"b": 2})
        (3, 2)
    """
    return size.at(bindings) if isinstance(size, Size) else size


def plus(a: Any, b: Any) -> Any:
    """The sum of two sizes or numbers.

    Example:
        >>> plus(2, 3), str(plus(Size("symbol", ("b",)), 1))
        (5, 'b+1')
    """
    return Size("+", (a, b)) if isinstance(a, Size) or isinstance(b, Size) else a + b


def minus(a: Any, b: Any) -> Any:
    """The difference of two sizes or numbers.

    Example:
        >>> minus(5, 3), minus(Size("symbol", ("b",)), 1).at({"b": 4})
        (2, 3)
    """
    if a == b:
        return 0
    return plus(a, Size("*", (-1, b)) if isinstance(b, Size) else -b)


def times(*sizes: Any) -> Any:
    """The product of sizes, a plain number where no symbol is among them.

    Example:
        >>> times(2, 3), str(times(2, Size("symbol", ("b",)), 3))
        (6, '6*b')
    """
    number = prod(x for x in sizes if not isinstance(x, Size))
    symbolic = [x for x in sizes if isinstance(x, Size)]
    if not symbolic:
        return number
    factors = ([number] if number != 1 else []) + symbolic
    return factors[0] if len(factors) == 1 else Size("*", tuple(factors))


def from_torch(value: Any, names: Mapping[str, Any]) -> Any:
    """A number or a symbolic one of torch (SymInt, SymFloat) as a number or a `Size`.

    `names` gives, for each symbol of torch, our name for it, or the size that it stands for.
    """
    node = getattr(value, "node", None)
    return value if node is None else _from_sympy(node.expr, names)


def _from_sympy(expression: Any, names: Mapping[str, Any]) -> Any:
    if expression.is_Integer:
        return int(expression)
    if expression.is_Rational or expression.is_Float:
        return float(expression)
    if expression.is_Symbol:
        if str(expression) not in names:
            raise CoverageError(
                "a shape depends on the values of a tensor, not on sizes alone: it picks elements by a condition. "
                "Use torch.where, or a mask, instead"
            )
        known = names[str(expression)]
        return Size("symbol", (known,)) if isinstance(known, str) else known
    op = _NAMES.get(type(expression).__name__)
    if op is None:
        raise CoverageError(f"a size is computed by {type(expression).__name__}, which is not supported")
    args = [_from_sympy(arg, names) for arg in expression.args]
    if op == "**" and isinstance(args[1], int) and args[1] < 0:
        raise CoverageError(f"a size is a fraction: {expression}")
    return Size(op, tuple(args))
