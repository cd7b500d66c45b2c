"""`spikezip measure` and `spikezip compare`, as a user runs them."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from shell import fails, ok, run

import spikezip
from spikezip.cli import data
from spikezip.measure.document import Measurement
from spikezip.measure.measuring import measure


@pytest.mark.parametrize(("name", "file"), [("vit", "images.npz"), ("bert", "dev.tsv")])
def test_measure_gives_the_document_of_the_library(home: Path, tmp_path: Path, name: str, file: str) -> None:
    snn_folder, qann_folder = home / f"{name}-snn", home / f"{name}-qann"
    text = ok(
        *("measure", snn_folder, "--data", home / file, "--qann", qann_folder, "--float", home / name),
        *("--batch-size", 4, "--json", tmp_path / "m.json", "--device", "cpu", "--stagger", 0.5),
    )
    found = Measurement.load(tmp_path / "m.json")
    snn, qann = spikezip.load(snn_folder), spikezip.load(qann_folder)
    expected = measure(snn, data.batches(data.read(str(home / file)), snn, snn_folder, 4), qann, stagger=0.5)
    for part in ("over_time", "latency", "sites", "qann", "operations", "energy", "complexity", "model"):
        same = getattr(found, part)
        assert (same if part != "model" else type(same)(**{**vars(same), "source": None})) == getattr(expected, part)
    assert found.float_ is not None
    stream = data.batches(data.read(str(home / file)), snn, snn_folder, 4)
    verified = spikezip.verify(qann, snn, stream, stagger=0.5)
    assert found.certificate == json.loads(verified.to_json())
    assert f"certificate: {verified}\n" in text
    assert str(verified).startswith("exact. ")
    assert (found.name, found.model.source) == (f"{name}-snn", str(snn_folder))
    for word in ("over time", "T_eq: min", "activity", "energy per inference", "power", "stagger 0.5", "together"):
        assert word in text
    assert f"measurement → {tmp_path / 'm.json'}" in text


def test_certificate_is_kept(home: Path, tmp_path: Path) -> None:
    qann = spikezip.load(home / "vit-qann")
    spikezip.save(spikezip.convert(qann), tmp_path / "snn")
    ok("verify", home / "vit-qann", tmp_path / "snn", "--data", home / "images.npz")
    text = ok("measure", tmp_path / "snn", "--data", home / "images.npz", "--samples", 2, "--json", tmp_path / "m.json")
    certificate = json.loads((tmp_path / "snn" / "certificate.json").read_text())
    found = Measurement.load(tmp_path / "m.json")
    assert found.certificate == certificate
    assert (found.data.samples, found.qann) == (2, None)
    assert "certificate in the network's folder: exact. 10 samples" in text
    args = ("measure", tmp_path / "snn", "--qann", home / "vit-qann", "--data", home / "images.npz", "--samples", 2)
    text = ok(*args, "--json", tmp_path / "m.json")  # with the QANN it is this run that says it
    assert "certificate: exact. 2 samples" in text
    assert Measurement.load(tmp_path / "m.json").certificate["samples"] == 2
    text = ok(*args, "--steps", 2, "--json", tmp_path / "m.json")
    assert "certificate: none, codes are final only at equilibrium" in text
    assert Measurement.load(tmp_path / "m.json").certificate is None


def test_a_certificate_that_is_not_exact_is_seen(home: Path, tmp_path: Path) -> None:
    other = spikezip.load(home / "vit-qann")
    with torch.no_grad():
        other.get_parameter("vit.embeddings.patch_embeddings.projection.bias").add_(0.1)
    spikezip.save(other, tmp_path / "other")
    text = ok(
        *("measure", home / "vit-snn", "--qann", tmp_path / "other", "--data", home / "images.npz"),
        *("--json", tmp_path / "m.json"),
    )
    assert "certificate: NOT exact: " in text
    certificate = Measurement.load(tmp_path / "m.json").certificate
    assert certificate is not None
    assert not certificate["exact"]
    assert f"{certificate['mismatches']:,} codes differ, first at embeddings." in text


def test_energies_can_be_others(home: Path, tmp_path: Path) -> None:
    (tmp_path / "energies.json").write_text('{"accumulate_pj": 1.8}')
    args = ("measure", home / "vit-snn", "--data", home / "images.npz", "--samples", 2)
    ok(*args, "--json", tmp_path / "plain.json")
    ok(*args, "--json", tmp_path / "other.json", "--energy", tmp_path / "energies.json", "--memory", "sram")
    plain, other = (Measurement.load(tmp_path / f"{name}.json") for name in ("plain", "other"))
    assert other.energy["snn"]["linear"] == 2 * plain.energy["snn"]["linear"]
    assert plain.energy["snn"]["memory"] is None
    assert other.energy["snn"]["memory"] > 0
    assert other.operations == plain.operations
    assert "--memory tape: choose one of off, sram, dram" in fails(*args, "--memory", "tape")
    (tmp_path / "energies.json").write_text('{"accumulate": 1.8}')
    assert "energies.json: unknown key 'accumulate'" in fails(*args, "--energy", tmp_path / "energies.json")
    (tmp_path / "energies.json").write_text("0.9")
    assert "energies.json: expected a group of values" in fails(*args, "--energy", tmp_path / "energies.json")
    assert "No such file" in fails(*args, "--energy", tmp_path / "none.json")


def test_stopped_and_resumed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spikezip.measure import one_batch

    args = ("measure", home / "vit-snn", "--data", home / "images.npz", "--batch-size", 3, "--folder", tmp_path / "m")
    real, calls = one_batch.simulate, []

    def stops(*positional: object, **named: object) -> object:
        calls.append(positional)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*positional, **named)

    monkeypatch.setattr(one_batch, "simulate", stops)
    stopped = run(*args)
    assert stopped.exit_code == 130
    assert "stopped by Ctrl-C" in stopped.stderr
    assert "holds a measurement already; resume it (--resume)" in fails(*args)
    assert "other data" in fails(*args, "--resume", "--samples", 4)
    text = ok(*args, "--resume")
    assert len(calls) == 5  # two, the one that was stopped, and the two that were left
    assert f"measurement → {tmp_path / 'm' / 'measurement.json'}" in text
    whole = measure(
        spikezip.load(home / "vit-snn"),
        data.batches(data.read(str(home / "images.npz")), spikezip.load(home / "vit-snn"), home / "vit-snn", 3),
    )
    found = Measurement.load(tmp_path / "m" / "measurement.json")
    assert (found.over_time, found.sites, found.energy) == (whole.over_time, whole.sites, whole.energy)
    assert "--resume" not in (found.command or "")


def test_mistakes_are_found_before_any_work(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spikezip.measure import one_batch

    monkeypatch.setattr(one_batch, "simulate", lambda *args, **kwargs: pytest.fail("something was simulated"))
    images = home / "images.npz"
    with np.load(images) as arrays:
        np.savez(tmp_path / "wrong.npz", x=arrays["x"], y=[0] * 9 + [3])
        np.savez(tmp_path / "empty.npz", x=arrays["x"][:0])
    snn = home / "vit-snn"
    wrong = fails("measure", snn, "--data", tmp_path / "wrong.npz", "--batch-size", 2)
    assert "wrong.npz: the label 3 does not fit the head, which has 3 classes (0 … 2)" in wrong
    assert "holds no samples" in fails("measure", snn, "--data", tmp_path / "empty.npz")
    assert "--resume needs --folder" in fails("measure", snn, "--data", images, "--resume")
    assert "--device warp" in fails("measure", snn, "--data", images, "--device", "warp")
    assert "--json" in fails("measure", snn, "--data", images, "--json", tmp_path)
    assert "--steps soon" in fails("measure", snn, "--data", images, "--steps", "soon")
    assert "here an SNN is needed" in fails("measure", home / "vit-qann", "--data", images)
    assert "another network" in fails("measure", snn, "--data", images, "--qann", home / "bert-qann")
    assert "another head" in fails("measure", snn, "--data", images, "--float", home / "bert")


def test_compare(home: Path, tmp_path: Path) -> None:
    for k in (0, 1):
        ok(
            *("measure", home / "vit-snn", "--data", home / "images.npz", "--samples", 4, "--stagger", k),
            *("--folder", tmp_path / f"k{k}", "--name", f"k = {k} [bold]"),
        )
    files = [tmp_path / "k0", tmp_path / "k1" / "measurement.json"]  # a folder will do
    table = ok("compare", *files, "--at", "1, 4")
    assert "k = 1 [bold]" in table
    assert "SNN (%) at T = 4" in table
    rows = list(
        csv.DictReader(io.StringIO(ok("compare", *files, "--format", "csv", "--columns", "name, stagger,spikes")))
    )
    assert [row["stagger"] for row in rows] == ["0.0", "1.0"]
    assert float(rows[1]["spikes"]) < float(rows[0]["spikes"])
    assert ok("compare", files[0], "--format", "markdown").startswith("| name |")
    assert r"\begin{tabular}" in ok("compare", *files, "--format", "latex")

    assert "--format pdf: choose one of table, csv, markdown, latex" in fails("compare", files[0], "--format", "pdf")
    assert "no column 'spices', did you mean 'spikes'" in fails("compare", files[0], "--columns", "spices")
    assert "--at soon" in fails("compare", files[0], "--at", "soon")
    assert "cannot be read" in fails("compare", files[0], tmp_path / "none.json")
    (tmp_path / "other.json").write_text("{}")
    assert "other.json: this is no measurement" in fails("compare", tmp_path / "other.json")


@pytest.mark.parametrize("columns", [60, 200])
def test_a_table_fits_the_terminal(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    ok("measure", home / "vit-snn", "--data", home / "images.npz", "--samples", 2, "--json", tmp_path / "m.json")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    text = ok("compare", tmp_path / "m.json", tmp_path / "m.json")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    tall = any("T_up" in line for line in lines[2:])
    assert tall == (columns == 60)
    assert max(map(len, lines)) <= columns
