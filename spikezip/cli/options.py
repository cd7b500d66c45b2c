"""Options that several verbs share, and how their text is read."""

from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from spikezip.errors import ConfigError
from spikezip.quant.config import SiteConfig
from spikezip.simulate.drive import CODINGS, ENGINES, Steps


def one_of(name: str, choices: Iterable[str]) -> Callable[[str], str]:
    """A check for an option's value, made before any model is loaded.

    Example:
        >>> one_of("coding", ["analog", "rate"])("rate")
        'rate'
    """
    known = tuple(choices)

    def check(value: str) -> str:
        if value not in known:
            raise ConfigError(f"--{name} {value}: choose one of {', '.join(known)}")
        return value

    return check


DataOption = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Samples: .txt (a sentence per line), .tsv or .csv (a text column, maybe 'label'), "
        ".npz (images 'x', maybe labels 'y'), or a folder of images.",
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        callback=one_of("engine", ENGINES),
        metavar="|".join(ENGINES),
        help="'folded' is fast, 'spike' goes step by step; the spikes are the same.",
    ),
]
CodingOption = Annotated[
    str,
    typer.Option(
        "--coding",
        callback=one_of("coding", CODINGS),
        metavar="|".join(CODINGS),
        help="Input there from the first step, or rising over the first steps.",
    ),
]
MaxSpikeOption = Annotated[
    int, typer.Option("--max-spike", min=1, metavar="N", help="Largest spike; 1 gives ternary spikes, more are graded.")
]
SamplesOption = Annotated[
    int | None, typer.Option("--samples", min=1, metavar="N", show_default="all", help="Use only the first N samples.")
]
BatchSizeOption = Annotated[
    int, typer.Option("--batch-size", min=1, metavar="N", help="Samples that go through together.")
]


def weight_bits(text: str) -> int | None:
    """Bits of the weights, or none for float weights.

    Example:
        >>> weight_bits("8"), weight_bits("none")
        (8, None)
    """
    if text.lower() == "none":
        return None
    if not text.isdecimal():
        raise ConfigError(f"--weight-bits {text}: choose 8, 16, or none for float weights")
    return int(text)


def site_levels(texts: Iterable[str]) -> dict[str, SiteConfig]:
    """Levels by site pattern.

    Example:
        >>> site_levels(["*.p=64"])
        {'*.p': SiteConfig(levels=64, signed=None, lo=None, hi=None, per_channel=False)}
    """
    sites = {}
    for text in texts:
        pattern, equals, levels = text.rpartition("=")
        if not (equals and pattern and levels.isdecimal()):
            raise ConfigError(f"--site {text}: write PATTERN=LEVELS, such as '*.p=64'")
        sites[pattern] = SiteConfig(levels=int(levels))
    return sites


def steps(text: str) -> Steps:
    """A number of steps, or until nothing fires.

    Example:
        >>> steps("64"), steps("equilibrium")
        (64, 'equilibrium')
    """
    if text == "equilibrium":
        return "equilibrium"
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"--steps {text}: a whole number from 1, or 'equilibrium'")
    return int(text)
