"""Accuracy of all recipes on language and on vision: as float network, quantized, and as spiking network over time."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from spikezip.errors import ConfigError
from spikezip.results.book import Book
from spikezip.results.folder import Run
from spikezip.results.groups import LANGUAGE, VISION, Group
from spikezip.results.markdown import Table
from spikezip.results.numbers import DASH, decimal, millions, number, spread

_AIM = "aim: QANN / SNN at T"
_NOTE = (
    "Accuracies in %: float networks with GELU and with ReLU; quantized and calibrated only; QANN; SNN after T steps, "
    "and settled (at equilibrium). *Size*: parameters. *T_eq*: median / largest. *Agrees*: with the QANN at "
    "T = {}, in %."
)
_CHOSEN = "† Some stage kept the network that was best on the very data that it is tested on."
_MEASURED = "‡ QANN and SNN as measured from the checkpoint on {}: `spikezip measure` gives this again there."


def language(book: Book) -> Table:
    """The six data sets of the paper's language table."""
    return _tasks(book, LANGUAGE, at=(32, 64))


def vision(book: Book) -> Table:
    """Images and events."""
    return _tasks(book, VISION, at=(16, 32))


def _tasks(book: Book, data: Mapping[str, str], at: tuple[int, ...]) -> Table:
    over_time = (f"T = {step}" for step in at)
    head = (
        *("recipe", "size", "levels", "GELU", "ReLU", "calibrated", "QANN", *over_time, "settled"),
        *("T_eq", "agrees", _AIM),
    )
    groups = [group for group in book.groups if group.data in data]
    rows = tuple(_row(book, group, at) for group in groups)
    notes = [_NOTE.format(at[-1]) + (" Mean ± standard deviation (number of seeds)." if _several(groups) else "")]
    notes += [_CHOSEN] if any(_chosen(group) for group in groups) else []
    devices = {run.checkpoint.device for group in groups for run in group.runs if run.checkpoint is not None}
    notes += [_MEASURED.format(" or ".join(sorted(devices)))] if devices else []
    notes += _missed(book, groups)
    waiting = _not_run(book, data, {group.recipe for group in groups})
    return _without_empty(Table(head, rows, notes=(*notes, waiting.markdown()) if waiting.rows else tuple(notes)))


def _not_run(book: Book, data: Mapping[str, str], done: set[str]) -> Table:
    """Recipes without a run: a row for each data set, each recipe with its aim."""
    rows = []
    for key, title in data.items():
        waiting = {name: recipe for name, recipe in book.recipes.items() if recipe.data.name == key}
        texts = [_named(book, name, _aims(recipe)) for name, recipe in waiting.items() if name not in done]
        if texts:
            rows.append((title, ", ".join(texts)))
    return Table(("not run yet", "recipe (aim: QANN / SNN at T)"), tuple(rows), left=("recipe (aim: QANN / SNN at T)",))


def _named(book: Book, name: str, aim: str) -> str:
    return book.recipe_link(name) + (f" ({aim})" if aim else "")


def _row(book: Book, group: Group, at: tuple[int, ...]) -> tuple[str, ...]:
    gelu, relu = _floats(group)
    return (
        book.recipe_link(group.recipe, group),
        millions(group.parameters),
        number(group.levels),
        spread(gelu),
        spread(relu),
        spread(group.stage("quantize")),
        spread(group.stage("qann")) + ("†" if _chosen(group) else "") + _measured(group),
        *(spread([run.at("accuracy", step) for run in group.runs]) for step in at),
        spread(group.stage("snn")),
        " / ".join(_range([run.metrics["snn"]["t_eq"][key] for run in group.runs]) for key in ("median", "max")),
        spread(group.each(lambda run: run.at("agreement", at[-1]))),
        _aims(book.recipes.get(group.recipe, group.first.recipe)),
    )


def _floats(group: Group) -> tuple[list[float | None], list[float | None]]:
    """Accuracy with GELU and with ReLU. A network that has ReLU from the start never had the other."""
    always_relu = group.first.recipe.model.config.get("hidden_act") == "relu"
    if always_relu:
        return [None] * len(group.runs), group.stage("relu", "finetune")
    return group.stage("finetune"), group.stage("relu")


def _range(values: list[int | None]) -> str:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return DASH
    return str(known[0]) if len(set(known)) == 1 else f"{min(known)}–{max(known)}"


def _chosen(group: Group) -> bool:
    return any(stage.get("chosen_on_test") for run in group.runs for stage in run.metrics.values())


def _measured(group: Group) -> str:
    """A mark, with the seeds that it holds for, where these are not all."""
    count = sum(run.checkpoint is not None for run in group.runs)
    return "" if not count else "‡" if count == len(group.runs) else f"‡ (seed {_seeds(group)})"


def _seeds(group: Group) -> str:
    return ", ".join(str(run.results["seed"]) for run in group.runs if run.checkpoint is not None)


def _several(groups: list[Group]) -> bool:
    return any(len(group.runs) > 1 for group in groups)


def aims(recipe: Any) -> list[Any]:
    """What others have reached: figures that were measured here are no aim of their own."""
    return [one for one in recipe.expected if one.what in ("QANN", "SNN") and not one.source.startswith("measured")]


def _aims(recipe: Any) -> str:
    found = {one.what: decimal(one.accuracy) + (f" at {one.steps}" if one.steps else "") for one in aims(recipe)}
    return " / ".join(found.get(what, DASH) for what in ("QANN", "SNN")) if found else ""


def _missed(book: Book, groups: list[Group]) -> list[str]:
    """A line for each aim that was missed, with the reason. An aim without a reason is an error, and the reverse."""
    lines = []
    for group in groups:
        recipe = book.recipes.get(group.recipe, group.first.recipe)
        below = [text for one in aims(recipe) if (text := _below(group, one))]
        if below:
            reason = book.results.reasons.get(group.recipe)
            if not reason:
                raise ConfigError(f"{group.recipe} misses its aim ({', '.join(below)}): say why in reasons.yaml")
            sources = ", ".join(dict.fromkeys(one.source for one in aims(recipe)))
            name = book.recipe_link(group.recipe, group)
            lines.append(f"**Missed**: {name}: {', '.join(below)} ({sources}). {reason.strip()}")
    return lines


def _below(group: Group, aim: Any) -> str:
    """In words, if the mean is below an aim."""

    def read(run: Run) -> float | None:
        return run.at("accuracy", aim.steps) if aim.steps else float(run.metrics[aim.what.lower()]["accuracy"])

    name = f"{aim.what} at T = {aim.steps}" if aim.steps else aim.what
    known = [value for value in group.each(read) if value is not None]
    if len(known) < len(group.runs):
        return f"{name} is not known"
    reached = 100 * fmean(known)
    return f"{name} {decimal(reached)} against {decimal(aim.accuracy)}" if round(reached, 2) < aim.accuracy else ""


def check_reasons(book: Book) -> None:
    """Refuse reasons for what was not missed."""
    for name in book.results.reasons:
        of_it = [group for group in book.groups if group.recipe == name]
        if not any(_below(g, aim) for g in of_it for aim in aims(book.recipes.get(name, g.first.recipe))):
            raise ConfigError(f"reasons.yaml says why {name} misses its aim, but no run of it does: remove the line")


def _without_empty(table: Table) -> Table:
    """Columns in which no row says anything are left out."""
    kept = [i for i in range(len(table.head)) if i == 0 or any(row[i] not in ("", DASH) for row in table.rows)]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return Table(tuple(table.head[i] for i in kept), rows, table.left, table.notes)
