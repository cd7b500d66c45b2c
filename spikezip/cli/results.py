"""`spikezip results`: the page of results, from the metrics of runs and measurements."""

from pathlib import Path
from typing import Annotated

import typer

from spikezip.cli.screen import say, show_error
from spikezip.errors import ConfigError

IntoOption = Annotated[Path, typer.Option("--into", metavar="FOLDER", help="The folder of results.")]

results = typer.Typer(
    name="results",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""Make the page of results from metrics files: no figure on it is typed by hand.

    [bold]add[/] takes the metrics of runs and measurements into a folder; [bold]build[/] makes the page from it.

    [bold]Example[/]

    [green]spikezip results add runs/sst2[/]

    [green]spikezip results build[/]
    """,
)


@results.command()
def add(
    what: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|FILE…",
            help="Folders of `spikezip train`, files of `spikezip measure --json` or `spikezip attention --json`.",
        ),
    ],
    into: IntoOption = Path("results"),
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="TEXT", show_default="that of the recipe or the document", help="What to call it."
        ),
    ] = None,
    tried: Annotated[
        bool, typer.Option("--tried", help="Given up for a better run: figures for sentences, no row in a table.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="A recipe and seed that has a run, once more: only its cost and certificate count."
        ),
    ] = False,
    over: Annotated[bool, typer.Option("--over", help="Write over what has this name.")] = False,
    recipe: Annotated[
        Path | None,
        typer.Option(
            "--recipe",
            metavar="FILE",
            show_default="that of the run",
            help="The recipe that says what a run computed which was set by hand from another.",
        ),
    ] = None,
) -> None:
    """Take the metrics of finished runs, measurements, or documents of attention, into the folder of results.

    Of a run these are results.json, its certificate, its recipe and the versions. Paths of this machine are taken out.
    A folder that is not a finished, certified run is refused.

    [bold]Example[/]

    [green]spikezip results add runs/sst2 runs/sst2-seed1[/]

    [green]spikezip results add measured.json --name sst2-minilm[/]
    """
    from spikezip.results import add_file, add_run
    from spikezip.results.adding import AGAIN, RUNS, TRIED

    if tried and again:
        raise ConfigError("--tried and --again: a run is either given up, or shown for its cost; choose one")
    kind = TRIED if tried else AGAIN if again else RUNS
    if recipe is not None and not recipe.is_file():
        raise ConfigError(f"--recipe {recipe} is not there")
    if name is not None and len(what) > 1:
        raise ConfigError(f"--name {name}: one name cannot serve {len(what)} things; add them one by one")
    for one in what:
        if not one.exists():
            raise ConfigError(f"{one} is not there")
        for option, given in (("--tried", tried), ("--again", again), ("--recipe", recipe)):
            if given and one.is_file():
                raise ConfigError(f"{option} is for runs; {one} is a file")
        done = add_file(one, into, name, over=over) if one.is_file() else None
        say(f"{one} → {done or add_run(one, into, name, kind=kind, over=over, recipe=recipe)}")


@results.command()
def build(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The folder of results.")] = Path("results"),
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page; pictures lie beside it.")] = Path(
        "docs/results.md"
    ),
    recipes: Annotated[
        Path, typer.Option("--recipes", metavar="FOLDER", help="Recipes; those without a run have a row, too.")
    ] = Path("recipes"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 if the page is not what the files give.")
    ] = False,
) -> None:
    """Make the page: the prose of FOLDER/page.md, with figures, tables and pictures from the files beside it.

    A directive that is not known, a file or a key that is missing, and a figure that was typed by hand are errors that
    name the line.

    [bold]Example[/]

    [green]spikezip results build results/ --out docs/results.md[/]

    [green]spikezip results build --check[/]
    """
    from spikezip.results import make

    page = make(folder, out, recipes)
    if not check:
        page.write()
        say(f"{out}: {len(page.text.splitlines())} lines, {len(page.pictures)} pictures")
        return
    differences = page.differences()
    for difference in differences:
        show_error(difference)
    if differences:
        raise typer.Exit(1)
    say(f"{out} is what the files in {folder} give")
