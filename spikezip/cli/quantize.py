"""`spikezip quantize`: float model → QANN folder."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

import spikezip
from spikezip.cli import data as samples_of
from spikezip.cli.float_model import TASKS, load_float
from spikezip.cli.folders import check_target, locate, save
from spikezip.cli.options import BatchSizeOption, DataOption, DeviceOption, bits, check_overlap, one_of, site_settings
from spikezip.cli.options import device as read_device
from spikezip.cli.screen import progress, say
from spikezip.errors import ConfigError
from spikezip.quant.calibration import EFFORTS
from spikezip.quant.config import PLACEMENTS


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
    placement: Annotated[
        str,
        typer.Option(
            "--placement",
            callback=one_of("placement", PLACEMENTS),
            metavar="PLACEMENT",
            help="Where sites stand: as in the paper, or at products only. One of " + ", ".join(PLACEMENTS) + ".",
        ),
    ] = "paper",
    effort: Annotated[
        str,
        typer.Option(
            "--effort",
            callback=one_of("effort", EFFORTS),
            metavar="EFFORT",
            help="'quick' gives each site a scale; 'default' also one per channel where that is free, and more levels "
            "where they count; 'thorough' also fits every block to the float model's, in some ten times the time.",
        ),
    ] = "default",
    equal_levels: Annotated[
        bool, typer.Option("--equal-levels", help="The same levels at all sites; else --levels is their mean.")
    ] = False,
    rotate: Annotated[
        bool | None,
        typer.Option(
            "--rotate/--no-rotate",
            help="Whether calibration may rotate channels, with additions in every step, where that makes a much "
            "smaller error. Unless given: with --placement products.",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", min=1, metavar="N", help="Samples to calibrate on, drawn from all of --data.")
    ] = 128,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the draw.")] = 0,
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
    """Quantize a float model and set codes and scales from data. Labels are not looked at.

    Tokenizer and image-processor files go along into OUT, so that the other verbs find them there. A thorough
    calibration that was interrupted goes on when the command is given again.

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
        placement=placement,
        rotate=rotate,
    )
    if compact and config.weight_bits is None and config.embedding_bits is None:
        raise ConfigError(
            "--compact: nothing lies on an integer grid; set --weight-bits or --embedding-bits to 8 or 16"
        )
    where = read_device(device)
    found = samples_of.read(data).without_labels()
    check_target(target)
    source = locate(model)
    qann = spikezip.quantize(load_float(model, task), config).to(where)
    check_overlap(dict(config.sites), qann.sites)

    count = min(samples, len(found))
    batches = samples_of.batches(found, qann, source, batch_size, count, drawn_by=seed)
    checkpoint = target.with_name(f"{target.name}.calibration") if effort == "thorough" else None
    if checkpoint is not None and checkpoint.exists():
        say(f"going on with the calibration that was interrupted ({checkpoint}; remove it to start anew)")
    with ExitStack() as stack:
        bar: list[Callable[[int], None]] = []

        def tell(done: int, total: int) -> None:
            if not bar:
                bar.append(stack.enter_context(progress("calibrating", total)))
            bar[0](done)

        spikezip.calibrate(
            qann, batches, effort, equal_levels=equal_levels, seed=seed, progress=tell, checkpoint=checkpoint
        )
    moved = spikezip.snap(qann) if compact else 0.0
    save(qann, target, source, compact)
    if moved:
        say(f"compact weights: scales moved by up to {moved:.1e} of their value")
    if qann.calibration is not None:
        say(str(qann.calibration))
    say(f"{type(qann).__name__}: {_sites(qann)}, calibrated on {count} samples → {target}")


def _sites(qann: spikezip.QuantizedNetwork) -> str:
    """How many sites there are, and their levels."""
    levels = [site.levels for site in qann.sites.values()]
    low, high = min(levels), max(levels)
    shown = f"{low} levels" if low == high else f"{low} to {high} levels, {sum(levels) / len(levels):.1f} on average"
    return f"{len(levels)} sites, {shown}"
