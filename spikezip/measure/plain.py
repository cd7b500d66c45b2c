"""Frozen dataclasses as plain JSON data and back, with errors that name the place."""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from spikezip.errors import InputError

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "null"}


class Plain:
    """Base of the parts of a document: `to_json` gives dicts, lists, numbers and text; `from_json` reads and checks.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Speed(Plain):
        ...     name: str
        ...     rates: tuple[float, ...]
        >>> Speed.from_json({"name": "a", "rates": [1, 2.5]})
        Speed(name='a', rates=(1.0, 2.5))
        >>> Speed.from_json({"name": "a", "rates": [1, "2"]})
        Traceback (most recent call last):
            ...
        spikezip.errors.InputError: rates[1]: expected a number, not '2'
    """

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Refuse values of the right type that cannot be. Each class says what these are."""

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = _plain(self)
        return plain

    @classmethod
    def from_json(cls, data: Any, where: str = "") -> Self:
        built: Self = _build(cls, data, where)
        return built


class Document(Plain):
    """What has a file of its own."""

    def save(self, path: str | Path) -> Path:
        """Write it as JSON."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote; anything else is an error that names the file."""
        path = Path(path)
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not JSON: {error}") from None
        except ValueError as error:  # what `from_json` and the checks say
            raise InputError(f"{path}: {error}") from None


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _build(cls: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _error(where, f"expected a group of values, not {_shown(value)}")
    known = {field.name: field for field in fields(cls)}
    for key in value:
        if key not in known:
            raise _error(where, f"unknown key {key!r}; known here: {', '.join(known)}")
    for name, field in known.items():
        if name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise _error(where, f"there is no {name!r}")
    hints = _hints(cls)
    read = {key: _read(item, hints[key], f"{where}.{key}" if where else key) for key, item in value.items()}
    try:
        return cls(**read)
    except InputError as error:  # what `check` found
        raise (_error(where, str(error)) if where else error) from None


def _read(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type `hint`: 3 is a float, 3.0 is no int, True is neither."""
    options = get_args(hint)
    if hint is Any:
        return value
    if get_origin(hint) in (Union, UnionType):
        if value is None and NoneType in options:
            return None
        plain = [option for option in options if option is not NoneType]
        matching = [option for option in plain if type(value) is option]
        return _read(value, matching[0] if matching else plain[0], where)
    if is_dataclass(hint):
        return _build(hint, value, where)
    if get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise _error(where, f"expected a list, not {_shown(value)}")
        return tuple(_read(item, options[0], f"{where}[{i}]") for i, item in enumerate(value))
    if hint is dict or get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            raise _error(where, f"expected a group of values, not {_shown(value)}")
        return {str(key): _read(item, options[1] if options else Any, f"{where}.{key}") for key, item in value.items()}
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint or (hint is float and not math.isfinite(value)):
        raise _error(where, f"expected {_WORDS[hint]}, not {_shown(value)}")
    return value


def _error(where: str, problem: str) -> InputError:
    return InputError(f"{where}: {problem}" if where else problem)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a group"
    return "a list" if isinstance(value, (list, tuple)) else repr(value)


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def body_of(data: Any, form: str, version: int, what: str, written_by: str, again: str) -> dict[str, Any]:
    """The content of a document, once its format and version are seen to be those that are read here.

    Example:
        >>> body_of({"format": "spikezip-x", "version": 2, "a": 1}, "spikezip-x", 2, "x", "spikezip x", "do it again")
        {'a': 1}
        >>> body_of({"format": "spikezip-x", "version": 3}, "spikezip-x", 2, "x", "spikezip x", "do it again")
        Traceback (most recent call last):
        spikezip.errors.InputError: this x has version 3, here 2 is read: do it again, or install the spikezip that ...
    """
    if not isinstance(data, dict) or data.get("format") != form:
        raise InputError(f"this is no {what}: `{written_by} … --json FILE` writes one")
    if data.get("version") != version:
        raise InputError(
            f"this {what} has version {data.get('version')!r}, here {version} is read: "
            f"{again}, or install the spikezip that wrote it"
        )
    return {key: value for key, value in data.items() if key not in ("format", "version")}
