"""Take metrics into the folder of results: of a finished run, of a measurement, or where a network looks."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spikezip.errors import ConfigError, InputError
from spikezip.measure import document
from spikezip.measure.certificate import Certificate
from spikezip.measure.document import Measurement
from spikezip.results import recipes
from spikezip.results.scrub import scrub
from spikezip.show import attention_document
from spikezip.show.attention_document import AttentionDocument

RUNS, AGAIN, TRIED, MEASURED, ATTENTION = "runs", "again", "tried", "measured", "attention"
RESULTS, CERTIFICATE, RECIPE, VERSIONS = "results.json", "certificate.json", "recipe.yaml", "versions.json"


def add_run(
    run: str | Path,
    into: str | Path,
    name: str | None = None,
    *,
    kind: str = RUNS,
    over: bool = False,
    recipe: str | Path | None = None,
) -> Path:
    """Copy the metrics of a finished run: results, certificate, recipe and versions, without paths of the machine.

    Args:
        run: the folder that `spikezip train` wrote.
        into: the folder of results.
        name: what to call it; else the name of its recipe, with the seed if that is not 0.
        kind: `RUNS`; or `AGAIN`, a recipe and seed that has a run already, once more: rows for what it cost and for its
            certificate; or `TRIED`, given up for a better one: figures for sentences, but a row in no table.
        over: write over a run of that name.
        recipe: a file that says what the run computed, where that was set by hand from another recipe: the run then
            goes by its name. One that says otherwise is refused.

    Example:
        >>> add_run("no-such-run", "results")
        Traceback (most recent call last):
        spikezip.errors.ConfigError: no-such-run is not the folder of a run: it holds no recipe.yaml
    """
    run = Path(run)
    results, certificate = _finished(run)
    settings = recipes.portable(recipes.load(run / RECIPE))
    if recipe is not None:
        known = recipes.written_down(settings, Path(recipe))
        settings = replace(settings, name=known.name, note=known.note)
        results |= {"recipe": known.name, "note": known.note}
    name = name or results["recipe"] + (f"-seed{results['seed']}" if results["seed"] else "")
    folder = _free(Path(into) / kind, name, over)
    folder.mkdir(parents=True, exist_ok=True)
    here = Path.cwd()
    _write(folder / RESULTS, scrub(results, here))
    _write(folder / CERTIFICATE, scrub(json.loads(certificate.to_json()), here))
    _write(folder / VERSIONS, scrub(_read(run / VERSIONS), here))
    (folder / RECIPE).write_text(settings.to_yaml(), encoding="utf-8")
    return folder


def add_measurement(file: str | Path, into: str | Path, name: str | None = None, *, over: bool = False) -> Path:
    """Copy what `spikezip measure --json` wrote, without paths of the machine.

    Args:
        file: the JSON document.
        into: the folder of results.
        name: what to call it, as a file and in tables; else the name that it has.
        over: write over a measurement of that name.
    """
    measurement = Measurement.load(file)
    name = name or measurement.name
    path = _free(Path(into) / MEASURED, f"{name}.json", over)
    plain = scrub(replace(measurement, name=name).to_json(), Path.cwd())
    return Measurement.from_json(plain).save(path)


def add_attention(file: str | Path, into: str | Path, name: str | None = None, *, over: bool = False) -> Path:
    """Copy what `spikezip attention --json` wrote, without paths of the machine; arguments as for a measurement."""
    attention = AttentionDocument.load(file)
    name = name or attention.name
    path = _free(Path(into) / ATTENTION, f"{name}.json", over)
    plain = replace(attention, name=name).to_json()
    samples = plain.pop("samples")  # pictures in base64 and words of texts may look like paths, and are none
    return AttentionDocument.from_json(scrub(plain, Path.cwd()) | {"samples": samples}).save(path)


def add_file(file: str | Path, into: str | Path, name: str | None = None, *, over: bool = False) -> Path:
    """Copy a document that `--json` wrote, by the format that it names: a measurement, or where a network looks.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        ...     _ = file.write('{"format": "spikezip-exits"}')
        ...     file.flush()
        ...     add_file(file.name, "results")
        Traceback (most recent call last):
        spikezip.errors.InputError: ...json cannot be added: its format is 'spikezip-exits', known are ...
    """
    known: dict[str, Callable[..., Path]] = {document.FORMAT: add_measurement, attention_document.FORMAT: add_attention}
    form = _read(Path(file)).get("format")
    if form not in known:
        raise InputError(
            f"{file} cannot be added: its format is {form!r}, known are {', '.join(known)} "
            "(`spikezip measure --json`, `spikezip attention --json`)"
        )
    return known[form](file, into, name, over=over)


def _finished(run: Path) -> tuple[dict[str, Any], Certificate]:
    """Results and certificate of a run that has both, and whose certificate is that of the run."""
    if not (run / RECIPE).is_file():
        raise ConfigError(f"{run} is not the folder of a run: it holds no {RECIPE}")
    if not (run / RESULTS).is_file():
        raise ConfigError(f"{run} is not finished: it holds no {RESULTS}; `spikezip train … --resume` goes on with it")
    if not (run / VERSIONS).is_file():
        raise ConfigError(f"{run} holds no {VERSIONS}: a part of the run is missing")
    results = _read(run / RESULTS)
    metrics = results.get("metrics", {})
    found = [path for path in (run / "snn" / CERTIFICATE, run / CERTIFICATE) if path.is_file()]
    if "qann" not in metrics or "snn" not in metrics or not found:
        raise ConfigError(f"{run} has no certificate: its recipe needs the stages quantize, convert and verify")
    certificate, said = Certificate.from_json(found[0].read_text(encoding="utf-8")), metrics["snn"]
    same = (certificate.exact, certificate.samples, certificate.t_eq) == (said["exact"], said["samples"], said["t_eq"])
    if not same:
        raise ConfigError(
            f"{found[0]} is not the certificate of this run ({certificate.samples:,} samples; the run had "
            f"{said['samples']:,}, or another T_eq): was `verify` used on the folder since? Put the run's own back"
        )
    return results, certificate


def _free(folder: Path, name: str, over: bool) -> Path:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"{name!r} cannot be the name of a file: letters, digits, '.', '-' and '_' can; use --name")
    if (folder / name).exists() and not over:
        raise ConfigError(f"{folder / name} is there already: choose another --name, or replace it with --over")
    return folder / name


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected a group of values")
    return found


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
