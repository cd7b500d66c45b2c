"""`spikezip quantize`: float model → QANN folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import spikezip
from spikezip.cli import data as samples_of
from spikezip.cli.float_model import TASKS, load_float
from spikezip.cli.folders import check_target, locate, save
from spikezip.cli.options import BatchSizeOption, DataOption, one_of, site_levels, weight_bits
from spikezip.cli.screen import progress, say


def quantize(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A float transformers model: a folder, or a name on the Hub.")
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The folder for the quantized network (QANN).")],
    data: DataOption,
    levels: Annotated[
        int, typer.Option("--levels", metavar="N", help="Codes per site: an even number from 4 to 256.")
    ] = 32,
    bits: Annotated[
        str,
        typer.Option(
            "--weight-bits", metavar="8|16|none", help="Weights on an integer grid (exact), or 'none': float weights."
        ),
    ] = "8",
    site: Annotated[
        list[str] | None,
        typer.Option("--site", metavar="PATTERN=LEVELS", help="Other levels for some sites; may be repeated."),
    ] = None,
    batches: Annotated[int, typer.Option("--batches", min=1, metavar="N", help="Batches to calibrate on.")] = 8,
    batch_size: BatchSizeOption = 8,
    task: Annotated[
        str,
        typer.Option(
            "--task",
            callback=one_of("task", TASKS),
            metavar="TASK",
            help=f"Which head the model gets; 'auto' is the one its config names. One of {', '.join(TASKS)}.",
        ),
    ] = "auto",
) -> None:
    """Quantize a float model and set the scales from data.

    Tokenizer and image-processor files go along into OUT, so that the other verbs find them there.

    [bold]Example[/]

    [green]spikezip quantize ./my-vit ./qann --data images.npz --levels 32[/]

    [green]spikezip quantize ./my-bert ./qann --data train.tsv --weight-bits 16 --site '*.p=64'[/]
    """
    config = spikezip.QuantConfig(levels=levels, weight_bits=weight_bits(bits), sites=site_levels(site or ()))
    samples = samples_of.read(data)
    check_target(target)
    source = locate(model)
    qann = spikezip.quantize(load_float(model, task), config)

    limit = min(batches * batch_size, len(samples))
    with progress("calibrating", limit) as done:

        def watched() -> Iterator[dict[str, Any]]:
            seen = 0
            for batch in samples_of.batches(samples, qann, source, batch_size, limit):
                yield batch
                done(seen := min(seen + batch_size, limit))

        spikezip.calibrate(qann, watched())
    save(qann, target, source)
    say(f"{type(qann).__name__}: {len(qann.sites)} sites, {levels} levels, calibrated on {limit} samples → {target}")
