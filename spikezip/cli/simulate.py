"""`spikezip simulate`: what the SNN says after 1, 2, 4, … steps."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import spikezip
from spikezip.cli import data as samples_of
from spikezip.cli.folders import load, locate
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
from spikezip.cli.screen import out, progress, say
from spikezip.engines import resolve_engine
from spikezip.measure.answers import Head
from spikezip.measure.over_time import OverTime, shown_steps


def simulate(
    snn: Annotated[str, typer.Argument(metavar="SNN", help="A spiking network: a folder, or a name on the Hub.")],
    data: DataOption,
    steps: Annotated[
        str, typer.Option("--steps", metavar="N|equilibrium", help="How many, or until nothing fires.")
    ] = "64",
    engine: EngineOption = "auto",
    coding: CodingOption = "analog",
    max_spike: MaxSpikeOption = 1,
    stagger: StaggerOption = 0,
    samples: SamplesOption = None,
    batch_size: BatchSizeOption = 8,
    device: DeviceOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers, of every step, to this file.")
    ] = None,
) -> None:
    """Run samples through a spiking network and show how its answer forms over time.

    [bold]Example[/]

    [green]spikezip simulate ./snn --data test.npz --steps 64[/]

    [green]spikezip simulate ./snn --data dev.tsv --steps equilibrium --json run.json[/]
    """
    wanted, where = read_steps(steps), read_device(device)
    found = samples_of.read(data)
    network = load(snn, "snn").to(where)
    engine, why = resolve_engine(network.frozen(), network.program.layout, engine)
    if why:
        say(f"step by step: {why}")
    total = min(len(found), samples or len(found))
    # Hidden states are no answer, and a question's answer is a place in the text, not a class.
    headless = Head.of(network).classes is None
    over_time = OverTime(classes=not headless)
    with progress("simulating", total) as done:
        for batch in samples_of.batches(found, network, locate(snn), batch_size, total):
            run = spikezip.simulate(network, batch, wanted, engine, coding=coding, max_spike=max_spike, stagger=stagger)
            over_time.add(run, batch.get("labels"), batch.get("attention_mask"))
            done(over_time.samples)
    settings = {"steps": wanted, "engine": engine, "coding": coding, "max_spike": max_spike, "stagger": stagger}
    numbers = {"snn": snn, "data": data, **settings, **over_time.numbers()}
    if json_file is not None:
        json_file.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    _show(numbers)


def _show(numbers: dict[str, Any]) -> None:
    rows = numbers["over_time"]
    columns = {
        "agreement": ("agrees with the last step", "{:.1%}"),
        "accuracy": ("accuracy", "{:.1%}"),
        "distance": ("distance to the last step", "{:.2g}"),
        "spikes_per_neuron": ("spikes per neuron", "{:.3f}"),
    }
    known = [name for name in columns if rows[-1][name] is not None]
    table = Table("step", *(columns[name][0] for name in known))
    for column in table.columns:
        column.justify = "right"
    for step in shown_steps(len(rows)):
        row = rows[step - 1]
        table.add_row(str(step), *(columns[name][1].format(row[name]) for name in known))
    t_eq, unsettled = numbers["t_eq"], numbers["unsettled"]
    out().print(table)
    say(f"{numbers['samples']:,} samples, {numbers['spikes_per_neuron']:.3f} spikes per neuron")
    if t_eq["max"] is not None:
        say(f"T_eq: min {t_eq['min']} · median {t_eq['median']} · max {t_eq['max']}")
    if unsettled:
        out().print(
            f"[yellow]{unsettled:,} samples had not settled by the last step: try --steps equilibrium[/]",
            highlight=False,
        )
