"""Single figures of the page: `runs/NAME/metrics.qann.accuracy`, `measured/NAME/spikes_per_neuron@16`."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from spikezip.errors import ConfigError
from spikezip.results.adding import AGAIN, RUNS, TRIED
from spikezip.results.folder import Results
from spikezip.results.lookup import find
from spikezip.results.numbers import number, written

SAMPLES = "samples"  # a format: so many samples, from a share
LAST = "last"
_OF_RUNS = (RUNS, AGAIN, TRIED)
_CURVES = ("accuracy", "agreement", "spikes_per_neuron", "firing_rate")


def value(results: Results, path: str) -> Any:
    """What stands at `KIND/NAME/KEY`; `KIND/NAME/CURVE@T` is a curve at a step, `@last` at its last."""
    kind, _, rest = path.partition("/")
    name, _, key = rest.partition("/")
    document = results.documents.get(f"{kind}/{name}")
    if document is None:
        raise ConfigError(f"there is no {kind}/{name}{_names(results, f'{kind}/{name}')}")
    if not key:
        raise ConfigError(f"{path}: a key is needed, such as {path.rstrip('/')}/metrics.qann.accuracy")
    at = re.fullmatch(rf"({'|'.join(_CURVES)})@(last|[1-9]\d*)", key)
    if at is None:
        return find(document, key, f"{kind}/{name}")
    return _at_step(results, kind, name, at[1], None if at[2] == LAST else int(at[2]))


def shown(results: Results, path: str, form: str) -> str:
    """The same, as text. The format `samples` turns a share into a number of samples."""
    found = value(results, path)
    return number(round(_checked(found, form) * _samples(results, path))) if form == SAMPLES else written(found, form)


def difference(results: Results, path: str, other: str, form: str) -> str:
    """How much the first is above the second."""
    if form not in ("points", SAMPLES, "number", "decimal"):
        raise ConfigError(f"a difference cannot be written as {form}; choose among points, samples, number, decimal")
    first, second = (_checked(value(results, one), form) for one in (path, other))
    if form != SAMPLES:
        return written(first - second, form)
    samples, same = _samples(results, path), _samples(results, other)
    if samples != same:
        raise ConfigError(f"{path} is of {samples:,} samples, {other} of {same:,}: they cannot be compared so")
    return number(round(first * samples) - round(second * same))


def total(results: Results, paths: Sequence[str], form: str) -> str:
    """The sum of several."""
    return written(sum(_checked(value(results, path), form) for path in paths), form)


def _at_step(results: Results, kind: str, name: str, curve: str, step: int | None) -> float:
    found: float | None
    if kind == "measured":
        one = results.measured[name]
        found = one.at(curve, step or one.steps)
    elif kind in _OF_RUNS and curve in ("accuracy", "agreement"):
        run = getattr(results, kind)[name]
        found = run.at(curve, step or len(run.curve(curve)))
    else:
        raise ConfigError(f"{kind}/{name} has no {curve} over time")
    if found is None:
        raise ConfigError(f"{kind}/{name}: {curve} is not known at step {step}")
    return found


def _samples(results: Results, path: str) -> int:
    """How many samples a share is of."""
    kind, name, key = path.split("/", 2)
    if kind == "measured":
        return results.measured[name].data.samples
    if kind not in _OF_RUNS:
        raise ConfigError(f"{path}: the number of samples is known for runs and measurements only")
    metrics = getattr(results, kind)[name].metrics
    return int(metrics["snn" if "@" in key or key.startswith("metrics.snn.") else "qann"]["samples"])


def _checked(found: Any, form: str) -> float:
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise ConfigError(f"{found!r} is no number, as {form} asks for")
    return found


def _names(results: Results, name: str) -> str:
    close = get_close_matches(name, results.documents, n=1)
    return f", did you mean {close[0]}?" if close else f"; there is {', '.join(results.documents) or 'nothing'}"
