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
) -> None:
    """Convert a quantized network into the spiking network that computes the same function.

    [bold]Example[/]

    [green]spikezip convert ./qann ./snn[/]
    """
    check_target(target)
    source = locate(qann)
    if source.resolve() == target.resolve():
        raise ConfigError(f"{target} holds the quantized network itself; choose another folder for the spiking one")
    snn = spikezip.convert(load(qann, "qann"))
    save(snn, target, source)
    say(f"{type(snn).__name__}: {len(snn.neurons)} layers of neurons → {target}")
