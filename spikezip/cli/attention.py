"""`spikezip attention`: the paper's feature-map figure, from networks and data."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from spikezip.cli import data as samples_of
from spikezip.cli.folders import load, locate
from spikezip.cli.options import CodingOption, DataOption, DeviceOption, EngineOption, MaxSpikeOption, StaggerOption
from spikezip.cli.options import device as read_device
from spikezip.cli.screen import progress, say
from spikezip.cli.shown_samples import looks, take
from spikezip.cli.tune import read_wholes
from spikezip.errors import ConfigError, InputError


def attention(
    snn: Annotated[str, typer.Argument(metavar="SNN", help="A spiking network: a folder, or a name on the Hub.")],
    data: DataOption,
    samples: Annotated[
        str,
        typer.Option("--samples", metavar="N,N,…", help="Samples, counted from 0: a row each. Of texts, one."),
    ] = "0",
    qann: Annotated[
        str | None,
        typer.Option(
            "--qann",
            metavar="FOLDER",
            show_default="computed from SNN",
            help="Its QANN, for the last column.",
        ),
    ] = None,
    at: Annotated[
        str, typer.Option("--at", metavar="T,T,…", help="After which steps to look: a column each.")
    ] = "2,4,8,16,32",
    map_name: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="NAME",
            show_default="the last layer's",
            help="Which attention: a site, averaged over heads, or 'rolled out', all layers together.",
        ),
    ] = None,
    engine: EngineOption = "auto",
    coding: CodingOption = "analog",
    max_spike: MaxSpikeOption = 1,
    stagger: StaggerOption = 0,
    device: DeviceOption = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to draw it: .png, .svg or .pdf.")] = Path(
        "attention.svg"
    ),
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write what the figure shows to this file.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="TEXT", show_default="that of SNN", help="What to call the network in --json."),
    ] = None,
) -> None:
    """Draw where a spiking network looks: samples masked by the attention accumulated after some steps, and the QANN's.

    Each sample runs to equilibrium, where its attention is the QANN's. Beside a row stand the class, where the data has
    labels, and what the network says in the end. A text is a row of words for each step, and stands alone.
    [bold]spikezip results add[/] takes what --json wrote.

    [bold]Example[/]

    [green]spikezip attention ./snn --qann ./qann --data cifar10:FOLDER --samples 0,7,12 --at 4,8,12,16,24[/]

    [green]spikezip attention ./snn --data dev.tsv --samples 3 --map "rolled out" --out words.pdf[/]
    """
    from spikezip.show.looking import look
    from spikezip.show.need import need
    from spikezip.show.static import save_figure

    _check_files(out, json_file)
    need("matplotlib")  # before any work
    steps, which = _wholes("at", at, 1), _wholes("samples", samples, 0)
    where = read_device(device)
    found = samples_of.read(data)
    if max(which) >= len(found):
        raise InputError(f"--samples {max(which)}: {data} holds {len(found):,} samples, counted from 0")
    if found.texts and len(which) > 1:
        raise InputError(f"--samples {samples}: a figure of words shows one text; name one sample")
    network = load(snn, "snn").to(where)
    quantized = None if qann is None else load(qann, "qann").to(where)
    part = take(found, which)
    (batch,) = samples_of.batches(part, network, locate(snn), batch_size=len(which))
    with progress("looking", len(which)) as done:
        document = look(
            network,
            batch,
            quantized,
            indices=which,
            at=steps,
            map=map_name,
            **looks(part, locate(snn)),
            engine=engine,
            coding=coding,
            max_spike=max_spike,
            stagger=stagger,
            progress=done,
            name=name or Path(snn).name,
            data=data,
            command=shlex.join(["spikezip", *sys.argv[1:]]),
        )
    if json_file is not None:
        say(f"attention → {document.save(json_file)}")
    say(f"figure → {save_figure(document.figure(), out)}")


def _check_files(out: Path, json_file: Path | None) -> None:
    from spikezip.show.static import FORMATS

    if out.suffix.lower() not in FORMATS:
        raise ConfigError(f"--out {out}: a figure is written as {', '.join(FORMATS)}")
    for option, path in (("--out", out), ("--json", json_file)):
        if path is not None and path.is_dir():
            raise ConfigError(f"{option} {path} is a folder; a file is needed")
    if out == json_file:
        raise ConfigError(f"--out and --json both name {out}: the one would be written over the other")


def _wholes(option: str, text: str, least: int) -> list[int]:
    """Numbers of steps or samples: from `least` on, and each once."""
    numbers = read_wholes(option, text)
    if min(numbers) < least:
        raise ConfigError(f"--{option} {text}: {option if least == 0 else 'steps'} are counted from {least}")
    twice = [number for number in numbers if numbers.count(number) > 1]
    if twice:
        raise ConfigError(f"--{option} {text}: {twice[0]} stands there twice")
    return numbers
