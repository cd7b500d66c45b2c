"""Figures of others, as they give them, each with its source; ours beside them."""

from collections.abc import Iterable, Mapping
from typing import Any

from spikezip.errors import ConfigError
from spikezip.results.book import Book
from spikezip.results.groups import LANGUAGE, TITLES, VISION, Group
from spikezip.results.lookup import find
from spikezip.results.markdown import Table, link
from spikezip.results.numbers import DASH, millions, si, spread

_STEP_S = 1e-3  # a step of the paper's power model
_QUOTED = "*Italic*: quoted, not measured here."


def language(book: Book) -> Table:
    return _beside(book, "language", LANGUAGE)


def vision(book: Book) -> Table:
    return _beside(book, "vision", VISION)


def _beside(book: Book, part: str, titles: Mapping[str, str]) -> Table:
    """Methods as rows, data sets as columns: accuracy (T). Of ours T is the largest T_eq."""
    rows = _rows(book, part)
    ours: dict[tuple[str, int, str], list[Group]] = {}
    for group in book.groups:
        if group.data in titles:
            ours.setdefault((group.network, group.levels, millions(group.parameters)), []).append(group)
    quoted = {data for row in rows.values() for data in row["accuracy"]}
    for name in quoted - titles.keys():
        raise ConfigError(f"quoted.yaml: {part}: there is no data {name!r}; choose among {', '.join(titles)}")
    shown = [data for data in titles if data in quoted or any(g.data == data for gs in ours.values() for g in gs)]
    lines = [
        (
            f"*{row['method']}*",
            _parameters(row),
            *(_cell(row, data) for data in shown),
            _source(book, part, row),
        )
        for row in rows.values()
    ]
    for (network, levels, parameters), groups in ours.items():
        cells = ("; ".join(_own(group) for group in groups if group.data == data) or "" for data in shown)
        lines.append((f"{network}, {levels} levels", parameters, *cells, "measured here"))
    head = ("method", "parameters", *(titles[data] for data in shown), "source")
    note = f"{_QUOTED} Accuracy in %, in brackets T; for ours it is the largest T_eq."
    return Table(head, tuple(lines), left=("source",), notes=(note,))


def _own(group: Group) -> str:
    largest = max(run.metrics["snn"]["t_eq"]["max"] for run in group.runs)
    return f"{spread(group.stage('snn'))} ({largest})"


def _cell(row: Mapping[str, Any], data: str) -> str:
    if data not in row["accuracy"]:
        return ""
    steps = row["steps"][data] if isinstance(row["steps"], Mapping) else row["steps"]
    return f"{row['accuracy'][data]} ({steps})"


def power(book: Book) -> Table:
    """The paper's power, and the joules of a whole inference that follow from it."""
    lines = []
    for row in _rows(book, "power").values():
        joules = float(row["power_w"]) * int(row["steps"]) * _STEP_S
        cells = (_data(row), str(row["steps"]), f"{row['power_w']} W", si(joules, "J"), str(row["accuracy"]))
        lines.append((f"*{row['method']}*", _parameters(row), *cells, _source(book, "power", row)))
    head = ("method", "parameters", "data", "T", "power", "energy per inference", "accuracy, %", "source")
    note = f"{_QUOTED} Energy per inference is ours to say: power times T steps of a millisecond."
    return Table(head, tuple(lines), left=("data", "source"), notes=(note,))


def training(book: Book) -> Table:
    lines = []
    for row in _rows(book, "training").values():
        cells = (_data(row), row["gpus"], f"{row['hours']} h", f"{row['kwh']} kWh", str(row["accuracy"]))
        lines.append((f"*{row['method']}*", _parameters(row), *cells, _source(book, "training", row)))
    head = ("method", "parameters", "data", "device", "time", "energy", "accuracy, %", "source")
    return Table(head, tuple(lines), left=("data", "device", "source"), notes=(_QUOTED,))


_KEYS = {
    "language": ("accuracy", "steps"),
    "vision": ("accuracy", "steps"),
    "power": ("data", "steps", "power_w", "accuracy"),
    "training": ("data", "gpus", "hours", "kwh", "accuracy"),
}


def _rows(book: Book, part: str) -> dict[str, dict[str, Any]]:
    """The rows of a part, each with all that it needs."""
    rows: dict[str, dict[str, Any]] = find(book.results.quoted, f"{part}.rows", "quoted.yaml")
    for name, row in rows.items():
        for key in ("method", "parameters", "where", *_KEYS[part]):
            find(row, key, f"quoted.yaml, {part}.rows.{name}")
        for text in _figures(row, part):
            _check(text, f"quoted.yaml, {part}.rows.{name}")
    return rows


def _figures(row: Mapping[str, Any], part: str) -> Iterable[Any]:
    yield from [] if row["parameters"] is None else [row["parameters"]]  # some papers do not say
    yield from row["accuracy"].values() if isinstance(row["accuracy"], Mapping) else [row["accuracy"]]
    yield from (row[key] for key in ("power_w", "hours", "kwh") if key in _KEYS[part])


def _check(text: Any, where: str) -> None:
    """Figures stand in quotes: so their last digits stay as their authors wrote them."""
    try:
        float(text if isinstance(text, str) else "")
    except ValueError:
        raise ConfigError(f'{where}: {text!r}: a figure in quotes is needed, such as "88.70"') from None


def _parameters(row: Mapping[str, Any]) -> str:
    return DASH if row["parameters"] is None else f"{row['parameters']} M"


def _data(row: Mapping[str, Any]) -> str:
    return TITLES.get(row["data"], str(row["data"]))


def _source(book: Book, part: str, row: Mapping[str, Any]) -> str:
    name = row.get("source") or find(book.results.quoted, f"{part}.source", "quoted.yaml")
    source = find(book.results.quoted, f"sources.{name}", "quoted.yaml")
    return f"{link(source['name'], source['url'])}, {row['where']}"
