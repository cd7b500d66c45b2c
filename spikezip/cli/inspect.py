"""`spikezip inspect`: what is in a folder, or what would become of a float model."""

from typing import Annotated, Any

import typer
from rich.table import Table
from torch import Tensor

import spikezip
from spikezip.cli.float_model import build_from_config
from spikezip.cli.folders import is_checkpoint, locate
from spikezip.cli.screen import out, say


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, or a name on the Hub.")],
) -> None:
    """Show the sites of a quantized or spiking network, or what quantizing a float model would place where.

    A float model is built from its config alone: its weights are not read. The exit code is 1 if it cannot be
    quantized; the reason is shown.

    [bold]Example[/]

    [green]spikezip inspect ./snn[/]

    [green]spikezip inspect google/vit-base-patch16-224[/]
    """
    if is_checkpoint(locate(model)):
        _show_network(spikezip.load(model))
        return
    report = spikezip.coverage(build_from_config(model))
    _show_coverage(report)
    if not report.complete:
        raise typer.Exit(1)


def _show_network(model: Any) -> None:
    config = model.quant_config
    weights = "float weights" if config.weight_bits is None else f"{config.weight_bits}-bit weights"
    if config.embedding_bits is not None:
        weights += f", {config.embedding_bits}-bit embeddings"
    sites = model.program.sites
    say(f"{type(model).__name__}, {model.kind.upper()}")
    say(f"{len(sites)} sites, {config.levels} levels{''.join(_exceptions(config))}, {weights}")
    table = Table("site", "levels", "lo…hi", "scale")
    for name, site in sites.items():
        scale = _scale(model.scale(name).detach() if model.kind == "qann" else model.frozen().step_size(name))
        scale = "not set yet" if model.kind == "qann" and not model.is_ready(name) else scale
        table.add_row(name, str(site.levels), f"{site.lo}…{site.hi}", scale)
    for column in table.columns[1:]:
        column.justify = "right"
    out().print(table, highlight=False, markup=False)


def _scale(scale: Tensor) -> str:
    if scale.numel() == 1:
        return f"{float(scale):.6g}"
    return f"{float(scale.min()):.6g}…{float(scale.max()):.6g} ({scale.numel()} channels)"


def _exceptions(config: spikezip.QuantConfig) -> list[str]:
    """What differs from the rule, such as ", 64 at *.p" or ", 64 per channel at *.LayerNorm"."""
    found = []
    for pattern, site in config.sites.items():
        codes = f"{site.lo}…{site.hi}" if site.lo is not None else site.levels
        words = [str(codes)] if codes is not None else []
        words += ["signed" if site.signed else "unsigned"] if site.signed is not None else []
        words += ["per channel"] if site.per_channel else []
        if words:
            found.append(f", {' '.join(words)} at {pattern}")
    return found


def _show_coverage(report: spikezip.Coverage) -> None:
    console = out()
    table = Table("module", "what becomes of it")
    for name, role in report.rows:
        table.add_row(name, role)
    console.print(table, highlight=False, markup=False)
    say(f"{report.model}: {len(report.sites)} sites, {len(report.products)} products")
    for note in report.notes:
        say(note)
    for problem in report.problems:
        console.print(f"✗ {problem}", style="red", markup=False, highlight=False, soft_wrap=True)
    if report.complete:
        console.print("[green]complete[/]: this model can be quantized")
    else:
        console.print(f"{len(report.problems)} problem(s): this model cannot be quantized", style="bold red")
