"""What people see: results on stdout; progress, warnings and errors on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


def out() -> Console:
    """Results. In a pipe nothing knows a width, and site names are long."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def err() -> Console:
    return Console(stderr=True)


def say(text: str) -> None:
    """One line of a result."""
    out().print(text, markup=False, highlight=False, soft_wrap=True)


def show_error(message: str) -> None:
    _line(f"error: {message}", "red")


def show_warning(message: Warning | str, *where: Any, **more: Any) -> None:
    """In the place of `warnings.showwarning`: the message alone, without file and source line."""
    _line(f"warning: {one_line(message)}", "yellow")


def _line(text: str, style: str) -> None:
    # Messages hold brackets and names of their own: no markup, and no breaks that would cut a path in two.
    err().print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def one_line(message: object) -> str:
    """The first line of a message.

    Example:
        >>> one_line(ValueError("no such thing\\nsee the manual"))
        'no such thing'
    """
    return next(iter(str(message).strip().splitlines()), type(message).__name__)


class Rate(ProgressColumn):
    """Steps or samples per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f}/s", style="progress.data.speed")


@contextmanager
def progress(what: str, total: int) -> Iterator[Any]:
    """A bar while samples go through; yields a function that is told how many are done so far."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err(),
        transient=True,
        disable=not err().is_terminal,
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
