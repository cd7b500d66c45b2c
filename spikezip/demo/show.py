"""Run the shipped network as a spiking network and say what happened."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from spikezip.demo.bundle import load_images, load_qann, normalise
from spikezip.engines import SpikingNetwork
from spikezip.errors import SpikezipError
from spikezip.measure.certificate import Certificate
from spikezip.measure.document import Measurement
from spikezip.measure.measuring import measure
from spikezip.models.networks import convert
from spikezip.quant.network import QuantizedNetwork

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = (1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32)
REPORT = Path("spikezip-demo.html")


def run(
    console: "Console | None" = None, samples: int = 1000, batch_size: int = 25, report: Path | None = REPORT
) -> int:
    """Convert, simulate, verify, print, write a report; returns 0 if the certificate is exact, else 1."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    console = console or Console()
    started = time.perf_counter()
    qann = load_qann().eval()
    images, labels = (tensor[:samples] for tensor in load_images())
    pixels = normalise(images)
    snn = convert(qann)
    weights = sum(p.numel() for p in qann.parameters())
    config = qann.quant_config
    console.print(
        f"[bold]spikezip demo[/bold]: a ViT with {weights / 1e6:.2f} M parameters, trained on Fashion-MNIST\n"
        f"{config.levels} levels, {config.weight_bits}-bit weights, {len(snn.neurons)} layers of ST-BIF+ neurons, "
        f"{samples} test images\n",
        highlight=False,
    )

    batches = [
        {"pixel_values": pixels[i : i + batch_size], "labels": labels[i : i + batch_size]}
        for i in range(0, samples, batch_size)
    ]
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=samples)
        measured = measure(
            snn,
            batches,
            qann,
            progress=lambda done: progress.update(task, completed=done),
            name="ViT on Fashion-MNIST",
            data=f"Fashion-MNIST, the first {samples} test images",
            source="spikezip.demo",
            command="spikezip demo",
        )
    assert measured.certificate is not None  # there is a QANN, and it ran to equilibrium
    assert measured.qann is not None
    certificate = Certificate(**measured.certificate)

    table = Table(title="accuracy over time", title_justify="left")
    for heading in ("step T", "SNN accuracy", "agrees with QANN"):
        table.add_column(heading, justify="right")
    for t in SHOWN:
        table.add_row(str(t), _percent(measured.at("accuracy", t)), _percent(measured.at("agreement", t)))
    console.print(table)

    t_eq = certificate.t_eq
    facts = {
        "QANN accuracy": _percent(measured.qann.accuracy),
        "SNN accuracy": f"{_percent(measured.at('accuracy', SHOWN[-1]))} at T = {SHOWN[-1]}",
        "T_eq": f"median {t_eq['median']}, 99 % {t_eq['p99']}, maximum {t_eq['max']} steps",
        "spikes per neuron": f"{measured.spikes_per_neuron:.2f} until equilibrium",
        "codes compared": f"{certificate.codes:,} at {certificate.sites} sites, {certificate.mismatches:,} mismatches",
        "certificate": "exact: the SNN is the QANN, bit for bit" if certificate.exact else f"[red]{certificate}[/red]",
        "time": f"{time.perf_counter() - started:.0f} s",
    }
    for name, value in facts.items():
        console.print(f"{name:<18} {value}", highlight=False)
    if report is not None:
        with console.status("writing the report"):
            said = _report(measured, qann, snn, batches[0], images[0], report)
        console.print(f"{'report':<18} {said}", highlight=False, soft_wrap=True)
    return 0 if certificate.exact else 1


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _report(
    measured: Measurement,
    qann: QuantizedNetwork,
    snn: SpikingNetwork,
    batch: dict[str, Tensor],
    image: Tensor,
    path: Path,
) -> str:
    """Write the report, with one image to play; what to say about it."""
    from spikezip.show.report import report
    from spikezip.show.story import tell

    story = tell(snn, batch, qann, title="The first test image", image=image.permute(1, 2, 0))
    try:
        written = report(measured, path, story).resolve()
    except (SpikezipError, OSError) as error:  # the demo has said what it has to say; a full disk does not undo it
        return f"[yellow]could not be written: {error}[/yellow]"
    return f"{written} ({written.stat().st_size / 1e6:.1f} MB), for a browser"
