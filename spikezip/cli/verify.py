"""`spikezip verify`: is the SNN the QANN? Prints the certificate and writes it next to the network."""

from pathlib import Path
from typing import Annotated

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
from spikezip.cli.screen import out, progress, say


def verify(
    qann: Annotated[str, typer.Argument(metavar="QANN", help="The quantized network.")],
    snn: Annotated[
        str | None, typer.Argument(metavar="SNN", help="Its spiking network; left out: converted in memory.")
    ] = None,
    *,
    data: DataOption,
    samples: SamplesOption = None,
    engine: EngineOption = "auto",
    coding: CodingOption = "analog",
    max_spike: MaxSpikeOption = 1,
    stagger: StaggerOption = 0,
    batch_size: BatchSizeOption = 8,
    device: DeviceOption = None,
) -> None:
    """Compare the codes of every site, and the outputs, bit for bit.

    The certificate is written as certificate.json into the SNN's folder, or into the QANN's if no SNN is given.
    The exit code is 0 if everything is equal and 1 if not.

    [bold]Example[/]

    [green]spikezip verify ./qann ./snn --data test.npz --samples 256[/]

    [green]spikezip verify ./qann --data test.tsv --engine spike --coding rate[/]
    """
    where = read_device(device)
    found = samples_of.read(data)
    quantized = load(qann, "qann").to(where)
    spiking = spikezip.convert(quantized) if snn is None else load(snn, "snn").to(where)
    total = min(len(found), samples or len(found))
    with progress("verifying", total) as done:
        certificate = spikezip.verify(
            quantized,
            spiking,
            samples_of.batches(found, quantized, locate(qann), batch_size, total),
            engine=engine,
            coding=coding,
            max_spike=max_spike,
            stagger=stagger,
            progress=done,
        )
    folder = Path(snn or qann)
    path = certificate.save(folder if folder.is_dir() else ".")  # a network on the Hub: here
    _show(certificate)
    say(f"certificate → {path}")
    if not certificate.exact:
        raise typer.Exit(1)


def _show(certificate: spikezip.Certificate) -> None:
    settings, t_eq = certificate.settings, certificate.t_eq
    table = Table.grid(padding=(0, 2))
    first = certificate.first_mismatch
    rows = {
        "samples": f"{certificate.samples:,}",
        "sites": f"{certificate.sites:,}",
        "codes compared": f"{certificate.codes:,}",
        "codes that differ": f"{certificate.mismatches:,}",
        "outputs that differ": f"{certificate.output_mismatches:,}",
        "samples not settled": f"{certificate.unsettled:,}",
        "first difference": first and "{site}: batch {batch}, index {index}, QANN {qann}, SNN {snn}".format(**first),
        "T_eq": f"min {t_eq['min']} · median {t_eq['median']} · 99 % {t_eq['p99']} · max {t_eq['max']}",
        "holds for": f"{settings['engine']} engine, {settings['coding']} input, largest spike {settings['max_spike']}, "
        f"stagger {settings['stagger']:g}, {settings['device']}, {settings['dtype']}, {settings['backend']}",
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    console = out()
    console.print("[bold green]exact[/]" if certificate.exact else "[bold red]NOT exact[/]")
    console.print(table, highlight=False)
