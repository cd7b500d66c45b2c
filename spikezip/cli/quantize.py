"""`spikezip quantize`: float model → QANN folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import spikezip
from spikezip.cli import data as samples_of
from spikezip.cli.float_model import TASKS, load_float
from spikezip.cli.folders import check_target, locate, save
from spikezip.cli.options import BatchSizeOption, DataOption, DeviceOption, bits, check_overlap, one_of, site_settings
from spikezip.cli.options import device as read_device
from spikezip.cli.screen import progress, say
from spikezip.errors import ConfigError


def quantize(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A float transformers model: a folder, or a name on the Hub.")
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The folder for the quantized network (QANN).")],
    data: DataOption,
    levels: Annotated[
        int, typer.Option("--levels", metavar="N", help="Codes per site: an even number from 4 to 256.")
    ] = 32,
    weights: Annotated[
        str,
        typer.Option(
            "--weight-bits", metavar="8|16|none", help="Weights on an integer grid (exact), or 'none': float weights."
        ),
    ] = "8",
    embeddings: Annotated[
        str,
        typer.Option(
            "--embedding-bits",
            metavar="8|16|none",
            help="Embedding tables of a text model on an integer grid as well, or 'none': float tables.",
        ),
    ] = "none",
    site: Annotated[
        list[str] | None,
        typer.Option("--site", metavar="PATTERN=LEVELS", help="Other levels for some sites; may be repeated."),
    ] = None,
    per_channel: Annotated[
        list[str] | None,
        typer.Option(
            "--per-channel",
            metavar="PATTERN",
            help="A scale per channel for some sites, such as '*.LayerNorm'; may be repeated.",
        ),
    ] = None,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact",
            help="Store weights as integers, a quarter of the space at 8 bits. For a result, not to train on.",
        ),
    ] = False,
    batches: Annotated[int, typer.Option("--batches", min=1, metavar="N", help="Batches to calibrate on.")] = 8,
    batch_size: BatchSizeOption = 8,
    device: DeviceOption = None,
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

    [green]spikezip quantize ./my-bert ./qann --data sst2:./SST-2#train --embedding-bits 8 --compact[/]
    """
    config = spikezip.QuantConfig(
        levels=levels,
        weight_bits=bits("weight-bits", weights),
        embedding_bits=bits("embedding-bits", embeddings),
        sites=site_settings(site or (), per_channel or ()),
    )
    if compact and config.weight_bits is None and config.embedding_bits is None:
        raise ConfigError(
            "--compact: nothing lies on an integer grid; set --weight-bits or --embedding-bits to 8 or 16"
        )
    where = read_device(device)
    samples = samples_of.read(data)
    check_target(target)
    source = locate(model)
    qann = spikezip.quantize(load_float(model, task), config).to(where)
    check_overlap(dict(config.sites), qann.sites)

    limit = min(batches * batch_size, len(samples))
    with progress("calibrating", limit) as done:

        def watched() -> Iterator[dict[str, Any]]:
            seen = 0
            for batch in samples_of.batches(samples, qann, source, batch_size, limit):
                yield batch
                done(seen := min(seen + batch_size, limit))

        spikezip.calibrate(qann, watched())
    moved = spikezip.snap(qann) if compact else 0.0
    save(qann, target, source, compact)
    if moved:
        say(f"compact weights: scales moved by up to {moved:.1e} of their value")
    say(f"{type(qann).__name__}: {len(qann.sites)} sites, {levels} levels, calibrated on {limit} samples → {target}")
