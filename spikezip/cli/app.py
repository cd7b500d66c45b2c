"""The verbs under one name, and what happens when something goes wrong."""

import os
import traceback
import warnings
from typing import Annotated, Any

import typer
from transformers.utils import logging
from typer.core import TyperGroup

from spikezip.cli.attention import attention
from spikezip.cli.compare import compare
from spikezip.cli.convert import convert
from spikezip.cli.demo import demo
from spikezip.cli.exits import exits
from spikezip.cli.inspect import inspect
from spikezip.cli.measure import measure
from spikezip.cli.quantize import quantize
from spikezip.cli.report import report
from spikezip.cli.results import results
from spikezip.cli.screen import one_line, say, show_error, show_warning
from spikezip.cli.simulate import simulate
from spikezip.cli.train import train
from spikezip.cli.tune import tune
from spikezip.cli.verify import verify
from spikezip.errors import SpikezipError
from spikezip.measure.processes import leave
from spikezip.version import __version__

TRACEBACK = "--traceback"


class Verbs(TyperGroup):
    """Turns expected errors into one line and an exit code, and warnings into one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # It belongs to the whole command, but people add it to the end of the line that failed.
        if TRACEBACK in args:
            args = [TRACEBACK, *(arg for arg in args if arg != TRACEBACK)]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            try:
                done = super().invoke(ctx)
                leave()  # after an error nobody waits for the others: they may be waiting for this one
                return done
            except typer.Exit:
                leave()  # a run that all processes have stopped and saved
                raise
            except KeyboardInterrupt:
                show_error("stopped by Ctrl-C")
                raise typer.Exit(130) from None
            except BrokenPipeError:
                raise  # `spikezip … | head`: typer ends quietly
            except (SpikezipError, OSError, ValueError) as error:
                if ctx.params.get("traceback"):
                    traceback.print_exc()
                elif isinstance(error, SpikezipError):
                    show_error(str(error))  # may be several lines: a coverage table is worth reading
                else:
                    show_error(f"{one_line(error)} ({type(error).__name__}; {TRACEBACK} shows where)")
                raise typer.Exit(2) from None


app = typer.Typer(
    name="spikezip",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        say(f"spikezip {__version__}")
        raise typer.Exit


@app.callback()
def spikezip(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    traceback: Annotated[
        bool, typer.Option(TRACEBACK, envvar="SPIKEZIP_TRACEBACK", help="Show where an error comes from.")
    ] = False,
) -> None:
    """Turn a pretrained transformer into a spiking network that computes exactly the same function.

    float model ─ [bold]quantize[/] → QANN ─ [bold]convert[/] → SNN ─ [bold]simulate[/] → numbers over time.
    [bold]train[/] carries out a recipe, from a float model to a certified spiking network.
    [bold]verify[/] shows that QANN and SNN agree in every bit; [bold]inspect[/] shows what is in a folder.
    [bold]measure[/] counts accuracy, spikes and energy over time; [bold]compare[/] puts such files side by side.
    [bold]tune[/] looks for settings that save spikes or steps; [bold]exits[/] lets samples leave when they are sure.
    [bold]report[/] shows it all on one page; [bold]attention[/] draws where the network looks, step by step.
    [bold]results[/] makes a page of many runs.
    [bold]demo[/] does it all on something small.
    """
    # Reading a small folder needs no progress bar of its own; downloads from the Hub keep theirs.
    logging.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


VERBS = (quantize, train, convert, verify, simulate, measure, compare, tune, exits, report, attention, inspect, demo)
for verb in VERBS:
    app.command()(verb)
app.add_typer(results)
