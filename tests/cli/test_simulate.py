"""`spikezip simulate`: numbers over time."""

import json
from pathlib import Path

import pytest
from shell import fails, ok, run

import spikezip
from spikezip.cli import data


@pytest.mark.parametrize(("name", "file"), [("vit", "images.npz"), ("bert", "dev.tsv")])
def test_simulate_to_equilibrium(home: Path, tmp_path: Path, name: str, file: str) -> None:
    numbers_file = tmp_path / "numbers.json"
    text = ok(
        *("simulate", home / f"{name}-snn", "--data", home / file, "--steps", "equilibrium"),
        *("--batch-size", 4, "--json", numbers_file),
    )
    assert "T_eq: min" in text
    assert "accuracy" in text
    numbers = json.loads(numbers_file.read_text())
    rows = numbers["over_time"]
    assert len(rows) == numbers["t_eq"]["max"] + 1
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1]["agreement"] == 1.0
    assert rows[-1]["distance"] == 0.0
    assert numbers["unsettled"] == 0
    assert rows[-1]["spikes_per_neuron"] == numbers["spikes_per_neuron"] > 0


def test_simulate_gives_the_numbers_of_the_library(home: Path, tmp_path: Path) -> None:
    command = ("simulate", home / "vit-snn", "--data", home / "images.npz", "--steps", 6, "--device", "cpu")
    ok(*command, "--json", tmp_path / "n.json")
    numbers = json.loads((tmp_path / "n.json").read_text())
    snn = spikezip.load(home / "vit-snn")
    samples = data.read(str(home / "images.npz"))
    (batch,) = data.batches(samples, snn, home / "vit-snn", batch_size=10)
    found = spikezip.simulate(snn, batch, steps=6)
    said = found.logits_per_step.argmax(dim=-1)
    right = (said == batch["labels"]).double().mean(dim=1)
    assert [row["accuracy"] for row in numbers["over_time"]] == pytest.approx(right.tolist())
    assert numbers["spikes_per_neuron"] == pytest.approx(found.spikes_per_neuron)
    assert numbers["t_eq_per_sample"] == found.t_eq


def test_simulate_a_model_without_a_head(home: Path, tmp_path: Path) -> None:
    ok("quantize", home / "vit", tmp_path / "qann", "--data", home / "images.npz", "--task", "base")
    ok("convert", tmp_path / "qann", tmp_path / "snn")
    text = ok("simulate", tmp_path / "snn", "--data", home / "images.npz", "--steps", 4)
    assert "agrees" not in text
    assert "distance to the last step" in text


def test_simulate_cut_short_says_so(home: Path) -> None:
    text = ok("simulate", home / "vit-snn", "--data", home / "images.npz", "--steps", 3, "--samples", 2)
    assert "2 samples had not settled" in text


def test_ctrl_c(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(spikezip, "simulate", stopped)
    result = run("simulate", home / "vit-snn", "--data", home / "images.npz")
    assert (result.exit_code, result.stderr) == (130, "error: stopped by Ctrl-C\n")


def test_staggering_is_a_setting(home: Path, tmp_path: Path) -> None:
    command = ("simulate", home / "vit-snn", "--data", home / "images.npz", "--steps", "equilibrium")
    for stagger in (0, 2.5):
        ok(*command, "--stagger", stagger, "--json", tmp_path / f"{stagger}.json")
    plain, staggered = (json.loads((tmp_path / f"{k}.json").read_text()) for k in (0, 2.5))
    assert (plain["stagger"], staggered["stagger"]) == (0, 2.5)
    assert staggered["t_eq"]["min"] > plain["t_eq"]["max"]
    assert staggered["over_time"][-1]["accuracy"] == plain["over_time"][-1]["accuracy"]
    assert "--stagger -1: a number of steps from 0" in fails(*command, "--stagger=-1")
    assert "--stagger nan" in fails(*command, "--stagger", "nan")
