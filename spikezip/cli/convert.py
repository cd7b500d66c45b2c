"""`spikezip convert`: QANN folder → SNN folder."""

from pathlib import Path
from typing import Annotated

import typer

import spikezip
from spikezip.cli.folders import check_target, load, locate, save
from spikezip.cli.screen import say
from spikezip.errors import ConfigError


def convert(
    qann: Annotated[str, typer.Argument(metavar="QANN", help="A quantized network: a folder, or a name on the Hub.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The folder for the spiking network (SNN).")],
    float_weights: Annotated[
        bool,
        typer.Option(
            "--float-weights",
            help="Keep the weights as floats, of the same values. Not exact: it shows what the integers are for.",
        ),
    ] = False,
) -> None:
    """Convert a quantized network into the spiking network that computes the same function.

    [bold]Example[/]

    [green]spikezip convert ./qann ./snn[/]
    """
    check_target(target)
    source = locate(qann)
    if source.resolve() == target.resolve():
        raise ConfigError(f"{target} holds the quantized network itself; choose another folder for the spiking one")
    snn = spikezip.convert(load(qann, "qann"), float_weights=float_weights)
    save(snn, target, source)
    kind = ", float weights" if float_weights else ""
    say(f"{type(snn).__name__}: {len(snn.neurons)} layers of neurons{kind} → {target}")
