"""`spikezip train`: a recipe, from a float model to a certified spiking network."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from spikezip.cli.screen import Rate, err, out, say, show_error
from spikezip.errors import ConfigError


def train(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe, such as recipes/sst2-roberta.yaml.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", show_default=False)] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change settings of the recipe: model=…, data=…, output=…, qat.epochs=3."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run in the output folder stopped.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Use the CPU even where there is a GPU.")] = False,
) -> None:
    """Train a quantized network as a recipe says, convert it, and certify that the spiking network is equal.

    Stages: [bold]finetune[/] and [bold]relu[/] (float), [bold]quantize[/], [bold]qat[/], [bold]convert[/],
    [bold]verify[/].
    Ctrl-C saves and stops; --resume goes on from there, bit for bit.

    [bold]Example[/]

    [green]spikezip train recipes/sst2-roberta.yaml --set model=./roberta data=./sst2 output=runs/sst2[/]

    [green]accelerate launch --num_processes 4 -m spikezip train recipes/imagenet-vit-s.yaml --set data=./imagenet[/]
    """
    try:
        from spikezip.training import InterruptedRunError, load_recipe
        from spikezip.training import train as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("spikezip"):
            raise
        raise ConfigError(f"training needs {error.name}: pip install 'spikezip[train]'") from None
    chosen = load_recipe(recipe, [*(settings or ()), *(more or ())])
    try:
        with _bars() as watch:
            result = run(None, chosen, resume=resume, cpu=cpu, progress=watch)
    except InterruptedRunError as stopped:
        show_error(str(stopped))
        raise typer.Exit(130) from None  # what a shell expects after Ctrl-C
    if result.folder is not None and _is_first_process():
        _show(result, chosen)


def _is_first_process() -> bool:
    from accelerate import PartialState

    return bool(PartialState().is_main_process)


@contextmanager
def _bars() -> Iterator[Any]:
    """A bar per stage in a terminal; elsewhere a line whenever there are new numbers."""
    console = err()
    bar = Bar(
        TextColumn("{task.description:<9}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}"),
        console=console,
        disable=not console.is_terminal,
    )
    tasks: dict[str, Any] = {}
    said: dict[str, str] = {}

    def watch(progress: Any) -> None:
        numbers = "  ".join(_number(name, value) for name, value in progress.numbers.items())
        if progress.stage not in tasks:
            tasks[progress.stage] = bar.add_task(progress.stage, total=progress.total, numbers="")
        bar.update(tasks[progress.stage], completed=progress.done, numbers=numbers)
        last = progress.done == progress.total
        if not console.is_terminal and (numbers != said.get(progress.stage, "") or (last and not numbers)):
            said[progress.stage] = numbers
            text = f"{progress.stage} {progress.done}/{progress.total}  {numbers}".rstrip()
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    with bar:
        yield watch


def _number(name: str, value: float) -> str:
    return f"{name} {value:.4f}" if name == "loss" else f"{name} {100 * value:.2f} %"


def _show(result: Any, recipe: Any) -> None:
    table = Table.grid(padding=(0, 2))
    names = {"finetune": "float", "relu": "float, ReLU", "quantize": "calibrated only", "qann": "QANN"}
    for stage, title in names.items():
        if stage in result.metrics:
            table.add_row(title, f"{100 * result.metrics[stage]['accuracy']:.2f} %")
    snn = result.metrics.get("snn")
    if snn:
        for steps, accuracy in snn["accuracy_at"].items():
            table.add_row(f"SNN at T = {steps}", f"{100 * accuracy:.2f} %")
        table.add_row(
            "SNN at equilibrium",
            f"{100 * snn['accuracy']:.2f} % of {snn['samples']:,}, T_eq median {snn['t_eq']['median']}",
        )
        table.add_row("certificate", f"{'exact' if snn['exact'] else 'NOT exact'}, {snn['samples']:,} samples")
    taken = [result.metrics[stage] for stage in ("finetune", "relu", "qat") if stage in result.metrics]
    if taken and all("joules" in stage for stage in taken):
        hours = sum(stage["device_seconds"] for stage in taken) / 3600
        table.add_row(
            "training took", f"{hours:.2f} GPU hours, {sum(stage['joules'] for stage in taken) / 3.6e6:.3f} kWh"
        )
    for expected in recipe.expected:
        table.add_row(f"expected: {expected.what}", f"{expected.accuracy:.2f} % ({expected.source})")
    out().print(table, highlight=False)
    networks = [f"{name}/" for name in ("qann", "snn") if (result.folder / name).is_dir()]
    found = [*networks, "results.json", "metrics.jsonl", "recipe.yaml"]
    say(f"everything is in {result.folder}: {', '.join(found)}")
