"""Settings that check themselves: plain data → frozen dataclasses, with errors that name the key at fault."""

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from spikezip.errors import ConfigError

Path = tuple[str, ...]


class SettingError(ConfigError):
    """A setting that cannot be. `path` leads to it, so that a reader can add the line where it stands."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{dotted(path)}: {problem}" if path else problem)

    def under(self, key: str) -> "SettingError":
        return SettingError((key, *self.path), self.problem)


class Settings:
    """Base of the dataclasses of a recipe: converts and checks its fields, and goes to plain JSON data and back.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Speed(Settings):
        ...     rate: float = 1.0
        >>> Speed.from_json({"rate": 2}).to_json()
        {'rate': 2.0}
        >>> Speed.from_json({"rat": 2})
        Traceback (most recent call last):
            ...
        spikezip.training.typed.SettingError: rat: unknown key, did you mean 'rate'? Known here: rate
    """

    def __post_init__(self) -> None:
        for field in _fields(type(self)):
            value = _at(field.name, _field, type(self), field, getattr(self, field.name))
            object.__setattr__(self, field.name, value)  # frozen for others
        self.check()

    def check(self) -> None:
        """Refuse values that have the right type and cannot work. Each class says what these are."""

    def within(self, *keys: str, **bounds: float) -> None:
        """Refuse a number outside `above`, `least`, `below`, `most`. Keys may be dotted; None passes."""
        for key in keys:
            path = tuple(key.split("."))
            value: Any = self
            for name in path:
                value = None if value is None else getattr(value, name)
            for number in value if isinstance(value, tuple) else () if value is None else (value,):
                if not all(_BOUNDS[name][1](number, bound) for name, bound in bounds.items()):
                    wanted = " and ".join(f"{_BOUNDS[name][0]} {bound:g}" for name, bound in bounds.items())
                    raise SettingError(path, f"must be {wanted}, not {number:g}")

    def to_json(self) -> dict[str, Any]:
        """Plain data: dicts, lists, numbers, text, None."""
        return {field.name: _plain(getattr(self, field.name)) for field in _fields(type(self))}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Settings from what `to_json` gave, or from a part of it: the rest has its defaults."""
        built: Self = _build(cls, data)
        return built


_BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "above": ("above", lambda x, bound: x > bound),
    "least": ("at least", lambda x, bound: x >= bound),
    "below": ("below", lambda x, bound: x < bound),
    "most": ("at most", lambda x, bound: x <= bound),
}


def dotted(path: Path) -> str:
    """A path as it is written with `--set`; a part that holds a dot is put in quotes.

    Example:
        >>> dotted(("quantize", "sites", "*.p", "levels"))
        'quantize.sites."*.p".levels'
    """
    return ".".join(f'"{part}"' if "." in part else part for part in path)


def _build(cls: Any, value: Any) -> Any:
    """A dataclass from a mapping."""
    if isinstance(value, cls):
        return value
    known = {field.name: field for field in _fields(cls)}
    if not isinstance(value, Mapping):
        raise SettingError((), f"expected a group of settings ({', '.join(known) or 'none'}), not {_shown(value)}")
    for key in value:
        if key not in known:
            raise SettingError((str(key),), f"unknown key{_close(str(key), list(known))}")
    missing = [name for name, field in known.items() if _required(field) and name not in value]
    if missing:
        raise SettingError((), f"missing key {missing[0]!r}")
    given = {name: _at(name, _field, cls, field, value[name]) for name, field in known.items() if name in value}
    try:
        return cls(**given)
    except SettingError:
        raise
    except ConfigError as error:  # a class from elsewhere, with checks of its own
        raise SettingError((), str(error)) from None


def _field(cls: type, field: "Field[Any]", value: Any) -> Any:
    hint = _hints(cls)[field.name]
    if field.metadata.get("switch"):  # a stage is also `true` (all defaults) or `false`
        if isinstance(value, bool):
            value = {} if value else None
        elif not (value is None or isinstance(value, Mapping) or is_dataclass(value)):
            raise SettingError((), f"expected true, false or a group of settings, not {_shown(value)}")
    return _convert(value, hint)


def _convert(value: Any, hint: Any) -> Any:
    """`value` as the type `hint`, where that loses nothing: 3 is a float, 3.0 is no int, True is neither."""
    options = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        if value is None:
            return None
        (hint,) = (option for option in options if option is not NoneType)
        return _convert(value, Literal[(*get_args(hint), None)] if get_origin(hint) is Literal else hint)
    if is_dataclass(hint):
        return _build(hint, value)
    if get_origin(hint) is tuple:
        return _tuple(value, options)
    if get_origin(hint) in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise SettingError((), f"expected a mapping of keys to values, not {_shown(value)}")
        return {str(k): _at(str(k), _convert, v, options[1]) for k, v in value.items()}
    if hint is Any:
        return _anything(value)
    if get_origin(hint) is Literal:
        if not any(type(value) is type(option) and value == option for option in options):
            names = ", ".join("null" if option is None else str(option) for option in options)
            raise SettingError((), f"expected one of {names}, not {_shown(value)}")
        return value
    if hint is float and type(value) is int:
        value = float(value) if abs(value) < 2**1000 else math.inf
    if type(value) is not hint:
        remedy = "; put it in quotes" if hint is str and isinstance(value, (int, float)) else ""
        raise SettingError((), f"expected {_WORDS[hint]}, not {_shown(value)}{remedy}")
    return _finite(value)


def _tuple(value: Any, options: tuple[Any, ...]) -> tuple[Any, ...]:
    if options[-1] is Ellipsis:  # any number: none and one may be written without a list
        items = [] if value is None else value if isinstance(value, (list, tuple)) else [value]
        return tuple(_at(str(i), _convert, x, options[0]) for i, x in enumerate(items))
    if not isinstance(value, (list, tuple)) or len(value) != len(options):
        raise SettingError((), f"expected a list of {len(options)} numbers, not {_shown(value)}")
    return tuple(_at(str(i), _convert, value[i], options[i]) for i in range(len(options)))


def _anything(value: Any) -> Any:
    """Data of any shape that JSON can hold."""
    if isinstance(value, Mapping):
        return {str(k): _at(str(k), _anything, v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_at(str(i), _anything, x) for i, x in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return _finite(value)
    raise SettingError((), f"expected data as JSON holds it, not {_shown(value)}")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingError((), f"expected a finite number, not {value}")
    return value


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _at(key: str, convert: Callable[..., Any], *arguments: Any) -> Any:
    """What `convert` makes of the arguments; its errors get this key in front."""
    try:
        return convert(*arguments)
    except SettingError as error:
        raise error.under(key) from None


def _fields(cls: Any) -> "tuple[Field[Any], ...]":
    return fields(cls)


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _required(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _close(key: str, known: list[str]) -> str:
    close = get_close_matches(key, known, n=1)
    return (f", did you mean {close[0]!r}?" if close else ".") + f" Known here: {', '.join(known) or 'none'}"


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return f"the text {value!r}" if isinstance(value, str) else repr(value)
