"""What a recipe can say, and which recipes there are, as the tables of docs/recipes.md.

python -m spikezip.training.describe docs/recipes.md recipes    # write both tables anew
"""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import getdoc
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from spikezip.training.recipe import Recipe, load_recipe


class Row(NamedTuple):
    """One setting."""

    key: str
    type: str
    default: str
    meaning: str


def describe() -> list[Row]:
    """Every setting of a recipe. The settings of the three trainings are listed once.

    Example:
        >>> rows = {row.key: row for row in describe()}
        >>> rows["stages.quantize.levels"]
        Row(key='stages.quantize.levels', type='whole number', default='32', meaning='codes per site; even, 4 to 256.')
    """
    return list(_rows(Recipe, "", {}))


def _rows(cls: Any, prefix: str, seen: dict[Any, str]) -> Iterator[Row]:
    hints, meanings = get_type_hints(cls), _meanings(cls)
    for i, field in enumerate(fields(cls)):
        # A class that does not explain its settings one by one explains them together, at the first.
        meaning = meanings.get(field.name) or (_summary(cls) if i == 0 else "see above")
        key = prefix + field.name
        inner, suffix = _inner(hints[field.name])
        if inner in seen:
            yield Row(key, f"as `{seen[inner]}`", _default(field), meaning)
            continue
        yield Row(key, _type(hints[field.name]), _default(field), meaning)
        if inner is not None:
            seen[inner] = key
            yield from _rows(inner, key + suffix, seen)


def _inner(hint: Any) -> tuple[Any, str]:
    """The settings class inside a type, and what joins its keys to the key of the whole."""
    if is_dataclass(hint):
        return hint, "."
    joint = {tuple: "[].", dict: ".PATTERN.", Mapping: ".PATTERN."}.get(get_origin(hint), ".")
    for option in get_args(hint):
        if is_dataclass(option):
            return option, joint
    return None, ""


def _type(hint: Any) -> str:
    options = get_args(hint)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(_type(option) for option in options if option is not NoneType) + " or null"
    if origin is Literal:
        return " or ".join(f"`{option}`" for option in options)
    if origin is tuple:
        return "list" if is_dataclass(options[0]) else f"list: {_type(options[0])}s"
    if is_dataclass(hint):
        return "group"
    return "mapping" if origin is not None else _TYPES[hint]


_TYPES = {int: "whole number", float: "number", bool: "true or false", str: "text"}


def _default(field: "Field[Any]") -> str:
    if field.default is MISSING:
        return "required" if field.default_factory is MISSING else ""
    if isinstance(field.default, bool) or field.default is None:
        return {None: "null", True: "true", False: "false"}[field.default]
    if isinstance(field.default, tuple):
        return f"[{', '.join(map(str, field.default))}]"
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def _meanings(cls: Any) -> dict[str, str]:
    """The `Args:` of a class's docstring, by name; `a, b: …` explains two."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", getdoc(cls) or "", re.MULTILINE)
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", "\n" + section[1]) if section else ():
        names, _, meaning = entry.partition(":")
        found |= {name.strip(): " ".join(meaning.split()) for name in names.split(",") if meaning.strip()}
    return found


def _summary(cls: Any) -> str:
    return " ".join((getdoc(cls) or "").partition("\n\n")[0].split())


def settings_table() -> str:
    """`describe` as a Markdown table."""
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{row.key}` | {row.type} | {row.default} | {row.meaning} |" for row in describe()]
    return "\n".join(lines).replace(" |  |", " | |") + "\n"


def recipes_table(folder: str | Path) -> str:
    """The recipes of a folder with the results that they are expected to give, as a Markdown table."""
    lines = [
        "| recipe | starts from | data | levels | T | ReLU | QANN | SNN | source |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted(Path(folder).glob("*.yaml"), key=lambda path: path.stem):
        recipe = load_recipe(path)
        model = recipe.model.path or (f"scratch ({recipe.model.type})" if recipe.model.type else "`--set model=`")
        accuracy = {e.what: f"{e.accuracy:g}" for e in recipe.expected}
        steps = ", ".join(map(str, recipe.stages.verify.steps)) if recipe.stages.verify else ""
        cells = [
            f"[{path.stem}](../recipes/{path.name})",
            model,
            recipe.data.name or "",
            str(recipe.stages.quantize.levels) if recipe.stages.quantize else "",
            steps,
            *(accuracy.get(what, "–") for what in ("ReLU", "QANN", "SNN")),
            ", ".join(dict.fromkeys(e.source for e in recipe.expected)) or "not measured yet",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_tables(page: str, recipes: str | Path) -> str:
    """A page whose tables, each between `<!-- settings -->` or `<!-- recipes -->` and `<!-- end -->`, are made anew.

    Example:
        >>> print(with_tables("<!-- recipes -->\\nold\\n<!-- end -->", "no such folder"))
        <!-- recipes -->
        | recipe | starts from | data | levels | T | ReLU | QANN | SNN | source |
        |---|---|---|---|---|---|---|---|---|
        <!-- end -->
    """
    for name, table in (("settings", settings_table()), ("recipes", recipes_table(recipes))):
        before, start, rest = page.partition(f"<!-- {name} -->\n")
        if start:
            page = before + start + table + rest[rest.index("<!-- end -->") :]
    return page


if __name__ == "__main__":
    _page = Path(sys.argv[1])
    _page.write_text(with_tables(_page.read_text(encoding="utf-8"), sys.argv[2]), encoding="utf-8")
