"""Run the shipped network as a spiking network and say what happened."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spikezip.convert import convert
from spikezip.demo.bundle import load_images, load_qann, normalise
from spikezip.errors import SpikezipError
from spikezip.measure.certificate import Certificate
from spikezip.measure.equivalence import verify
from spikezip.quant.model import QuantizedModel
from spikezip.simulate import Run, SpikingModel

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = (1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32)
REPORT = Path("spikezip-demo.html")
MEASURED = 200  # images in the report: enough for its curves, and it is there in seconds


@dataclass
class _Tally:
    """What the runs of all batches say together, step by step."""

    labels: Tensor
    hits: Tensor = field(default_factory=lambda: torch.zeros(SHOWN[-1]))
    agree: Tensor = field(default_factory=lambda: torch.zeros(SHOWN[-1]))
    qann_hits: int = 0
    spikes: float = 0.0
    seen: int = 0

    def add(self, output: Tensor, run: Run) -> None:
        truth = self.labels[self.seen : self.seen + len(output)]
        reference = output.argmax(-1)
        predicted = run.logits_per_step.argmax(-1)[: SHOWN[-1]]
        silent = SHOWN[-1] - len(predicted)  # after equilibrium nothing changes any more
        predicted = torch.cat([predicted, predicted[-1:].expand(max(silent, 0), -1)])
        self.hits += (predicted == truth).sum(dim=1)
        self.agree += (predicted == reference).sum(dim=1)
        self.qann_hits += int((reference == truth).sum())
        self.spikes += run.spikes_per_neuron * len(output)
        self.seen += len(output)


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

    tally = _Tally(labels)
    batches = (pixels[i : i + batch_size] for i in range(0, samples, batch_size))
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=samples)
        certificate = verify(
            qann, snn, batches, progress=lambda done: progress.update(task, completed=done), watch=tally.add
        )

    table = Table(title="accuracy over time", title_justify="left")
    for heading in ("step T", "SNN accuracy", "agrees with QANN"):
        table.add_column(heading, justify="right")
    for t in SHOWN:
        table.add_row(
            str(t), f"{100 * tally.hits[t - 1] / samples:.1f} %", f"{100 * tally.agree[t - 1] / samples:.1f} %"
        )
    console.print(table)

    t_eq = certificate.t_eq
    facts = {
        "QANN accuracy": f"{100 * tally.qann_hits / samples:.1f} %",
        "SNN accuracy": f"{100 * tally.hits[-1] / samples:.1f} % at T = {SHOWN[-1]}",
        "T_eq": f"median {t_eq['median']}, 99 % {t_eq['p99']}, maximum {t_eq['max']} steps",
        "spikes per neuron": f"{tally.spikes / samples:.2f} until equilibrium",
        "codes compared": f"{certificate.codes:,} at {certificate.sites} sites, {certificate.mismatches:,} mismatches",
        "certificate": "exact: the SNN is the QANN, bit for bit" if certificate.exact else f"[red]{certificate}[/red]",
        "time": f"{time.perf_counter() - started:.0f} s",
    }
    for name, value in facts.items():
        console.print(f"{name:<18} {value}", highlight=False)
    if report is not None:
        with console.status("measuring for the report"):
            said = _report(qann, snn, images[:MEASURED], labels[:MEASURED], batch_size, certificate, report)
        console.print(f"{'report':<18} {said}", highlight=False, soft_wrap=True)
    return 0 if certificate.exact else 1


def _report(
    qann: QuantizedModel,
    snn: SpikingModel,
    images: Tensor,
    labels: Tensor,
    batch_size: int,
    certificate: Certificate,
    path: Path,
) -> str:
    """Write the report, with one image to play, if what it is drawn with is installed; what to say about it."""
    from spikezip.show.need import INSTALL, is_installed

    if not is_installed():
        return f"a page to look at all this, and to play it step by step, needs: {INSTALL}".replace("[", r"\[")
    from spikezip.measure.measuring import measure
    from spikezip.show.report import report
    from spikezip.show.story import tell

    batches = [
        {"pixel_values": normalise(images[i : i + batch_size]), "labels": labels[i : i + batch_size]}
        for i in range(0, len(images), batch_size)
    ]
    measured = measure(
        snn,
        batches,
        qann,
        certificate=certificate,
        name="ViT on Fashion-MNIST",
        data=f"Fashion-MNIST, the first {len(images)} test images",
        source="spikezip.demo",
        command="spikezip demo",
    )
    story = tell(snn, batches[0], qann, title="The first test image", image=images[0].permute(1, 2, 0))
    try:
        written = report(measured, path, story).resolve()
    except (SpikezipError, OSError) as error:  # the demo has said what it has to say; a full disk does not undo it
        return f"[yellow]could not be written: {error}[/yellow]"
    return f"{written} ({written.stat().st_size / 1e6:.1f} MB), for a browser"
