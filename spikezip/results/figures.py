"""Pictures of the page: accuracy over time of data sets, model sizes or levels, and where a network looks."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean

from spikezip.errors import ConfigError
from spikezip.results.book import Book
from spikezip.results.groups import TITLES, Group
from spikezip.results.numbers import millions
from spikezip.show.attention_document import AttentionDocument
from spikezip.show.chart import Chart, Series

Drawn = Chart | AttentionDocument
_MAKER = "spikezip results build"
_WIDE = 28  # characters: two longer labels do not fit side by side below a picture
_SALT = "spikezip"  # names inside an SVG are the same every time


def chart(book: Book, name: str, patterns: list[str]) -> Chart:
    """A curve for each group of runs, and for each measurement, that a pattern names.

    Args:
        book: the runs; several seeds make one curve, their mean.
        name: of the file.
        patterns: such as `runs/sst2-*` or `measured/demo`. A pattern with a star may find nothing; a name may not.
    """
    if not patterns:
        raise ConfigError(f"picture {name}: name the runs or measurements to draw, such as runs/sst2-*")
    runs, measured = book.results.runs, book.results.measured
    names = [f"runs/{one}" for one in runs] + [f"measured/{one}" for one in measured]
    for pattern in patterns:
        if "*" not in pattern and pattern not in names:
            raise ConfigError(f"there is no {pattern}; there is {', '.join(names) or 'nothing'}")
    chosen = {one for one in names for pattern in patterns if fnmatchcase(one, pattern)}
    groups = [
        Group(group.recipe, found, group.changed)
        for group in book.groups
        if (found := tuple(run for run in group.runs if f"runs/{run.name}" in chosen))
    ]
    if len({group.data for group in groups}) == 1:  # sizes or levels: the smallest first
        groups.sort(key=lambda group: (group.parameters, group.levels))
    series = [
        Series(label, *_mean([run.curve("accuracy") for run in group.runs]))
        for label, group in zip(_labels(groups), groups, strict=True)
    ]
    for key, one in measured.items():
        if f"measured/{key}" in chosen:
            if one.over_time.accuracy is None:
                raise ConfigError(f"measured/{key} has no accuracy: its data had no labels")
            series.append(Series(one.name, *_mean([list(one.over_time.accuracy)])))
    return Chart(name, "", "step T", "accuracy of the SNN", tuple(series), percent=True)


def attention(book: Book, pattern: str, samples: Sequence[str]) -> tuple[str, AttentionDocument] | None:
    """The document that a name means, and its name; None where a pattern with a star finds nothing.

    Args:
        book: the documents are those in `attention/`.
        pattern: a name, or a pattern that fits one of them.
        samples: numbers of samples to draw; none: all that the document has.
    """
    known = book.results.attention
    found = [name for name in known if fnmatchcase(name, pattern)]
    if not found and "*" not in pattern:
        raise ConfigError(f"there is no attention/{pattern}.json; there is {', '.join(known) or 'nothing'}")
    if len(found) > 1:
        raise ConfigError(f"attention {pattern}: a line shows one of {', '.join(found)}; name it")
    odd = [word for word in samples if not re.fullmatch(r"\d+", word)]
    if odd:
        raise ConfigError(f"attention {pattern}: behind the name stand numbers of samples, not {odd[0]!r}")
    if not found:
        return None
    whole = known[found[0]]
    return found[0], whole.only([int(word) for word in samples]) if samples else whole


def _mean(curves: list[list[float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Steps and means. A curve that ended stays where it was: its samples have settled.

    Example:
        >>> _mean([[0.0, 1.0], [0.5, 0.5, 0.5]])
        ((1.0, 2.0, 3.0), (0.25, 0.75, 0.75))
    """
    steps = range(1, max(map(len, curves)) + 1)
    means = tuple(fmean(curve[min(step, len(curve)) - 1] for curve in curves) for step in steps)
    return tuple(map(float, steps)), means


def _labels(groups: list[Group]) -> list[str]:
    """What tells the curves apart: data, network, levels; and where all are the same, the run, or its changes."""
    parts = [
        (TITLES[group.data], f"{group.network} ({millions(group.parameters)})", f"{group.levels} levels")
        for group in groups
    ]
    differing = [i for i in range(3) if len({part[i] for part in parts}) > 1] or [0]
    labels = [", ".join(part[i] for i in differing) for part in parts]
    if len(set(labels)) == len(labels):
        return labels
    more = [group.changed or (group.first.name,) for group in groups]
    return [", ".join((label, *words)) for label, words in zip(labels, more, strict=True)]


def digest(drawn: Drawn) -> str:
    """A fingerprint of what is drawn. It stands in the picture, so that an old picture is known without drawing."""
    return hashlib.sha256(json.dumps(asdict(drawn), sort_keys=True).encode()).hexdigest()


def is_drawn(drawn: Drawn, path: Path) -> bool:
    """Whether the picture at this path shows these numbers."""
    return path.is_file() and digest(drawn) in path.read_text(encoding="utf-8")


def is_ours(path: Path) -> bool:
    """Whether `draw` wrote this picture."""
    return _MAKER in path.read_text(encoding="utf-8")


def draw(drawn: Drawn, path: Path) -> None:
    """Write the picture: the same bytes every time, with one version of matplotlib."""
    from spikezip.show.need import need
    from spikezip.show.static import styled

    path.parent.mkdir(parents=True, exist_ok=True)
    figure = drawn.figure()
    if isinstance(drawn, Chart):
        axis = figure.axes[0]
        if axis.get_legend() is not None:
            axis.get_legend().remove()  # curves run through every corner: it goes below them
        columns = 2 if max(len(one.name) for one in drawn.series) <= _WIDE else 1
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    told = {"Date": None, "Creator": _MAKER, "Description": f"numbers: {digest(drawn)}"}
    with styled(), need("matplotlib").rc_context({"svg.hashsalt": _SALT}):
        figure.savefig(path, format="svg", metadata=told)
