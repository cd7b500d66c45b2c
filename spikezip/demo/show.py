"""Run the shipped network as a spiking network and say what happened."""

import time
from typing import TYPE_CHECKING

import torch

from spikezip.convert import convert
from spikezip.demo.bundle import load_images, load_qann, normalise
from spikezip.measure.certificate import summarize_t_eq
from spikezip.measure.equivalence import verify
from spikezip.simulate import simulate

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)


def run(console: "Console | None" = None, samples: int = 1000, batch_size: int = 50) -> int:
    """Convert, simulate, verify, print; returns 0 if the certificate is exact, else 1."""
    from rich.console import Console
    from rich.progress import track
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
        f"[bold]spikezip demo[/bold]: a ViT with {weights / 1e6:.2f} M parameters, trained on Fashion-MNIST, "
        f"{config.levels} levels, {config.weight_bits}-bit weights\n"
        f"{len(snn.neurons)} layers of ST-BIF+ neurons, {samples} test images\n"
    )

    hits, agree, counted, t_eq = torch.zeros(SHOWN[-1]), torch.zeros(SHOWN[-1]), 0, []
    qann_hits, spikes = 0, 0.0
    starts = range(0, samples, batch_size)
    for i in track(starts, description="simulating", console=console, transient=True):
        batch, truth = pixels[i : i + batch_size], labels[i : i + batch_size]
        with torch.no_grad():
            reference = qann(pixel_values=batch).logits.argmax(-1)
        result = simulate(snn, batch, steps=SHOWN[-1])
        predicted = result.logits_per_step.argmax(-1)
        hits += (predicted == truth).sum(dim=1)
        agree += (predicted == reference).sum(dim=1)
        qann_hits += int((reference == truth).sum())
        spikes += result.spikes_per_neuron * len(batch)
        t_eq += [t for t in result.t_eq if t is not None]
        counted += len(batch)

    table = Table(title="accuracy over time", title_justify="left")
    for heading in ("step T", "SNN accuracy", "agrees with QANN"):
        table.add_column(heading, justify="right")
    for t in SHOWN:
        table.add_row(str(t), f"{100 * hits[t - 1] / counted:.1f} %", f"{100 * agree[t - 1] / counted:.1f} %")
    console.print(table)

    batches = (pixels[i : i + batch_size] for i in starts)
    with console.status("comparing codes at every site"):
        certificate = verify(qann, snn, batches)
    summary = summarize_t_eq(t_eq)
    console.print(
        f"QANN accuracy     {100 * qann_hits / counted:.1f} %\n"
        f"SNN accuracy      {100 * hits[-1] / counted:.1f} % at T = {SHOWN[-1]}\n"
        f"T_eq              median {summary['median']}, 99 % {summary['p99']}, maximum {summary['max']} steps\n"
        f"spikes per neuron {spikes / counted:.2f} until equilibrium\n"
        f"certificate       {certificate}\n"
        f"time              {time.perf_counter() - started:.0f} s"
    )
    return 0 if certificate.exact else 1
