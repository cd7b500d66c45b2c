"""YAML text → plain data that knows the line of every key; settings from the command line on top; and back to YAML.

Plain words are read as in YAML 1.2, not by PyYAML's own rules (YAML 1.1): `1e-4` is a number; `yes`, `no`, `on`, `off`
are text. Beyond either, `none` is null.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from spikezip.errors import ConfigError
from spikezip.training.typed import dotted

_PART = r"""(?:"[^"]+"|'[^']+'|[^."'\s]+)"""
_TAG = "tag:yaml.org,2002:"
_NUMBER = list("-+.0123456789")
_RULES = [
    (_TAG + "null", re.compile(r"^(?:~|null|Null|NULL|none|None|)$"), ["~", "n", "N", ""]),
    (_TAG + "bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    (_TAG + "int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), _NUMBER),
    (
        _TAG + "float",
        re.compile(
            r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        _NUMBER,
    ),
]


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML's own attribute


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML's own attribute

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in _RULES:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)


Places = dict[tuple[str, ...], str]


@dataclass
class Document:
    """Data, and for the path of each key the words that say where it was set."""

    data: Any
    places: Places = field(default_factory=dict)

    def place(self, path: tuple[str, ...]) -> str:
        """Where this key was set, or else the group that it would stand in."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]

    def set(self, path: tuple[str, ...], value: "Document", text: str) -> None:
        """Put a value at a path, as `--set` does: what was there is replaced, groups on the way are made."""
        group = self.data
        for depth, key in enumerate(path[:-1], start=1):
            if group.get(key) is None:
                group[key] = {}
                self.places[path[:depth]] = text
            group = group[key]
            if not isinstance(group, dict):
                raise ConfigError(f"{text}: {dotted(path[:depth])} is a single value, so {dotted(path)} cannot be set")
        group[path[-1]] = value.data
        self.places = {p: place for p, place in self.places.items() if p[: len(path)] != path}
        self.places |= {path + p: text for p in ((), *value.places)}


def read_yaml(text: str, name: str, numbered: bool = True) -> Document:
    """Parse YAML. `name` is what errors call the text; `numbered` adds the line.

    Example:
        >>> document = read_yaml("a: 1e-4\\nb: {c: none}\\n", "x.yaml")
        >>> document.data, document.place(("b", "c"))
        ({'a': 0.0001, 'b': {'c': None}}, 'x.yaml, line 2')
        >>> read_yaml("a: 1\\na: 2\\n", "x.yaml")
        Traceback (most recent call last):
            ...
        spikezip.errors.ConfigError: x.yaml, line 2: a: is set twice, first in line 1
    """

    def place(mark: Any) -> str:
        return f"{name}, line {mark.line + 1}" if numbered and mark else name

    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        where = place(error.problem_mark or error.context_mark)
        raise ConfigError(f"{where}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise ConfigError(f"{name}: not YAML: {' '.join(str(error).split())}") from None
    if root is None:
        return Document(None, {(): name})
    document = Document(None, {(): place(root.start_mark)})
    document.data = _value(root, (), place, document.places, ())
    return document


def _value(
    node: Any, path: tuple[str, ...], place: Callable[[Any], str], places: Places, around: tuple[Any, ...]
) -> Any:
    """The data of a node inside the nodes `around`; fills `places`."""
    where = place(node.start_mark)
    if any(node is outer for outer in around):
        raise ConfigError(f"{where}: {dotted(path)}: contains itself through an alias")
    if not node.tag.startswith(_TAG):
        raise ConfigError(f"{where}: {dotted(path)}: the tag {node.tag} has no meaning here; remove it")
    around = (*around, node)
    if isinstance(node, yaml.SequenceNode):
        items = []
        for i, item in enumerate(node.value):
            places[(*path, str(i))] = place(item.start_mark)
            items.append(_value(item, (*path, str(i)), place, places, around))
        return items
    if isinstance(node, yaml.MappingNode):
        group: dict[str, Any] = {}
        for key, item in node.value:
            where = place(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{where}: a key of {dotted(path) or 'the file'} is not a word; check the brackets")
            if key.value == "<<":
                raise ConfigError(f"{where}: `<<` (merging) is not read here; use an alias for a whole value")
            inner = (*path, key.value)
            if key.value in group:
                first = places[inner].rpartition(", ")[2]
                raise ConfigError(f"{where}: {dotted(inner)}: is set twice, first in {first}")
            places[inner] = where
            group[key.value] = _value(item, inner, place, places, around)
        return group
    return _scalar(node, where, path)


def _scalar(node: Any, where: str, path: tuple[str, ...]) -> Any:
    kind = node.tag.removeprefix(_TAG)
    try:
        match kind:
            case "null":
                return None
            case "bool":
                return {"true": True, "false": False}[node.value.lower()]
            case "int":
                return int(node.value)
            case "float":
                return float(node.value.replace(".inf", "inf").replace(".nan", "nan").lower())
            case "str":
                return node.value
    except (ValueError, KeyError):
        pass
    raise ConfigError(f"{where}: {dotted(path)}: {node.value!r} is not of the type {kind} that its tag names")


def read_file(path: str | Path) -> Document:
    """Parse a YAML file that holds one mapping."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}. The path of a recipe (.yaml) is needed") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None
    document = read_yaml(text, str(path))
    if not isinstance(document.data, dict):
        raise ConfigError(f"{document.place(())}: expected settings as `key: value`, found none")
    return document


def read_override(text: str) -> tuple[tuple[str, ...], Document]:
    """`key=value` → path and value. Keys are dotted; a part that holds a dot stands in quotes; values are YAML.

    Example:
        >>> path, value = read_override('quantize.sites."*.p"={levels: 64}')
        >>> path, value.data
        (('quantize', 'sites', '*.p'), {'levels': 64})
    """
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(rf"{_PART}(?:\.{_PART})*", key.strip()):
        raise ConfigError(f"--set {text}: expected key=value, with a key such as qat.epochs")
    path = tuple(part.strip("\"'") for part in re.findall(_PART, key.strip()))
    return path, read_yaml(value, f"--set {text}", numbered=False)


def to_yaml(data: Mapping[str, Any]) -> str:
    """Plain data as YAML that `read_yaml` reads back equal.

    Example:
        >>> to_yaml({"a": "none", "b": 1e-4, "c": [1, 2]})
        "a: 'none'\\nb: 0.0001\\nc:\\n- 1\\n- 2\\n"
    """
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text
