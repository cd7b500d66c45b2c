"""The folder of a run: what was asked, with what, what came of it; and what is done already when a run goes on.

recipe.yaml      everything that the run was told, defaults included
versions.json    of the software, and the machine
metrics.jsonl    a line per log, all stages
<stage>/         checkpoints of its training, its network (model/), and done.json once it is finished
qann/  snn/      the results, with certificate.json
results.json     the figures
"""

import json
import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import get_last_checkpoint

from spikezip.errors import ConfigError
from spikezip.training.callbacks import write_line
from spikezip.training.recipe import Recipe, load_recipe
from spikezip.version import __version__

RECIPE, VERSIONS, METRICS, RESULTS, DONE = "recipe.yaml", "versions.json", "metrics.jsonl", "results.json", "done.json"
# Settings that may differ when a run goes on: they do not change what is computed.
FREE = ("output", "workers", "note", "expected")


class RunFolder:
    """Opened before any work: a folder that holds something else, or another run, is refused."""

    def __init__(self, path: Path, recipe: Recipe, *, resume: bool, writes: bool) -> None:
        self.path, self.writes = path, writes
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file; a run writes a folder")
        found = (path / RECIPE).is_file()
        if not found and path.is_dir() and any(path.iterdir()):
            raise ConfigError(f"{path} holds something that is not a run; choose another output")
        begun = found and (path / METRICS).is_file()  # a run that failed before its first figures is begun anew
        if begun and not resume:
            raise ConfigError(f"{path} holds a run already; resume it (--resume), or choose another output")
        if begun:
            _compare(load_recipe(path / RECIPE), recipe, path)
        elif writes:
            path.mkdir(parents=True, exist_ok=True)
            (path / RECIPE).write_text(recipe.to_yaml(), encoding="utf-8")
        if writes:
            write_json(path / VERSIONS, versions())

    def stage(self, name: str) -> Path:
        return self.path / name

    def done(self, stage: str) -> dict[str, Any] | None:
        """The metrics of a stage that is finished."""
        file = self.stage(stage) / DONE
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None

    def finish(self, stage: str, metrics: Mapping[str, Any]) -> None:
        """Mark a stage as finished. Its checkpoints but the best stay no longer: the network is in model/."""
        if not self.writes:
            return
        write_json(self.stage(stage) / DONE, metrics)
        write_line(self.path / METRICS, {"stage": stage, "done": True, **metrics})

    def checkpoint(self, stage: str) -> str | None:
        """The last checkpoint of a stage that is under way."""
        folder = self.stage(stage)
        found = get_last_checkpoint(str(folder)) if folder.is_dir() else None
        return None if found is None else str(found)

    def discard_checkpoints(self, stage: str, keep: str | None) -> None:
        for folder in self.stage(stage).glob("checkpoint-*"):
            if keep is None or folder.resolve() != Path(keep).resolve():
                shutil.rmtree(folder, ignore_errors=True)


def _compare(before: Recipe, now: Recipe, path: Path) -> None:
    old, new = flat(before.to_json()), flat(now.to_json())
    changed = sorted(
        key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key.split(".")[0] not in FREE
    )
    if changed:
        key = changed[0]
        raise ConfigError(
            f"{path} was begun with another recipe: {key} was {old.get(key)!r}, now it is {new.get(key)!r}; "
            "set it back, or choose another output"
        )


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys.

    Example:
        >>> flat({"data": {"name": "mr"}, "seed": 0})
        {'data.name': 'mr', 'seed': 0}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def versions() -> dict[str, Any]:
    """What the run ran on."""
    found: dict[str, Any] = {"spikezip": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "accelerate", "triton", "datasets", "kornia", "tonic"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return found


def write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
