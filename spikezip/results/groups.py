"""Runs that belong together: the same settings, other seeds."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from spikezip.errors import ConfigError
from spikezip.results import recipes
from spikezip.results.folder import Run

LANGUAGE = {
    "mr": "MR",
    "sst2": "SST-2",
    "subj": "Subj",
    "sst5": "SST-5",
    "chnsenticorp": "ChnSenti",
    "waimai": "Waimai",
}
VISION = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
    "cifar10-dvs": "CIFAR10-DVS",
    "events": "DVS128 recordings",
    "fashion-mnist": "Fashion-MNIST",
    "mnist": "MNIST",
}
TITLES = LANGUAGE | VISION


@dataclass(frozen=True)
class Group:
    """Runs of one recipe with the same settings, one for each seed.

    Attributes:
        recipe: its name.
        runs: in the order of their seeds.
        changed: what they set otherwise than the recipe of this name in the repository.
    """

    recipe: str
    runs: tuple[Run, ...]
    changed: tuple[str, ...] = ()

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def data(self) -> str:
        return str(self.first.results["data"]["name"])

    @property
    def levels(self) -> int:
        return int(self.first.certificate.settings["quantization"]["levels"])

    @property
    def parameters(self) -> int:
        return int(self.first.metrics["qann"]["parameters"])

    @property
    def network(self) -> str:
        """What the note of the recipe calls it: `MiniLM on SST-2, 32 levels` is about MiniLM."""
        name, on, _ = str(self.first.recipe.note).partition(" on ")
        return name.rstrip(",") if on else self.recipe

    def each(self, read: Callable[[Run], float | None]) -> list[float | None]:
        return [read(run) for run in self.runs]

    def stage(self, *names: str) -> list[float | None]:
        """The accuracy after the first of these stages that a run has."""

        def read(run: Run) -> float | None:
            return next((run.metrics[name].get("accuracy") for name in names if name in run.metrics), None)

        return self.each(read)


def grouped(runs: Mapping[str, Run], known: Mapping[str, Any]) -> list[Group]:
    """All runs in groups, by data set and name.

    Args:
        runs: by name.
        known: the recipes of the repository, by name.
    """
    found: dict[str, list[Run]] = {}
    for run in runs.values():
        if run.results["data"]["name"] not in TITLES:
            raise ConfigError(
                f"{run.folder}: no table shows the data {run.results['data']['name']!r}; those of {', '.join(TITLES)} "
                "are shown"
            )
        found.setdefault(_settings(run), []).append(run)
    return sorted((_group(members, known) for members in found.values()), key=place)


def once_more(runs: Mapping[str, Run], first: Mapping[str, Run], known: Mapping[str, Any]) -> list[Group]:
    """Runs that repeat one of the `first`, settings and seed: a group of its own for each, so that none is a mean."""
    there = {(_settings(run), run.results["seed"]) for run in first.values()}
    for run in runs.values():
        if (_settings(run), run.results["seed"]) not in there:
            raise ConfigError(
                f"{run.folder} repeats no run: runs/ holds none of {run.results['recipe']} with its settings and the "
                f"seed {run.results['seed']}; add it there, without --again"
            )
    return sorted((_group([run], known) for run in runs.values()), key=place)


def _settings(run: Run) -> str:
    return json.dumps([run.results["recipe"], recipes.settings(run.recipe)], default=str)


def _group(runs: list[Run], known: Mapping[str, Any]) -> Group:
    runs = sorted(runs, key=lambda run: (run.results["seed"], run.name))
    for one, next_one in pairwise(runs):
        if one.results["seed"] == next_one.results["seed"]:
            raise ConfigError(
                f"{one.folder} and {next_one.folder} are runs of one recipe with the same settings and the seed "
                f"{one.results['seed']}: remove one of them"
            )
    recipe = str(runs[0].results["recipe"])
    changed = recipes.changed(runs[0].recipe, known[recipe]) if recipe in known else ()
    return Group(recipe, tuple(runs), changed)


def place(group: Group) -> tuple[int, str, int, str]:
    """Where it stands in a table: by data set and name."""
    return [*TITLES].index(group.data), group.recipe, group.levels, group.first.name
