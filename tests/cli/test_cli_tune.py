"""`spikezip tune`: the frontier as a table and as JSON, and what is left after Ctrl-C."""

import json
from pathlib import Path
from typing import Any

import pytest
from shell import fails, ok, run

import spikezip
from spikezip.cli import data
from spikezip.measure import tuning
from spikezip.measure.tuning import tune


def test_tune_gives_the_numbers_of_the_library(home: Path, tmp_path: Path) -> None:
    text = ok(
        *("tune", home / "vit-snn", "--data", home / "images.npz", "--samples", 6, "--batch-size", 4, "--steps", 500),
        *("--staggers", "0,0.5", "--max-spikes", "1,2", "--agreement", "0.9", "--json", tmp_path / "t.json"),
        *("--device", "cpu"),
    )
    assert "4 settings tried on 6 samples" in text
    assert "energy per inference" in text
    numbers = json.loads((tmp_path / "t.json").read_text())
    snn = spikezip.load(home / "vit-snn")
    batches = list(data.batches(data.read(str(home / "images.npz")), snn, home / "vit-snn", 4, 6))
    expected = tune(snn, batches, [0, 0.5], [1, 2], agreement=0.9)
    assert numbers["trials"] == expected.to_json()["trials"]
    assert numbers["frontier"] == [t.to_json() for t in expected.frontier()]
    best = expected.best(steps=500)
    assert best is not None
    assert numbers["best"] == best.to_json()
    assert f"best: stagger {best.stagger:g}, largest spike {best.max_spike}" in text


def test_tune_by_spikes_until_equilibrium(home: Path) -> None:
    command = ("tune", home / "bert-snn", "--data", home / "dev.tsv", "--samples", 3, "--cost", "spikes")
    grid = ("--agreement", "equilibrium", "--staggers", "0,1", "--max-spikes", 1)
    text = ok(*command, *grid, "--budget", 0)
    assert "no setting stays within that budget; the cheapest takes" in text
    assert "energy" not in text
    assert "no setting gets there within 1 steps" in ok(*command, *grid, "--steps", 1)
    assert "best:" not in ok(*command, *grid)


def test_ctrl_c_keeps_what_is_done(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, runs = spikezip.simulate, 0

    def stopped(*args: Any, **kwargs: Any) -> Any:
        nonlocal runs
        runs += 1
        if runs > stop_after:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(tuning, "simulate", stopped)
    command = ("tune", home / "vit-snn", "--data", home / "images.npz", "--samples", 4, "--json", tmp_path / "t.json")
    stop_after = 2
    result = run(*command)
    assert result.exit_code == 130
    assert "2 of 12 settings tried on 4 samples" in result.stdout
    assert len(json.loads((tmp_path / "t.json").read_text())["trials"]) == 2
    stop_after = runs = 0
    result = run(*command)
    assert (result.exit_code, result.stderr) == (130, "error: stopped by Ctrl-C\n")


def test_wrong_settings_are_refused(home: Path) -> None:
    command = ("tune", home / "vit-snn", "--data", home / "images.npz")
    assert "give one of them" in fails(*command, "--steps", 8, "--budget", 1)
    assert "--staggers a,b: write numbers" in fails(*command, "--staggers", "a,b")
    assert "stagger=-1" in fails(*command, "--staggers=-1")
    assert "--max-spikes 1.5: write whole numbers" in fails(*command, "--max-spikes", "1.5")
    assert "max_spike=0" in fails(*command, "--max-spikes", "0")
    assert "--agreement most" in fails(*command, "--agreement", "most")
    assert "agreement=2.0" in fails(*command, "--agreement", "2")
    assert "choose one of energy, spikes" in fails(*command, "--cost", "money")
    assert "here an SNN is needed" in fails("tune", home / "vit-qann", "--data", home / "images.npz")
