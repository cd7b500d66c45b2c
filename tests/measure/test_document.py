"""The document: what is refused, and that nothing is lost on the way to a file and back."""

import json
from pathlib import Path
from typing import Any

import measured
import pytest

from spikezip.errors import InputError
from spikezip.measure.document import Measurement
from spikezip.measure.energy import Energy
from spikezip.measure.measuring import measure
from spikezip.measure.rows import Operations


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    model, qann, snn = measured.networks()
    return measure(snn, measured.batches(2, 1), qann, float_model=model, command="spikezip measure …", source="here")


def _changed(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one thing changed; "…" leaves it out."""
    copy: Any = json.loads(json.dumps(data))
    *way, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    place = copy
    for key in way:
        place = place[key]
    if value == "…":
        del place[last]
    else:
        place[last] = value
    return copy


def test_there_and_back(measurement: Measurement, tmp_path: Path) -> None:
    path = measurement.save(tmp_path / "new" / "m.json")
    assert Measurement.load(path) == measurement
    plain = json.loads(path.read_text())
    assert plain == measurement.to_json()
    assert list(plain)[:4] == ["format", "version", "name", "model"]
    assert plain["model"]["class"] == "ViTForImageClassification"
    assert plain["float"] == measurement.float_.to_json()
    assert Operations.from_json(plain["operations"]).samples == 3
    assert Energy.from_json(plain["energy"]).samples == 3


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "spikezip-certificate", "this is no measurement: `spikezip measure … --json FILE` writes one"),
        ("version", 2, "version 2, here 1 is read"),
        ("name", "…", "there is no 'name'"),
        ("colour", "red", "unknown key 'colour'"),
        ("model.levels", "many", r"model\.levels: expected a whole number, not 'many'"),
        ("model.levels", True, "expected a whole number, not True"),
        ("data.samples", 2.5, r"data\.samples: expected a whole number, not 2\.5"),
        ("settings.steps", "soon", "settings: steps: expected a whole number or 'equilibrium', not 'soon'"),
        ("over_time.accuracy.0", 1.5, r"over_time: accuracy: a share lies in 0 … 1, not 1\.5"),
        ("over_time.accuracy.0", "…", r"over_time: accuracy: expected \d+ values, one per step"),
        ("over_time.accuracy.0", None, r"over_time\.accuracy\[0\]: expected a number, not None"),
        ("over_time.step.0", 0, "over_time: step: expected 1, 2, 3"),
        ("over_time.spikes_per_neuron.0", 1e9, "it adds up over time and cannot fall"),
        ("qann.accuracy", -0.1, r"qann: accuracy: a share lies in 0 … 1, not -0\.1"),
        ("sites.0.rate.0", "…", r"site 'embeddings' has \d+ values over time, not"),
        ("sites.1.silent", 2, r"sites\[1\]: silent: a share lies in 0 … 1"),
        ("model.neurons", float("nan"), r"model\.neurons: expected a number, not nan"),
        ("latency", [], "latency: expected a group of values, not a list"),
        ("sites", {}, "sites: expected a list, not a group"),
        ("latency.t_eq.counts", {"3": "two"}, r"latency\.t_eq\.counts\.3: expected a whole number, not 'two'"),
    ],
)
def test_what_is_no_measurement(measurement: Measurement, tmp_path: Path, path: str, value: Any, message: str) -> None:
    file = tmp_path / "m.json"
    file.write_text(json.dumps(_changed(measurement.to_json(), path, value)))
    with pytest.raises(InputError, match=rf"m\.json: .*{message}"):
        Measurement.load(file)


def test_files_that_are_no_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json cannot be read: No such file"):
        Measurement.load(tmp_path / "none.json")
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(InputError, match=r"m\.json is not JSON"):
        Measurement.load(tmp_path / "m.json")
    (tmp_path / "m.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"m\.json is not JSON"):
        Measurement.load(tmp_path / "m.json")
