"""`spikezip exits`: a rule from some samples, a report on others, curves, files of rules, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from shell import fails, ok, run

import spikezip
from spikezip.cli import data
from spikezip.measure import calibrate_exit, energy, operations, report_exit, sites_to_record
from spikezip.measure.exit_calibration import ExitReport
from spikezip.measure.exit_document import ExitDocument
from spikezip.measure.exit_energy import joules_by_step
from spikezip.measure.exit_report import report_exits
from spikezip.measure.exit_rule import ExitRule, ends, exit_steps
from spikezip.measure.exits import simulate_until_confident


def batches(home: Path, which: slice, size: int = 4) -> list[dict[str, Any]]:
    """Samples of the images, batch by batch, as the command makes them."""
    snn = spikezip.load(home / "vit-snn")
    whole = next(iter(data.batches(data.read(str(home / "images.npz")), snn, home / "vit-snn", 100)))
    parts = {name: value[which].split(size) for name, value in whole.items()}
    return [dict(zip(parts, part, strict=True)) for part in zip(*parts.values(), strict=True)]


def test_halves_give_the_numbers_of_the_library(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "rule.json"
    text = ok(
        *("exits", home / "vit-snn", "--data", home / "images.npz", "--qann", home / "vit-qann", "--batch-size", 4),
        *("--agreement", 0.75, "--patience", 2, "--stagger", 0.5, "--json", file, "--device", "cpu"),
    )
    snn, qann = spikezip.load(home / "vit-snn"), spikezip.load(home / "vit-qann")
    rule = calibrate_exit(snn, batches(home, slice(0, None, 2)), qann, agreement=0.75, patience=2, stagger=0.5)
    expected = report_exit(snn, batches(home, slice(1, None, 2)), rule, qann)
    document = ExitDocument.load(file)
    assert document.rules == (rule,)
    assert document.reports == (expected,)
    assert document.calibration is not None
    assert document.reported is not None
    assert (document.calibration.samples, document.reported.samples) == (5, 5)
    assert (document.calibration.part, document.reported.part) == ("samples 1, 3, 5, …", "samples 2, 4, 6, …")
    assert f"margin ≥ {rule.threshold:.4g}" in text
    assert "patience 2" in text
    assert "split in two fixed halves" in text
    for name, shown in {
        "final answers": [f"{expected.agreement:.2%}", f"{expected.agreement_without:.2%}"],
        "accuracy": [f"{expected.accuracy:.2%}", f"{expected.accuracy_without:.2%}"],
        "step, mean": [f"{expected.steps['mean']:.1f}", f"{expected.t_eq['mean']:.1f}"],
        "step, median": [str(expected.steps["median"]), str(expected.t_eq["median"])],
        "step, 99 %": [str(expected.steps["p99"]), str(expected.t_eq["p99"])],
        "spikes per neuron": [f"{expected.spikes_per_neuron:.3f}", f"{expected.spikes_per_neuron_without:.3f}"],
    }.items():
        line = next(line for line in text.splitlines() if name in line)
        assert line.split(name)[1].split() == shown
    assert "energy per inference" in text


def test_several_agreements_give_a_row_each(home: Path, tmp_path: Path) -> None:
    """The curve of one run over the data is what each agreement gives alone; labels are not needed."""
    with np.load(home / "images.npz") as arrays:
        np.savez(tmp_path / "bare.npz", x=arrays["x"])
    command = ("exits", home / "vit-snn", "--data", tmp_path / "bare.npz", "--test", home / "images.npz")
    text = ok(*command, "--agreement", "0.5,0.9,1", "--kind", "entropy", "--json", tmp_path / "curve.json")
    curve = ExitDocument.load(tmp_path / "curve.json")
    assert [rule.found.wanted for rule in curve.rules if rule.found] == [0.5, 0.9, 1.0]
    assert [report.accuracy is None for report in curve.reports] == [False] * 3
    assert curve.reports[0].energy_j <= curve.reports[2].energy_j <= curve.reports[2].energy_j_without
    for index, share in enumerate((0.5, 0.9, 1)):
        assert f"{curve.rules[index].threshold:.4g}" in text
        ok(*command, "--agreement", share, "--kind", "entropy", "--json", tmp_path / "one.json")
        one = ExitDocument.load(tmp_path / "one.json")
        assert (one.rules, one.reports) == (curve.rules[index : index + 1], curve.reports[index : index + 1])
    unlabelled = ok("exits", home / "vit-snn", "--data", tmp_path / "bare.npz", "--agreement", "0.5,0.9")
    assert "accuracy" not in unlabelled
    assert "split" not in text


def test_it_fits_80_columns(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("exits", home / "bert-snn", "--data", home / "dev.tsv", "--samples", 4)
    monkeypatch.setattr("spikezip.cli.exits_shown.out", _narrow)
    for more in (("--agreement", "0.5,0.75,0.999999"), ("--patience", 3), ("--thresholds", "0,1e9")):
        lines = ok(*command, *more).splitlines()
        table = lines[next(i for i, line in enumerate(lines) if "──" in line) - 2 :]
        assert max(map(len, table)) <= 80
        assert "…" not in "".join(table), "a cell was cut"


def _narrow() -> Any:
    from rich.console import Console

    return Console(width=80)


def test_a_rule_is_read_back(home: Path, tmp_path: Path) -> None:
    images, file = home / "images.npz", tmp_path / "rule.json"
    calibrate = ("exits", home / "vit-snn", "--data", images, "--test", images, "--agreement", "0.6,0.9")
    ok(*calibrate, "--max-spike", 2, "--json", file)
    first = ExitDocument.load(file)
    text = ok("exits", home / "vit-snn", "--data", images, "--rule", file, "--json", tmp_path / "again.json")
    again = ExitDocument.load(tmp_path / "again.json")
    assert (again.rules, again.reports, again.calibration) == (first.rules, first.reports, first.calibration)
    assert "calibrated on samples of this data" in text

    rule = first.rules[0]
    (tmp_path / "bare.json").write_text(json.dumps(replace(rule, found=None).to_json()))
    text = ok("exits", home / "vit-snn", "--data", images, "--rule", tmp_path / "bare.json", "--steps", 2)
    assert "set by hand" in text
    assert "10 samples had not settled" in text, "a rule alone does not say how long a sample may stay"
    by_hand = ("exits", home / "vit-snn", "--data", images, "--max-spike", 2, "--json", tmp_path / "hand.json")
    ok(*by_hand, "--thresholds", f"{rule.threshold!r},1e9")
    hand = ExitDocument.load(tmp_path / "hand.json")
    assert hand.reports[0] == first.reports[0]
    assert (hand.reports[1].confident, hand.reports[1].energy_j) == (0, hand.reports[1].energy_j_without)

    other = ("exits", home / "vit-snn", "--data", images, "--rule", file)
    assert "--max-spike 1: --rule" in fails(*other, "--max-spike", 1)
    assert "was found with --kind margin" in fails(*other, "--kind", "entropy")
    assert "was found with --steps equilibrium" in fails(*other, "--steps", 5)
    snn = spikezip.load(home / "vit-snn")
    with torch.no_grad():
        snn.get_buffer("vit.layernorm.bias").add_(1)
    spikezip.save(snn, tmp_path / "other-snn")
    shutil.copy(home / "vit-snn" / "preprocessor_config.json", tmp_path / "other-snn")
    assert "a rule of another network" in fails("exits", tmp_path / "other-snn", *other[2:])


def test_steps_cut_a_run_short(home: Path, tmp_path: Path) -> None:
    command = ("exits", home / "vit-snn", "--data", home / "images.npz", "--json", tmp_path / "e.json")
    text = ok(*command, "--thresholds", 1e9, "--steps", 2)
    report = ExitDocument.load(tmp_path / "e.json").reports[0]
    assert (report.unsettled, report.steps["min"], report.steps["max"]) == (10, 2, 2)
    assert "10 samples had not settled" in text


def test_energy_is_that_of_the_steps_before_the_exit(home: Path) -> None:
    """Cut at its exit, a sample costs what is counted of a run that ends there."""
    snn = spikezip.load(home / "vit-snn")
    inputs = {"pixel_values": batches(home, slice(0, 4))[0]["pixel_values"]}
    for drive in ({}, {"coding": "rate"}, {"stagger": 0.5, "max_spike": 2}):
        keep = sites_to_record(snn, inputs)
        whole = spikezip.simulate(snn, inputs, "equilibrium", record=keep, **drive)
        rule = ExitRule("margin", float(whole.logits.sort().values.diff()[:, -1].median()), **drive)
        steps = exit_steps(rule, rule.met(whole.logits_per_step), ends(whole)).tolist()
        assert torch.equal(simulate_until_confident(snn, inputs, rule).steps, torch.tensor(steps))
        joules = joules_by_step(snn, whole, inputs)
        alone = []
        for sample, step in enumerate(steps):
            one = {"pixel_values": inputs["pixel_values"][sample : sample + 1]}
            cut = spikezip.simulate(snn, one, step, record=keep, **drive)
            alone.append(energy(operations(snn, cut, one)).snn.total)
            assert float(joules[step - 1, sample]) == pytest.approx(alone[-1], rel=1e-12)  # sums in another order
        (report,) = report_exits(snn, inputs, [rule])
        assert report.energy_j == pytest.approx(sum(alone) / 4, rel=1e-12)
        assert ExitReport.from_json(report.to_json()) == report


def test_wrong_settings_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    nothing = ("exits", "no-such-network", "--data", "no-such-data")
    for share in ("0", "1.5", "-0.5", "0.9,2", "nan"):
        assert "above 0 and at most 1" in fails(*nothing, f"--agreement={share}")
    assert "--agreement most: write numbers" in fails(*nothing, "--agreement", "most")
    assert "choose one of margin, entropy" in fails(*nothing, "--kind", "mood")
    assert "--thresholds a: write numbers" in fails(*nothing, "--thresholds", "a")
    assert "threshold=nan" in fails(*nothing, "--thresholds", "nan")
    assert "give one of them" in fails(*nothing, "--thresholds", "1", "--rule", "r")
    assert "there is no threshold to find" in fails(*nothing, "--thresholds", "1", "--agreement", "0.9")
    assert "report on with --data" in fails(*nothing, "--rule", "r", "--test", "t")
    assert "is a folder" in fails(*nothing, "--json", tmp_path)
    assert "--steps soon" in fails(*nothing, "--steps", "soon")
    assert run(*nothing, "--patience", "0").exit_code == 2


def test_files_that_are_no_rules(tmp_path: Path) -> None:
    file = tmp_path / "rule.json"
    command = ("exits", "no-such-network", "--data", "no-such-data", "--rule", file)
    assert "cannot be read" in fails(*command)
    for content, message in (
        ("{", "is not JSON"),
        ("[]", "this is no confidence rule"),
        ('{"format": "spikezip-measurement", "version": 1}', "this is no confidence rule"),
        ('{"format": "spikezip-exits", "version": 9}', "version 9"),
        ('{"format": "spikezip-exits", "version": 1, "rules": []}', "there is none"),
        ('{"format": "spikezip-exits", "version": 1}', "there is no 'rules'"),
        (
            '{"format": "spikezip-exits", "version": 1, "steps": "x", "rules": [{"kind": "margin", "threshold": 0}]}',
            "not 'x'",
        ),
        ('{"kind": "mood", "threshold": 1}', "choose one of margin, entropy"),
        ('{"kind": "margin", "threshold": "high"}', "threshold: expected a number"),
    ):
        file.write_text(content)
        line = fails(*command)
        assert message in line
        assert str(file) in line


def test_data_that_will_not_do(home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    assert "--data" in fails("exits", "no-such-network", "--data", tmp_path / "empty.txt")
    nothing_to_test = ("exits", "no-such-network", "--data", home / "images.npz", "--test", tmp_path / "empty.txt")
    assert f"--test {tmp_path / 'empty.txt'} holds no samples" in fails(*nothing_to_test)
    one = ("exits", "no-such-network", "--data", home / "images.npz", "--samples", 1)
    assert "cannot be split" in fails(*one)
    with np.load(home / "images.npz") as arrays:
        np.savez(tmp_path / "other.npz", x=arrays["x"], y=arrays["y"] + 7)
    line = fails("exits", home / "vit-snn", "--data", home / "images.npz", "--test", tmp_path / "other.npz")
    assert f"--test {tmp_path / 'other.npz'}: the label" in line
    assert "here an SNN is needed" in fails("exits", home / "vit-qann", "--data", home / "images.npz")
    other = fails("exits", home / "vit-snn", "--data", home / "images.npz", "--qann", home / "bert-qann")
    assert "the QANN is another network" in other


@pytest.mark.parametrize(
    ("model", "labels"),
    [
        (transformers.BertModel, 2),
        (transformers.BertForQuestionAnswering, 2),
        (transformers.BertForSequenceClassification, 1),
        (transformers.BertForTokenClassification, 3),
    ],
    ids=["headless", "question answering", "regression", "tokens"],
)
def test_models_without_classes_are_refused(model: Any, labels: int, home: Path, tmp_path: Path) -> None:
    config = transformers.BertConfig.from_pretrained(home / "bert", num_labels=labels)
    model(config).save_pretrained(tmp_path / "float")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / "bert" / file, tmp_path / "float")
    (tmp_path / "dev.txt").write_text("a good film\nso bad\n")
    ok("quantize", tmp_path / "float", tmp_path / "qann", "--data", tmp_path / "dev.txt")
    ok("convert", tmp_path / "qann", tmp_path / "snn")
    line = fails("exits", tmp_path / "snn", "--data", tmp_path / "dev.txt")
    assert "needs one choice per sample" in line
