"""`spikezip measure`: accuracy over time, latency, activity, operations and energy of an SNN on a data set."""

import json
import shlex
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from spikezip.cli import data as samples_of
from spikezip.cli.float_model import load_float
from spikezip.cli.folders import load, locate
from spikezip.cli.measured import show
from spikezip.cli.options import (
    BatchSizeOption,
    CodingOption,
    DataOption,
    DeviceOption,
    EngineOption,
    MaxSpikeOption,
    SamplesOption,
    StaggerOption,
)
from spikezip.cli.options import device as read_device
from spikezip.cli.options import steps as read_steps
from spikezip.cli.screen import progress, say
from spikezip.errors import ConfigError
from spikezip.files import CERTIFICATE
from spikezip.measure.answers import Head
from spikezip.measure.certificate import Certificate
from spikezip.measure.energy_model import MEMORIES, EnergyModel
from spikezip.measure.measuring import measure as measure_networks
from spikezip.measure.processes import Processes


def measure(
    snn: Annotated[str, typer.Argument(metavar="SNN", help="A spiking network: a folder, or a name on the Hub.")],
    data: DataOption,
    qann: Annotated[
        str | None,
        typer.Option("--qann", metavar="FOLDER", help="Its QANN: to compare with its answers and its codes."),
    ] = None,
    float_model: Annotated[
        str | None,
        typer.Option("--float", metavar="FOLDER", help="The float model, for its accuracy on these samples."),
    ] = None,
    steps: Annotated[
        str, typer.Option("--steps", metavar="N|equilibrium", help="How many, or until nothing fires.")
    ] = "equilibrium",
    engine: EngineOption = "auto",
    coding: CodingOption = "analog",
    max_spike: MaxSpikeOption = 1,
    stagger: StaggerOption = 0,
    energy: Annotated[
        Path | None,
        typer.Option("--energy", metavar="FILE", help="Energies per operation, as JSON; see docs/energy.md."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="|".join(MEMORIES), show_default="off", help="Count memory traffic, too."),
    ] = None,
    samples: SamplesOption = None,
    batch_size: BatchSizeOption = 8,
    device: DeviceOption = None,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="FOLDER", help="Keep the state here, and the result: see --resume."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the state in --folder.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write everything that was measured to this file.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="TEXT", show_default="that of SNN", help="What to call it in tables."),
    ] = None,
) -> None:
    """Measure a spiking network on a data set: accuracy over time, latency, activity, operations, energy.

    With --qann the same run also compares the codes of every site, as [bold]spikezip verify[/] does: one line says
    whether they are equal, and the certificate goes into the document.

    Ctrl-C keeps what is done, if there is a --folder; --resume goes on from there. `accelerate launch` starts several
    processes, which share the batches. [bold]spikezip compare[/] puts several results side by side.

    [bold]Example[/]

    [green]spikezip measure ./snn --qann ./qann --data test.npz --json measurement.json[/]

    [green]spikezip measure ./snn --data imagenet:FOLDER --batch-size 64 --folder runs/m --resume[/]

    [green]accelerate launch --num_processes 4 -m spikezip measure ./snn --data imagenet:FOLDER --json m.json[/]
    """
    wanted = read_steps(steps)
    if resume and folder is None:
        raise ConfigError("--resume needs --folder, where the state is")
    if json_file is not None and json_file.is_dir():
        raise ConfigError(f"--json {json_file} is a folder; a file is needed")
    where, model = read_device(device), _energy_model(energy, memory)
    found = samples_of.read(data)
    network = load(snn, "snn")
    head = Head.of(network)
    if found.labels is not None and head.classes is not None and not head.per_token:  # before any work
        head.check_classes(samples_of.label_tensor(found.labels, network.config), f"--data {data}")
    total = min(len(found), samples or len(found))
    certificate = locate(snn) / CERTIFICATE
    processes = Processes.here(cpu=where.type == "cpu")
    shown: Any = progress("measuring", total) if processes.first else nullcontext(lambda done: None)
    with shown as done:
        measurement = measure_networks(
            network,
            samples_of.batches(found, network, locate(snn), batch_size, total),
            None if qann is None else load(qann, "qann"),
            float_model=None if float_model is None else load_float(float_model),
            steps=wanted,
            engine=engine,
            coding=coding,
            max_spike=max_spike,
            stagger=stagger,
            energy_model=model,
            certificate=Certificate.from_json(certificate.read_text("utf-8")) if certificate.is_file() else None,
            device=where,
            folder=folder,
            resume=resume,
            progress=lambda n: done(min(n * processes.count, total)),
            name=name or Path(snn).name,
            data=data,
            source=snn,
            command=_command(),
        )
    if not processes.first:
        return
    if json_file is not None:
        measurement.save(json_file)
    show(measurement)
    for path in (json_file, folder and folder / "measurement.json"):
        if path is not None:
            say(f"measurement → {path}")


def _energy_model(file: Path | None, memory: str | None) -> EnergyModel:
    """The paper's energies, with what a file and `--memory` say instead."""
    try:
        given = {} if file is None else json.loads(file.read_text(encoding="utf-8"))
        model = EnergyModel.from_json(given)
    except ValueError as error:  # what is no JSON, and what is no energy
        raise ConfigError(f"--energy {file}: {error}") from None
    try:
        return model if memory is None else replace(model, memory=memory)
    except ValueError:
        raise ConfigError(f"--memory {memory}: choose one of {', '.join(MEMORIES)}") from None


def _command() -> str:
    """What was typed. `--resume` is left out: it does not change what is measured."""
    return shlex.join(["spikezip", *(word for word in sys.argv[1:] if word != "--resume")])
