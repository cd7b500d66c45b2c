"""Runs whose network can be had: their rows say what was measured from the checkpoint."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy_results as toy
from toy_results import home_of as home
from toy_results import rows

from spikezip.errors import ConfigError
from spikezip.measure.document import Answers, Steps
from spikezip.results import add_measurement

CHECKPOINT = "{{ table reproduced }}\n\n{{ value runs/0-sst2-toy/own.qann.accuracy percent }}\n\n{{ table language }}"


def checkpoint(tmp_path: Path, page: str = CHECKPOINT) -> tuple[Path, dict[str, Any]]:
    """A home with a run that has 80 %, and the settings of a measurement of its checkpoint."""
    folder = home(tmp_path, page, (toy.recipe(), {"curve": (0.2, 0.8), "qann": 0.8}))
    (folder / "results" / "checkpoints.yaml").write_text("0-sst2-toy: again\n", encoding="utf-8")
    own = json.loads((folder / "results" / "runs" / "0-sst2-toy" / "certificate.json").read_text("utf-8"))
    here = own | {"settings": own["settings"] | {"device": "cpu (toy)"}}
    return folder, {"certificate": here, "device": "cpu (toy)"}


def measured_again(folder: Path, **more: Any) -> None:
    path = toy.measurement("again", **more).save(folder / "m.json")
    add_measurement(path, folder / "results", over=True)


def test_a_checkpoint_measured_beside_its_run(tmp_path: Path) -> None:
    folder, settings = checkpoint(tmp_path)
    measured_again(folder, **settings)
    text = toy.built(folder)
    run, again = rows(text)[:2]
    assert run["network"] == "[0-sst2-toy](../results/runs/0-sst2-toy/results.json)"
    assert again["network"] == "[again](../results/measured/again.json), measured"
    assert (run["device"], again["device"]) == ("Toy GPU, toy neuron", "toy, toy neuron")
    for row in (run, again):
        assert [row[key] for key in ("samples", "QANN", "T = 16", "settled")] == ["100", "80.00", "80.00", "80.00"]
    assert "have the same accuracy in both rows" in text


def test_the_row_is_what_was_measured_from_the_checkpoint(tmp_path: Path) -> None:
    folder, settings = checkpoint(tmp_path)
    plain = toy.measurement()
    assert plain.over_time.accuracy is not None
    steps = len(plain.over_time.accuracy)
    curve = tuple(0.01 * (90 - steps + step) for step in range(1, steps + 1))
    over_time, latency = replace(plain.over_time, accuracy=curve), replace(plain.latency, t_eq=Steps(1, 5, 6, 7))
    measured_again(folder, **settings, over_time=over_time, latency=latency, qann=Answers(0.9, 1.0))
    text = toy.built(folder)
    run, again = rows(text)[:2]
    assert (run["QANN"], run["settled"], again["QANN"], again["settled"]) == ("80.00", "80.00", "90.00", "90.00")
    assert "**Not the same** as QANN or settled: 0-sst2-toy." in text
    assert "\n80.00 %\n" in text
    row = text.split("| recipe |")[1].splitlines()[2]
    cells = [cell.replace("\u00a0", " ").strip() for cell in row.split("|")]
    assert "90.00‡" in cells
    assert cells.count("90.00") == 3, "at both steps, and settled"
    assert "5 / 7" in cells
    assert "80.00" not in row
    assert "‡ QANN and SNN as measured from the checkpoint on cpu (toy)" in text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"certificate": None}, "measured/again was not compared with the QANN: measure it with --qann"),
        ({"samples": 10}, "measured/again has 10 samples and runs/0-sst2-toy 100: measure all of them"),
        ({"sites": 6}, "measured/again is not the network of runs/0-sst2-toy: .* of 6 sites.*, not .* of 5 sites"),
        ({"exact": False}, "measured/again is not exact"),
        ({"qann": None}, "measured/again has no accuracy of the QANN"),
        ({"stagger": 0.5}, "measured/again is no plain run up to equilibrium beside the QANN"),
    ],
)
def test_a_measurement_that_is_not_of_the_run(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    folder, settings = checkpoint(tmp_path)
    of_certificate = {key: value for key, value in change.items() if key in ("samples", "sites", "exact")}
    whole = {key: value for key, value in change.items() if key not in of_certificate}
    measured_again(folder, **{**settings, "certificate": settings["certificate"] | of_certificate, **whole})
    with pytest.raises(ConfigError, match=problem):
        toy.built(folder)


def test_checkpoints_that_are_not_there(tmp_path: Path) -> None:
    folder, settings = checkpoint(tmp_path)
    file = folder / "results" / "checkpoints.yaml"
    with pytest.raises(ConfigError, match=r"checkpoints.yaml, 0-sst2-toy: there is no measured/again; a line is RUN: "):
        toy.built(folder)
    measured_again(folder, **settings)
    file.write_text("toy: again\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"checkpoints.yaml, toy: there is no runs/toy;"):
        toy.built(folder)
    file.unlink()
    with pytest.raises(ConfigError, match=r"table reproduced shows the runs in checkpoints.yaml: there are none"):
        toy.built(folder)
