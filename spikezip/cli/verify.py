"""`spikezip verify`: is the SNN the QANN? Prints the certificate and writes it next to the network."""

from collections.abc import Iterator
from contextlib import contextmanager
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
from spikezip.cli.screen import out, progress, say
from spikezip.errors import InputError
from spikezip.files import CERTIFICATE
from spikezip.measure.certificate import Certificate, same_as
from spikezip.measure.hashes import hash_data, hash_network


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
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="CERTIFICATE",
            help="The certificate.json of another machine: were its codes and outputs the same?",
        ),
    ] = None,
) -> None:
    """Compare the codes of every site, and the outputs, bit for bit.

    The certificate is written as certificate.json into the SNN's folder, or into the QANN's if no SNN is given.
    With --against they are also compared with those that another machine found, by their hashes.
    The exit code is 0 if everything is equal and 1 if not.

    [bold]Example[/]

    [green]spikezip verify ./qann ./snn --data test.npz --samples 256[/]

    [green]spikezip verify ./qann --data test.tsv --engine spike --coding rate[/]

    [green]spikezip verify ./qann --data test.tsv --against elsewhere/certificate.json[/]
    """
    other = None if against is None else _read(against)
    where = read_device(device)
    found = samples_of.read(data).without_labels()
    quantized = load(qann, "qann").to(where)
    spiking = spikezip.convert(quantized) if snn is None else load(snn, "snn").to(where)
    total = min(len(found), samples or len(found))

    def stream() -> Iterator[Any]:
        return samples_of.batches(found, quantized, locate(qann), batch_size, total)

    if against is not None and other is not None:  # what cannot be compared is refused before the long work
        with _named(against):
            same_as(other, hash_network(spiking.frozen()), total, batch_size=min(batch_size, total))
            same_as(other, data=hash_data(spiking.program, map(spiking.prepare, stream())))
    with progress("verifying", total) as done:
        certificate = spikezip.verify(
            quantized,
            spiking,
            stream(),
            engine=engine,
            coding=coding,
            max_spike=max_spike,
            stagger=stagger,
            progress=done,
        )
    folder = Path(snn or qann)
    folder = folder if folder.is_dir() else Path()  # a network on the Hub: here
    _show(certificate)
    if against is None or against.resolve() != (folder / CERTIFICATE).resolve():  # what it is compared with stays
        say(f"certificate → {certificate.save(folder)}")
    if not certificate.exact or (other is not None and not _is_equal(certificate, other, against)):
        raise typer.Exit(1)


def _read(path: Path) -> Certificate:
    with _named(path):
        return Certificate.from_json(path.read_text(encoding="utf-8"))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors that name the certificate that was given."""
    try:
        yield
    except ValueError as error:  # no JSON, no text, no certificate, or not comparable
        raise InputError(f"--against {path}: {error}") from None


def _is_equal(certificate: Certificate, other: Certificate, path: Path | None) -> bool:
    """Whether another machine found the same; says so, or where it begins to differ."""
    difference = certificate.against(other)
    if difference is None:
        say(f"equal to {path}: {len(certificate.hashes)} sites, outputs")
        return True
    say(f"NOT equal to {path}: {difference}")
    if certificate.not_portable:
        say(f"this network depends on the machine: {', '.join(certificate.not_portable)}")
    if certificate.batch_size != other.batch_size:
        say(f"batches had {other.batch_size} samples there, {certificate.batch_size} here: some networks see padding")
    return False


def _show(certificate: Certificate) -> None:
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
