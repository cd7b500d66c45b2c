"""The networks in `zoo/`: whole, small enough, certified, and without a trace of the machine they were made on."""

import json
import re
import runpy
from pathlib import Path

import pytest

import spikezip
from spikezip.results.folder import Results
from spikezip.training import load_recipe

FOLDERS = sorted(path.parent for path in (Path(__file__).parents[1] / "zoo").glob("*/spikezip.json"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_network_of_the_zoo(folder: Path) -> None:
    qann = spikezip.load(folder)
    assert qann.kind == "qann"
    assert sum(file.stat().st_size for file in folder.iterdir()) < 25_000_000
    certificate = json.loads((folder / "certificate.json").read_text("utf-8"))
    assert certificate["exact"]
    assert certificate["sites"] == len(qann.sites)
    results = json.loads((folder / "results.json").read_text("utf-8"))
    assert results["metrics"]["qann"]["accuracy"] == results["metrics"]["snn"]["accuracy"]
    assert load_recipe(folder / "recipe.yaml").stages.qat is not None
    for file in (*folder.glob("*.json"), *folder.glob("*.yaml"), folder / "README.md"):
        if file.name != "tokenizer.json":
            assert not re.search(r'["\s](/[a-z]+/|[A-Z]:\\)', file.read_text("utf-8")), file


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_card_is_what_the_figures_give(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parents[1])
    make = runpy.run_path("zoo/make.py")
    card = (folder / "README.md").read_text("utf-8")
    origin = re.search(r"Starting point: (.*)\.\n", card)
    name = re.search(r"--data (\w+):FOLDER", card)
    assert origin is not None
    assert name is not None
    assert make["card"](Path("zoo") / folder.name, name[1], origin[1]) == card


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_card_and_the_row_are_what_a_cpu_gives(folder: Path) -> None:
    results = Results.read(folder.parents[1] / "results")
    here = results.measured[folder.name]
    (run,) = (run for run in results.runs.values() if run.checkpoint is here)
    assert run.own == json.loads((folder / "results.json").read_text("utf-8"))["metrics"]
    assert here.data.samples == run.own["qann"]["samples"], "all of them"
    assert here.device.startswith("cpu")
    assert here.certificate is not None
    assert here.certificate["exact"]
    assert here.qann is not None
    assert run.metrics["qann"]["accuracy"] == run.metrics["snn"]["accuracy"] == here.qann.accuracy
    card = (folder / "README.md").read_text("utf-8")
    for title in ("**QANN**", "**SNN at equilibrium**"):
        assert f"| {title} | {100 * run.metrics['qann']['accuracy']:.2f} % |" in card
    listed = (folder.parent / "README.md").read_text("utf-8")
    assert re.search(rf"\]\({folder.name}\) \|.*\| {100 * run.metrics['qann']['accuracy']:.2f} % \|", listed)
    assert f"the QANN had {100 * run.own['qann']['accuracy']:.2f} %" in " ".join(card.split())


def test_the_zoo_is_listed() -> None:
    readme = (FOLDERS[0].parent / "README.md").read_text("utf-8")
    assert all(f"]({folder.name})" in readme for folder in FOLDERS)
    assert len(FOLDERS) >= 2
