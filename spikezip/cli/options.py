"""Options that several verbs share, and how their text is read."""

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated

import torch
import typer

from spikezip.engines import CODINGS, ENGINES, Steps
from spikezip.engines.loop import AUTO
from spikezip.errors import ConfigError
from spikezip.quant.config import SiteConfig


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


def delay(value: float) -> float:
    """A check for the value of `--stagger`: a delay per stage, in steps.

    Example:
        >>> delay(0.25)
        0.25
    """
    if not 0 <= value < math.inf:
        raise ConfigError(f"--stagger {value:g}: a number of steps from 0 is needed, such as 0.5")
    return value


DataOption = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Samples: .txt (a sentence per line), .tsv or .csv (a text column, maybe 'label'), "
        ".npz (images 'x', maybe labels 'y'), a folder of images (with labels: a folder for each "
        "class), or NAME:SOURCE#SPLIT, a dataset such as "
        "sst2:FOLDER#train; without # it is its test split.",
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        callback=one_of("engine", (*ENGINES, AUTO)),
        metavar="|".join((*ENGINES, AUTO)),
        help="'folded' takes many steps at once, 'spike' goes step by step, 'event' works only for what fires (CPU), "
        "'auto' takes the fastest; the spikes are the same.",
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
StaggerOption = Annotated[
    float,
    typer.Option(
        "--stagger",
        callback=delay,
        metavar="K",
        help="Hold stage n back for K·n steps: fewer spikes, more steps, the same codes; 0 is the paper.",
    ),
]
SamplesOption = Annotated[
    int | None, typer.Option("--samples", min=1, metavar="N", show_default="all", help="Use only the first N samples.")
]
BatchSizeOption = Annotated[
    int, typer.Option("--batch-size", min=1, metavar="N", help="Samples that go through together.")
]
DeviceOption = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", show_default="a GPU if there is one", help="cpu, cuda, cuda:1, …"),
]


def bits(option: str, text: str) -> int | None:
    """Bits of a grid, or none for floats.

    Example:
        >>> bits("weight-bits", "8"), bits("weight-bits", "none")
        (8, None)
    """
    if text.lower() == "none":
        return None
    if not text.isdecimal():
        raise ConfigError(f"--{option} {text}: choose 8, 16, or none for floats")
    return int(text)


def site_settings(levels: Iterable[str], per_channel: Iterable[str] = ()) -> dict[str, SiteConfig]:
    """Settings by site pattern, from the texts of `--site` and `--per-channel`. One pattern may be given to both.

    Example:
        >>> site_settings(["*.p=64"])
        {'*.p': SiteConfig(levels=64, signed=None, lo=None, hi=None, per_channel=None)}
        >>> site_settings(["*.LayerNorm=64"], ["*.LayerNorm"])
        {'*.LayerNorm': SiteConfig(levels=64, signed=None, lo=None, hi=None, per_channel=True)}
    """
    sites: dict[str, SiteConfig] = {}
    for text in levels:
        pattern, equals, number = text.rpartition("=")
        if not (equals and pattern and number.isdecimal()):
            raise ConfigError(f"--site {text}: write PATTERN=LEVELS, such as '*.p=64'")
        sites[pattern] = SiteConfig(levels=int(number))
    for pattern in per_channel:
        sites[pattern] = replace(sites.get(pattern, SiteConfig()), per_channel=True)
    return sites


def check_overlap(sites: dict[str, SiteConfig], names: Iterable[str]) -> None:
    """A site takes all its settings from one pattern: refuse that it loses its levels, or its scales, to another.

    Example:
        >>> check_overlap(site_settings(["a.*=64"], ["*.b"]), ["a.b"])
        Traceback (most recent call last):
            ...
        spikezip.errors.ConfigError: site 'a.b' is named by --site 'a.*' and by --per-channel '*.b', but takes its ...
    """
    for name in names:
        matching = [pattern for pattern in sites if fnmatchcase(name, pattern)]
        with_levels = [pattern for pattern in matching if sites[pattern].levels is not None]
        by_channel = [pattern for pattern in matching if sites[pattern].per_channel]
        wins = matching[-1] if matching else ""
        if with_levels and by_channel and not (wins in with_levels and wins in by_channel):
            raise ConfigError(
                f"site {name!r} is named by --site {with_levels[-1]!r} and by --per-channel {by_channel[-1]!r}, but "
                "takes its settings from one pattern: give both options the same one"
            )


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


def device(name: str | None) -> torch.device:
    """The device asked for; else this process's GPU, else the CPU.

    Example:
        >>> device("cpu")
        device(type='cpu')
    """
    if name is None:
        number = int(os.environ.get("LOCAL_RANK", "0"))
        return torch.device("cuda", number) if torch.cuda.is_available() else torch.device("cpu")
    try:
        found = torch.device(name)
        torch.empty(0, device=found)
    # In this order: a name that is none, a torch that was built without CUDA, a backend that is not there.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"--device {name}: {str(error).splitlines()[0]}") from None
    return found
