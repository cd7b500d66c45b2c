"""`spikezip tune`: which staggering and which largest spike give the lowest cost, or the fewest steps."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from spikezip.cli import data as samples_of
from spikezip.cli.folders import load, locate
from spikezip.cli.measured import quantity
from spikezip.cli.options import BatchSizeOption, CodingOption, DataOption, DeviceOption, EngineOption, one_of
from spikezip.cli.options import device as read_device
from spikezip.cli.screen import out, progress, say
from spikezip.errors import ConfigError
from spikezip.measure.tuning import COSTS, MAX_SPIKES, STAGGERS, Trial, Tuning
from spikezip.measure.tuning import tune as search


def _listed(values: Any) -> str:
    return ",".join(f"{value:g}" for value in values)


def tune(
    snn: Annotated[str, typer.Argument(metavar="SNN", help="A spiking network: a folder, or a name on the Hub.")],
    data: DataOption,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, metavar="T", help="Name the lowest cost within T steps.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", metavar="X", help="Name the fewest steps within X joules (or spikes per neuron)."),
    ] = None,
    staggers: Annotated[str, typer.Option("--staggers", metavar="K,K,…", help="Delays per stage to try.")] = _listed(
        STAGGERS
    ),
    max_spikes: Annotated[
        str, typer.Option("--max-spikes", metavar="N,N,…", help="Largest spikes to try; 1 alone keeps them ternary.")
    ] = _listed(MAX_SPIKES),
    agreement: Annotated[
        str,
        typer.Option(
            "--agreement",
            metavar="SHARE|equilibrium",
            help="The answer is there once this share of answers is final, or once nothing fires.",
        ),
    ] = "0.99",
    cost: Annotated[
        str,
        typer.Option(
            "--cost",
            callback=one_of("cost", COSTS),
            metavar="|".join(COSTS),
            help="Joules per inference, or spikes per neuron.",
        ),
    ] = "energy",
    engine: EngineOption = "auto",
    coding: CodingOption = "analog",
    samples: Annotated[int, typer.Option("--samples", min=1, metavar="N", help="Use only the first N samples.")] = 64,
    batch_size: BatchSizeOption = 8,
    device: DeviceOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all trials to this file.")
    ] = None,
) -> None:
    """Try settings that all end with the same codes, and show which are the best: the frontier of steps and cost.

    Ctrl-C ends the search and shows what it has found so far.

    [bold]Example[/]

    [green]spikezip tune ./snn --data train.npz --samples 64 --steps 32[/]

    [green]spikezip tune ./snn --data train.tsv --budget 2e-4 --max-spikes 1 --staggers 0,0.1,0.2,0.5[/]
    """
    if steps is not None and budget is not None:
        raise ConfigError("--steps and --budget: give one of them, the other is what is searched for")
    delays = read_numbers("staggers", staggers)
    largest = read_wholes("max-spikes", max_spikes)
    share, where = read_share(agreement), read_device(device)
    found = samples_of.read(data)
    network = load(snn, "snn").to(where)
    total = min(len(found), samples)
    batches = list(samples_of.batches(found, network, locate(snn), batch_size, total))
    kept: list[Tuning] = []
    stopped = False
    try:
        with progress("tuning", total * len({(k, n) for k in delays for n in largest})) as done:
            search(
                network,
                batches,
                delays,
                largest,
                cost=cost,
                agreement=share,
                engine=engine,
                coding=coding,
                progress=done,
                watch=kept.append,
            )
    except KeyboardInterrupt:
        if not kept:
            raise
        stopped = True
    tuning = kept[-1]
    best = None if steps is None and budget is None else tuning.best(steps, budget)
    if json_file is not None:
        asked = {"steps": steps, "budget": budget}
        chosen = {"frontier": [t.to_json() for t in tuning.frontier()], "best": best and best.to_json()}
        numbers = {"snn": snn, "data": data, **asked, **tuning.to_json(), **chosen}
        json_file.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    _show(tuning, best, steps, budget)
    if stopped:
        raise typer.Exit(130)


def read_numbers(option: str, text: str) -> list[float]:
    """Numbers with commas between them.

    Example:
        >>> read_numbers("staggers", "0,0.5")
        [0.0, 0.5]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--{option} {text}: write numbers with commas between them, such as 0,0.5,1") from None


def read_wholes(option: str, text: str) -> list[int]:
    """Whole numbers with commas between them.

    Example:
        >>> read_wholes("max-spikes", "1,4")
        [1, 4]
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--{option} {text}: write whole numbers with commas between them, such as 1,2,4") from None


def read_share(text: str) -> float | None:
    """A share of answers, or none for equilibrium.

    Example:
        >>> read_share("0.99"), read_share("equilibrium")
        (0.99, None)
    """
    if text == "equilibrium":
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--agreement {text}: a share such as 0.99, or 'equilibrium'") from None


def _show(tuning: Tuning, best: Trial | None, steps: int | None, budget: float | None) -> None:
    frontier = tuning.frontier()
    known: dict[str, list[str | None]] = {
        "energy per inference": [None if t.energy_j is None else quantity(t.energy_j, "J") for t in frontier],
        "spikes per neuron": [f"{t.spikes:.3f}" for t in frontier],
        "agreement": [_percent(t.agreement) for t in frontier],
        "accuracy": [_percent(t.accuracy) for t in frontier],
        "max T_eq": [str(t.t_eq) for t in frontier],
    }
    columns = {name: values for name, values in known.items() if None not in values}
    table = Table("stagger", "largest spike", "steps T", *columns, title="frontier", title_justify="left")
    for column in table.columns:
        column.justify = "right"
    for row, trial in enumerate(frontier):
        shown = [values[row] for values in columns.values()]
        style = "bold green" if trial is best else None
        table.add_row(f"{trial.stagger:g}", str(trial.max_spike), str(trial.steps), *shown, style=style)
    out().print(table)
    final = f"T is the step from which on {tuning.agreement:.4g} of the answers are final" if tuning.agreement else ""
    tried = f"{len(tuning.trials)} of {tuning.planned}" if len(tuning.trials) < tuning.planned else str(tuning.planned)
    say(f"{tried} settings tried on {tuning.samples:,} samples; {final or 'T is the largest T_eq'}")
    if best is not None:
        say(f"best: stagger {best.stagger:g}, largest spike {best.max_spike}")
    elif steps is not None:
        say(f"no setting gets there within {steps} steps; the fastest takes {frontier[0].steps}")
    elif budget is not None:
        least = tuning.cost_of(frontier[-1])
        cheapest = quantity(least, "J") if tuning.cost == "energy" else f"{least:.3f} spikes per neuron"
        say(f"no setting stays within that budget; the cheapest takes {cheapest}")


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"
