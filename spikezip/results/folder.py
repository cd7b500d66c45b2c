"""The folder of results: metrics of runs and measurements, figures of others, and why an aim was missed.

runs/NAME/       results.json, certificate.json, recipe.yaml, versions.json of a run, from `spikezip results add`
again/NAME/      the same, of a recipe and seed that is in runs/ already: only its cost and certificate are shown
tried/NAME/      the same, of a run that was given up for a better one: for sentences, in no table
measured/*.json  what `spikezip measure --json` wrote
attention/*.json what `spikezip attention --json` wrote
other/*.json     figures from elsewhere in the repository
quoted.yaml      figures of others, each with its source
reasons.yaml     recipe → why its aim was missed
checkpoints.yaml run → measurement of its checkpoint: its row says what was measured there (`checkpoints.py`)
page.md          the page: prose with directives
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from spikezip.errors import CheckpointError, ConfigError, InputError
from spikezip.measure.certificate import Certificate
from spikezip.measure.document import Measurement
from spikezip.results import recipes
from spikezip.results.adding import AGAIN, ATTENTION, CERTIFICATE, MEASURED, RECIPE, RESULTS, RUNS, TRIED, VERSIONS
from spikezip.results.checkpoints import as_measured, certificate_of
from spikezip.results.lookup import find
from spikezip.show.attention_document import AttentionDocument

OTHER, QUOTED, REASONS, CHECKPOINTS, PAGE = "other", "quoted.yaml", "reasons.yaml", "checkpoints.yaml", "page.md"
# Without these there is no row in a table.
_NEEDED = (
    *("recipe", "seed", "data.name", "metrics.qann.accuracy", "metrics.qann.samples", "metrics.qann.parameters"),
    *("metrics.snn.accuracy", "metrics.snn.samples", "metrics.snn.t_eq.median", "metrics.snn.over_time"),
)


@dataclass(frozen=True)
class Run:
    """A finished run: figures, certificate, recipe. `checkpoint`: a measurement of its network, if that can be had."""

    name: str
    folder: Path
    results: dict[str, Any]
    certificate: Certificate
    recipe: Any
    checkpoint: Measurement | None = None

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """Those of QANN and SNN are what was measured from the checkpoint, if there is one."""
        return self.own if self.checkpoint is None else as_measured(self.own, self.checkpoint)

    @property
    def own(self) -> dict[str, Any]:
        """What the run itself had, on its device."""
        found: dict[str, Any] = self.results["metrics"]
        return found

    @property
    def device(self) -> str:
        return str(self.results["versions"]["device"])

    def curve(self, name: str) -> list[float]:
        """Accuracy or agreement at every step."""
        return [step[name] for step in self.metrics["snn"]["over_time"]]

    def at(self, name: str, step: int) -> float | None:
        """The same at one step. Past the last one it stays as it ended, if every sample had settled; else None."""
        if self.checkpoint is not None:
            return self.checkpoint.at(name, step)
        values = self.curve(name)
        if step > len(values) and self.certificate.unsettled:
            return None
        return values[min(step, len(values)) - 1]

    def document(self) -> dict[str, Any]:
        """Everything under one roof, for single figures."""
        return {
            **self.results,
            "metrics": self.metrics,
            "own": self.own,
            "certificate": json.loads(self.certificate.to_json()),
            "settings": self.recipe.to_json(),
        }


@dataclass(frozen=True)
class Results:
    """Everything that is in the folder, read and checked."""

    folder: Path
    runs: dict[str, Run]
    again: dict[str, Run]
    tried: dict[str, Run]
    measured: dict[str, Measurement]
    attention: dict[str, AttentionDocument]
    other: dict[str, dict[str, Any]]
    quoted: dict[str, Any]
    reasons: dict[str, str]

    @classmethod
    def read(cls, folder: str | Path) -> "Results":
        folder = Path(folder)
        if not (folder / PAGE).is_file():
            raise InputError(f"{folder} is not a folder of results: it holds no {PAGE}")
        measured = {path.stem: Measurement.load(path) for path in _files(folder / MEASURED)}
        return cls(
            folder=folder,
            runs=_with_checkpoints({path.name: _run(path) for path in _folders(folder / RUNS)}, measured, folder),
            again={path.name: _run(path) for path in _folders(folder / AGAIN)},
            tried={path.name: _run(path) for path in _folders(folder / TRIED)},
            measured=measured,
            attention={path.stem: AttentionDocument.load(path) for path in _files(folder / ATTENTION)},
            other={path.stem: _json(path) for path in _files(folder / OTHER)},
            quoted=_yaml(folder / QUOTED),
            reasons=_yaml(folder / REASONS),
        )

    def measured_with(self, *, integers: bool) -> dict[str, Measurement]:
        """Measurements of networks whose weights are integers; or of those with floats, which cannot be exact."""
        return {name: one for name, one in self.measured.items() if (one.model.weight_bits is not None) == integers}

    @cached_property
    def documents(self) -> dict[str, dict[str, Any]]:
        """What single figures are looked up in, by kind and name: `runs/NAME` and so on."""
        found: dict[str, dict[str, Any]] = {f"{RUNS}/{name}": run.document() for name, run in self.runs.items()}
        found |= {f"{AGAIN}/{name}": run.document() for name, run in self.again.items()}
        found |= {f"{TRIED}/{name}": run.document() for name, run in self.tried.items()}
        found |= {f"{MEASURED}/{name}": one.to_json() for name, one in self.measured.items()}
        found |= {f"{ATTENTION}/{name}": one.to_json() for name, one in self.attention.items()}
        found |= {f"{OTHER}/{name}": one for name, one in self.other.items()}
        return found | {f"quoted/{name}": part for name, part in self.quoted.items()}


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_dir())


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"), key=lambda path: path.stem)


def _run(folder: Path) -> Run:
    for name in (RESULTS, CERTIFICATE, RECIPE, VERSIONS):
        if not (folder / name).is_file():
            raise InputError(f"{folder} holds no {name}: `spikezip results add` copies all that is needed")
    results = _json(folder / RESULTS)
    for key in _NEEDED:
        find(results, key, str(folder / RESULTS))
    results.setdefault("versions", _json(folder / VERSIONS))
    try:
        certificate = Certificate.from_json((folder / CERTIFICATE).read_text(encoding="utf-8"))
    except (ValueError, CheckpointError) as error:
        raise InputError(f"{folder / CERTIFICATE}: {error}") from None
    return Run(folder.name, folder, results, certificate, recipes.load(folder / RECIPE))


def _with_checkpoints(runs: dict[str, Run], measured: Mapping[str, Measurement], folder: Path) -> dict[str, Run]:
    found = dict(runs)
    for name, word in _yaml(folder / CHECKPOINTS).items():
        for kind, known, wanted in ((RUNS, runs, name), (MEASURED, measured, word)):
            if wanted not in known:
                raise ConfigError(f"{CHECKPOINTS}, {name}: there is no {kind}/{wanted}; a line is RUN: MEASUREMENT")
        certificate_of(measured[word], runs[name].certificate, name)
        found[name] = replace(runs[name], checkpoint=measured[word])
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    return _group(found, path)


def _yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    return _group(found or {}, path)


def _group(found: Any, path: Path) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        raise InputError(f"{path}: expected a group of values")
    return dict(found)
