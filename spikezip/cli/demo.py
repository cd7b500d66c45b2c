"""`spikezip demo`: the whole way on something small."""

import typer

from spikezip.cli.screen import out


def demo() -> None:
    """Convert, verify and simulate a small trained network that comes with the package; nothing is downloaded.

    [bold]Example[/]

    [green]spikezip demo[/]
    """
    from spikezip.demo import run

    raise typer.Exit(run(out()))
