"""Several measurements side by side, as a table: CSV, Markdown, LaTeX."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spikezip.errors import ConfigError
from spikezip.measure.columns import Column, Value, column
from spikezip.measure.document import Measurement

# What is shown unless the caller says; those that differ only, and those that have a value somewhere.
DIFFERING = ("model", "levels", "weight_bits", "data", "samples", "steps", "coding", "max_spike", "stagger")
USUAL = ("float", "qann", "snn", "t_up", "within_0.1", "t_eq", "spikes", "power", "energy")

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "−": "$-$",
    "–": "--",
    "…": r"\dots{}",
}


@dataclass(frozen=True)
class Comparison:
    """A table: its columns, and a row for each measurement."""

    columns: tuple[Column, ...]
    measurements: tuple[Measurement, ...]

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]

    def values(self) -> list[list[Value]]:
        """Numbers as they are, in the unit of the heading."""
        return [[column.value(m) for column in self.columns] for m in self.measurements]

    def texts(self) -> list[list[str]]:
        """Numbers rounded, for reading; a dash where there is none."""
        return [[column.text(m) for column in self.columns] for m in self.measurements]

    def is_number(self, position: int) -> bool:
        """Whether a column holds numbers, which stand to the right."""
        return not any(isinstance(row[position], str) for row in self.values())

    def csv(self) -> str:
        """Keys in the first line, then numbers in full; an empty field where there is none."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.key for column in self.columns])
        writer.writerows(["" if value is None else value for value in row] for row in self.values())
        return text.getvalue()

    def markdown(self) -> str:
        rules = ["---:" if self.is_number(i) else "---" for i in range(len(self.columns))]
        lines = [self.headings, rules, *self.texts()]
        return "".join(f"| {' | '.join(_in_markdown(text) for text in line)} |\n" for line in lines)

    def latex(self) -> str:
        """A `tabular` with the rules of the package booktabs."""
        form = "".join("r" if self.is_number(i) else "l" for i in range(len(self.columns)))
        head, *rows = (" & ".join(map(in_latex, line)) + r" \\" for line in [self.headings, *self.texts()])
        lines = [
            "% needs \\usepackage{booktabs}",
            rf"\begin{{tabular}}{{{form}}}",
            r"\toprule",
            head,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join(lines) + "\n"


def compare(
    measurements: Iterable[Measurement], columns: Sequence[str] | None = None, at: Sequence[int] = ()
) -> Comparison:
    """Put measurements side by side.

    Args:
        measurements: one row each.
        columns: keys of `spikezip.measure.columns.COLUMNS`, and `snn@16` and the like for a step. Left out: names,
            settings that differ, accuracy, latency, spikes, power and energy, as far as they were measured.
        at: steps T for which the accuracy (or, without labels, the agreement) is shown, too.

    Example:
        >>> from spikezip.measure.document import Data, Latency, Model, OverTime, Settings, Steps
        >>> def tiny(name: str, levels: int) -> Measurement:
        ...     return Measurement(
        ...         name=name,
        ...         model=Model("ViT", 10, levels, 8, 1, 4.0),
        ...         data=Data("digits", 2, 10),
        ...         settings=Settings("equilibrium"),
        ...         device="cpu",
        ...         over_time=OverTime((1, 2), (0.5, 1.0), None, None, None, (0.1, 0.3), (0.1, 0.2)),
        ...         latency=Latency(1, {}, Steps(2, 2, 2, 2), 0),
        ...         sites=(),
        ...     )
        >>> print(compare([tiny("a", 16), tiny("b|c", 32)], at=[1]).markdown())
        | name | levels | SNN (%) | SNN (%) at T = 1 | T_up | T_eq median | spikes per neuron |
        | --- | ---: | ---: | ---: | ---: | ---: | ---: |
        | a | 16 | 100.00 | 50.00 | 1 | 2 | 0.300 |
        | b\\|c | 32 | 100.00 | 50.00 | 1 | 2 | 0.300 |
        <BLANKLINE>
    """
    rows = tuple(measurements)
    if not rows:
        raise ConfigError("there is nothing to compare: give at least one measurement")
    if any(isinstance(step, bool) or not isinstance(step, int) or step < 1 for step in at):
        raise ConfigError(f"at={list(at)!r}: steps are whole numbers from 1")
    if columns is not None:
        if not columns:
            raise ConfigError("columns: name at least one")
        answer = "snn" if any(m.over_time.accuracy is not None for m in rows) else "agreement"
        return Comparison(tuple(map(column, [*columns, *(f"{answer}@{step}" for step in at)])), rows)
    return Comparison(tuple(_usual(rows, at)), rows)


def _usual(rows: Sequence[Measurement], at: Sequence[int]) -> Iterable[Column]:
    yield column("name")
    for key in DIFFERING:
        if len({column(key).value(m) for m in rows}) > 1:
            yield column(key)
    labelled = any(m.over_time.accuracy is not None for m in rows)
    for key in USUAL:
        if any(column(key).value(m) is not None for m in rows):
            yield column(key)
        if key == "snn":
            yield from (column(f"{key if labelled else 'agreement'}@{step}") for step in at)


def in_latex(text: str) -> str:
    """A text with the signs that LaTeX would take for its own written out.

    Example:
        >>> in_latex("100 % of a_b & {c}")
        '100 \\\\% of a\\\\_b \\\\& \\\\{c\\\\}'
    """
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def _in_markdown(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
