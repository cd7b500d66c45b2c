"""`spikezip report`: everything about an SNN as one HTML file."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from spikezip.cli import data as samples_of
from spikezip.cli.folders import load, locate
from spikezip.cli.options import BatchSizeOption, DataOption, DeviceOption, SamplesOption
from spikezip.cli.options import device as read_device
from spikezip.cli.screen import progress, say
from spikezip.cli.shown_samples import looks, take
from spikezip.errors import ConfigError, InputError
from spikezip.files import CERTIFICATE
from spikezip.measure.certificate import Certificate
from spikezip.measure.exactness import verify


def report(
    snn: Annotated[str, typer.Argument(metavar="SNN", help="A spiking network: a folder, or a name on the Hub.")],
    data: DataOption,
    measurement: Annotated[
        Path | None,
        typer.Option(
            "--measurement",
            metavar="FILE",
            show_default="measure now",
            help="What `spikezip measure --json FILE` wrote; the story is then told with its settings.",
        ),
    ] = None,
    qann: Annotated[
        str | None,
        typer.Option("--qann", metavar="FOLDER", help="Its QANN: to compare with its answers and its codes."),
    ] = None,
    sample: Annotated[int, typer.Option("--sample", min=0, metavar="N", help="Which sample is played, from 0.")] = 0,
    samples: SamplesOption = None,
    batch_size: BatchSizeOption = 8,
    device: DeviceOption = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write it.")] = Path("report.html"),
) -> None:
    """Write a report: summary with certificate, charts, tables, and one input that can be played step by step.

    It is one HTML file that needs no network. Without --measurement it measures first, to equilibrium; for other
    settings run [bold]spikezip measure[/] yourself. With --qann there is always a certificate: if the measurement and
    the SNN's folder have none, the networks are compared now.

    [bold]Example[/]

    [green]spikezip report ./snn --qann ./qann --data test.npz --samples 256 --sample 3[/]

    [green]spikezip report ./snn --data dev.tsv --measurement measurement.json --out sst2.html[/]
    """
    from spikezip.measure.document import Measurement
    from spikezip.measure.measuring import measure
    from spikezip.show.report import report as write

    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; a file is needed")
    where = read_device(device)
    measured = None if measurement is None else Measurement.load(measurement)
    found = samples_of.read(data)
    if sample >= len(found):
        raise InputError(f"--sample {sample}: {data} holds {len(found):,} samples, counted from 0")
    network = load(snn, "snn").to(where)
    quantized = None if qann is None else load(qann, "qann").to(where)
    folder = locate(snn)
    if measured is None:
        total = min(len(found), samples or len(found))
        with progress("measuring", total) as done:
            measured = measure(
                network,
                samples_of.batches(found, network, folder, batch_size, total),
                quantized,
                certificate=_certificate(folder),
                progress=done,
                name=Path(snn).name,
                data=data,
                source=snn,
                command=shlex.join(["spikezip", *sys.argv[1:]]),
            )
    else:
        _check_same(measured, network, measurement)
        certificate = None
        if measured.certificate is None:
            certificate = _certificate(folder)
            if certificate is None and quantized is not None:
                total = min(len(found), samples or measured.data.samples)
                stream = samples_of.batches(found, network, folder, batch_size, total)
                certificate = _verified(quantized, network, stream, total, measured.settings)
        if certificate is not None:
            measured = replace(measured, certificate=json.loads(certificate.to_json()))
    story = _story(network, quantized, take(found, [sample]), folder, f"Sample {sample} of {data}", measured.settings)
    path = write(measured, out, story)
    say(f"report → {path} ({path.stat().st_size / 1e6:.1f} MB)")


def _story(network: Any, quantized: Any, one: samples_of.Samples, folder: Path, title: str, settings: Any) -> Any:
    """The sample, played with the settings of the measurement; None, with a line that says why, if it cannot be."""
    from spikezip.show.story import tell

    (batch,) = samples_of.batches(one, network, folder, batch_size=1)
    shown = looks(one, folder)
    run = {"coding": settings.coding, "max_spike": settings.max_spike, "stagger": settings.stagger}
    try:
        return tell(
            network, batch, quantized, title=title, steps=settings.steps, engine=settings.engine, **shown, **run
        )
    except InputError as error:
        say(f"the report has no player: {error}")
        return None


def _certificate(folder: Path) -> Certificate | None:
    file = folder / CERTIFICATE
    return Certificate.from_json(file.read_text(encoding="utf-8")) if file.is_file() else None


def _verified(quantized: Any, network: Any, stream: Any, total: int, settings: Any) -> Certificate:
    """For a measurement that was made without the QANN: both networks compared, with its settings, at equilibrium."""
    with progress("verifying", total) as done:
        return verify(
            quantized,
            network,
            stream,
            engine=settings.engine,
            coding=settings.coding,
            max_spike=settings.max_spike,
            stagger=settings.stagger,
            progress=done,
        )


def _check_same(measured: Any, network: Any, file: Path | None) -> None:
    """A measurement of another network must not be shown as this one's."""
    there, here = measured.model, network
    pairs = {
        "a {}": (there.class_, type(here).__name__),
        "{} levels": (there.levels, here.quant_config.levels),
        "weights of {} bits": (there.weight_bits, here.quant_config.weight_bits),
        "{} sites": (there.sites, len(here.neurons)),
    }
    for words, (one, other) in pairs.items():
        if one != other:
            raise InputError(
                f"--measurement {file} is of another network: it has {words.format(one)}, SNN {words.format(other)}"
            )
    names = {site.name for site in measured.sites}
    if names != set(network.neurons):
        odd = sorted(names ^ set(network.neurons))[0]
        raise InputError(f"--measurement {file} is of another network: only one of the two has the site {odd!r}")
