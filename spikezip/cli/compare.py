"""`spikezip compare`: measurements side by side."""

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spikezip.cli.options import one_of
from spikezip.cli.screen import out
from spikezip.errors import ConfigError
from spikezip.measure.compare import Comparison
from spikezip.measure.compare import compare as put_side_by_side
from spikezip.measure.document import Measurement
from spikezip.measure.journal import RESULT

FORMATS = ("table", "csv", "markdown", "latex")


def compare(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="What `spikezip measure --json` wrote; or its --folder.")
    ],
    form: Annotated[
        str, typer.Option("--format", callback=one_of("format", FORMATS), metavar="|".join(FORMATS), help="How.")
    ] = "table",
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="A,B,…",
            show_default="what differs, accuracy, latency, spikes, power, energy",
            help="Which columns, such as name,levels,qann,snn@16,snn@32,t_eq,energy.",
        ),
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="T,T,…", help="Show the SNN's accuracy after so many steps, too.")
    ] = None,
) -> None:
    """Put measurements side by side: models, levels or settings as rows.

    [bold]Example[/]

    [green]spikezip compare m16.json m32.json --at 8,16,32[/]

    [green]spikezip compare runs/*/measurement.json --format latex --columns name,levels,qann,snn,t_eq,energy[/]
    """
    wanted = None if columns is None else [key.strip() for key in columns.split(",") if key.strip()]
    steps = _steps(at)
    found = [Measurement.load(path / RESULT if path.is_dir() else path) for path in files]
    comparison = put_side_by_side(found, wanted, steps)
    if form == "table":
        console = out()
        wide = _wide(comparison)
        # What does not fit is turned: a row for each number.
        console.print(wide if _width(wide, console) <= console.width else _tall(comparison))
    else:
        text = {"csv": comparison.csv, "markdown": comparison.markdown, "latex": comparison.latex}[form]()
        typer.echo(text, nl=False)


def _steps(text: str | None) -> list[int]:
    words = [] if text is None else [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= 1 for word in words):
        raise ConfigError(f"--at {text}: whole numbers from 1, such as 8,16,32")
    return [int(word) for word in words]


def _width(table: Table, console: Console) -> int:
    """The columns that it takes if there is room for all of it."""
    return console.measure(table, options=console.options.update_width(100_000)).maximum


def _wide(comparison: Comparison) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for position, heading in enumerate(comparison.headings):
        table.add_column(heading, justify="right" if comparison.is_number(position) else "left", no_wrap=True)
    for row in comparison.texts():
        table.add_row(*map(Text, row))  # names are no markup
    return table


def _tall(comparison: Comparison) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    head, *lines = zip(comparison.headings, *comparison.texts(), strict=True)
    table.add_column(head[0])
    for name in head[1:]:
        table.add_column(Text(name), justify="right", overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))
    return table
