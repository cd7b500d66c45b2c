"""What people see: results on stdout; progress, warnings and errors on stderr."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
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

SECONDS_PER_LINE = 60.0  # of progress, where there is no terminal


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
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar while samples go through, or a line now and then in a log; yields what is told how many are done so far."""
    if not err().is_terminal:
        yield _lines(what, total)
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err(),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def _lines(what: str, total: int) -> Callable[[int], None]:
    """For a log, where a bar would be noise and silence for an hour a worry: short work says nothing."""
    start = said = monotonic()

    def tell(done: int) -> None:
        nonlocal said
        now = monotonic()
        if now - said < SECONDS_PER_LINE or not 0 < done < total:
            return
        said = now
        left = (now - start) * (total - done) / done
        _line(f"{what}: {done:,} of {total:,}, about {_duration(left)} left", "")

    return tell


def _duration(seconds: float) -> str:
    """Whole minutes and hours.

    Example:
        >>> _duration(20), _duration(150), _duration(7300)
        ('1 min', '3 min', '2 h 2 min')
    """
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
