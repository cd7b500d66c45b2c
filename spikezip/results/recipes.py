"""Recipes: those of the repository, and in what a run differed from the one that it names."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spikezip.errors import ConfigError

# What does not change what is computed, or names a folder of the machine.
_FREE = (
    *("name", "note", "output", "seed", "workers", "expected", "model.path", "data.source"),
    "stages.verify.engine",  # all engines give the same spikes
)
_TRAINED = ("finetune", "relu", "qat")
_STAGES = ("previous", *_TRAINED)  # teachers that a recipe makes itself
_MANY = 4  # differences that are named one by one


def load(path: Path) -> Any:
    """A recipe; it needs what training needs."""
    try:
        from spikezip.training.recipe import load_recipe
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("spikezip"):
            raise
        raise ConfigError(f"reading recipes needs {error.name}: pip install 'spikezip[train]'") from None
    return load_recipe(path)


def load_all(folder: Path) -> dict[str, Any]:
    """The recipes of a folder, by the name of their file."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; --recipes names the one with the recipes")
    return {path.stem: load(path) for path in sorted(folder.glob("*.yaml"))}


def portable(recipe: Any) -> Any:
    """The recipe without folders of the machine: `--set` gives them anew. Names on the Hub stay."""
    return replace(
        recipe,
        model=replace(recipe.model, path=None) if _local(recipe.model.path) else recipe.model,
        data=replace(recipe.data, source=None),
        output=None,
        stages=replace(recipe.stages, **{name: _taught(getattr(recipe.stages, name)) for name in _TRAINED}),
    )


def _taught(stage: Any) -> Any:
    """A stage whose teacher, if it is a folder, is one that is still to be named."""
    if stage is None or stage.distill is None or not _local(stage.distill.teacher):
        return stage
    return replace(stage, distill=replace(stage.distill, teacher="FOLDER"))


def _local(path: str | None) -> bool:
    """Whether this is a folder here, and no name on the Hub."""
    return path is not None and path not in _STAGES and (path[:1] in "./~\\" or ":" in path or Path(path).exists())


def settings(recipe: Any) -> dict[str, Any]:
    """What a recipe computes, as dotted keys; `stages.` is left out, as in `--set`.

    Where the network to start from lies is not part of it, nor where a teacher does that is no stage of the recipe.
    """
    flat = {key: value for key, value in _flat(recipe.to_json()).items() if not key.startswith(_FREE)}
    other = {key: "FOLDER" for key, value in flat.items() if key.endswith(".teacher") and value not in _STAGES}
    return {key.removeprefix("stages."): value for key, value in (flat | other).items()}


def changed(run: Any, recipe: Any) -> tuple[str, ...]:
    """What a run set otherwise than a recipe, as `key=value`.

    Example:
        >>> from spikezip.training.recipe import QuantizeStage, Recipe, Stages
        >>> one, other = (Recipe("a", stages=Stages(quantize=QuantizeStage(levels=n))) for n in (16, 32))
        >>> changed(one, other), changed(one, one)
        (('quantize.levels=16',), ())
    """
    old, new = settings(recipe), settings(run)
    found = [key for key in new if key not in old or old[key] != new[key]]
    # A group that is null on one side has no keys there: its own name says it.
    gone = [key for key in old if key not in new and not any(k.startswith(f"{key}.") for k in new)]
    found += [key for key in gone if not any(key.startswith(f"{k}.") for k in new)]
    texts = tuple(f"{key}={_text(new.get(key))}" for key in found)
    return texts if len(texts) <= _MANY else (*texts[: _MANY - 1], f"and {len(texts) - _MANY + 1} more settings")


def written_down(run: Any, file: Path) -> Any:
    """The recipe of a file, for a run that was started from another with `--set`, and computed the same.

    Raises:
        ConfigError: it did not; the message names what differs.
    """
    recipe = load(file)
    found = changed(run, recipe)
    if found:
        raise ConfigError(f"the run is none of {file}: it had {', '.join(found)}")
    return recipe


def _flat(group: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in group.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
