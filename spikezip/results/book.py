"""What tables are made from: the results, the recipes of the repository, and where the page will lie."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from spikezip.results import recipes
from spikezip.results.folder import Results
from spikezip.results.groups import Group, grouped, once_more


@dataclass(frozen=True)
class Book:
    """Args:
    results: what was measured.
    recipes_folder: recipes that have no run yet have a row, too.
    page: the file that will be written: links are seen from there.
    """

    results: Results
    recipes_folder: Path
    page: Path

    @cached_property
    def recipes(self) -> dict[str, Any]:
        return recipes.load_all(self.recipes_folder)

    @cached_property
    def groups(self) -> list[Group]:
        return grouped(self.results.runs, self.recipes)

    @cached_property
    def again(self) -> list[Group]:
        return once_more(self.results.again, self.results.runs, self.recipes)

    def link(self, target: Path) -> str:
        """The way from the page to a file."""
        return Path(os.path.relpath(target, self.page.parent)).as_posix()

    def recipe_link(self, name: str, runs: Group | None = None) -> str:
        """A recipe with a link to it; of one that is not in the repository, to the copy beside the run."""
        target = self.recipes_folder / f"{name}.yaml"
        if name not in self.recipes and runs is not None:
            target = runs.first.folder / "recipe.yaml"
        changed = "".join(f", `{text}`" if "=" in text else f", {text}" for text in (runs.changed if runs else ()))
        return f"[{name}]({self.link(target)}){changed}"
