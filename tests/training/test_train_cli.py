"""`spikezip train`, as a user would, on tiny files in the published forms."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toys
from typer.testing import CliRunner, Result

from spikezip.cli.app import app
from spikezip.training.callbacks import StopOnSignal

RECIPE = """\
name: tiny
model:
  type: vit
  config: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32, patch_size: 8,
    image_size: 32, initializer_range: 0.2}
data: {name: cifar10}
stages:
  relu: {epochs: 2, batch_size: 16, learning_rate: 3e-3}
  quantize: {batches: 1}
  qat: {epochs: 1, batch_size: 16, learning_rate: 1e-3, distill: {}}
  convert: true
  verify: {samples: 4, steps: [8, 64]}
expected:
  - {what: SNN, accuracy: 98.7, source: "a paper, table 1"}
"""
TEXT = """\
name: words
data: {name: sst2}
stages:
  finetune: {epochs: 1, batch_size: 16, learning_rate: 1e-3}
  quantize: {batches: 1, embedding_bits: 8}
  convert: true
  verify: {samples: 4}
"""


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "200"})


def ok(*args: object) -> Result:
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result


def fails(*args: object, code: int = 2) -> str:
    """The exit code and one line, without a traceback."""
    result = run(*args)
    assert result.exit_code == code, result.output
    line = result.stderr.splitlines()[-1]
    assert line.startswith("error: "), result.stderr
    assert "Traceback" not in result.output
    return line


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("train")
    rng = np.random.default_rng(0)
    (home / "cifar").mkdir()
    for name in (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"):
        records = rng.integers(0, 256, (8, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (home / "cifar" / name).write_bytes(records.tobytes())
    (home / "tiny.yaml").write_text(RECIPE)
    (home / "words.yaml").write_text(TEXT)
    toys.bert(num_labels=2, hidden_act="relu").save_pretrained(home / "bert")
    toys.tokenizer().save_pretrained(home / "bert")
    for name, count in (("train.tsv", 32), ("dev.tsv", 6)):
        texts = toys.sentences(count, seed=count)
        lines = [f"{text}\t{int(label) % 2}" for text, label in zip(texts.texts, texts.labels, strict=True)]
        (home / name).write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return home


@pytest.fixture(scope="module")
def ran(home: Path) -> Result:
    return ok("train", home / "tiny.yaml", "--set", f"data={home / 'cifar'}", f"output={home / 'run'}", "--cpu")


def test_what_is_said_at_the_end(home: Path, ran: Result) -> None:
    results = json.loads((home / "run" / "results.json").read_text())["metrics"]
    said = {line.split("  ")[0]: line for line in ran.stdout.splitlines()}
    assert f"{100 * results['relu']['accuracy']:.2f} %" in said["float, ReLU"]
    assert f"{100 * results['qann']['accuracy']:.2f} %" in said["QANN"]
    assert f"{100 * results['snn']['accuracy_at']['8']:.2f} %" in said["SNN at T = 8"]
    assert said["certificate"].split(maxsplit=1)[1].strip() == f"exact, {results['snn']['samples']} samples"
    assert "98.70 % (a paper, table 1)" in said["expected: SNN"]
    last = ran.stdout.splitlines()[-1]
    assert last == f"everything is in {home / 'run'}: qann/, snn/, results.json, metrics.jsonl, recipe.yaml"


def test_progress_goes_to_the_other_stream(ran: Result) -> None:
    lines = ran.stderr.splitlines()
    assert any(line.startswith("relu 4/4") and "accuracy" in line for line in lines)
    assert any(line.startswith("qat 2/2") and "agreement 100.00 %" in line for line in lines)
    assert any(line.startswith("verify 4/4") for line in lines)
    assert "%|" not in ran.output  # no bars of other people
    assert "pin_memory" not in ran.output


def test_what_it_leaves_can_be_used(home: Path, ran: Result) -> None:
    qann = toys.load(home / "run" / "qann")
    assert qann.config.id2label[3] == "cat"
    with torch.no_grad():
        assert qann(pixel_values=torch.randn(1, 3, 32, 32)).logits.shape == (1, 10)
    assert ok("inspect", home / "run" / "snn").exit_code == 0


def test_a_second_run_needs_resume(home: Path, ran: Result) -> None:
    args = ("train", home / "tiny.yaml", "--set", f"data={home / 'cifar'}", f"output={home / 'run'}", "--cpu")
    assert "holds a run already; resume it (--resume)" in fails(*args)
    again = ok(*args, "--resume")
    assert again.stdout == ran.stdout
    assert not any(line.startswith("relu") for line in again.stderr.splitlines())  # it was finished
    message = fails(*args, "qat.epochs=2", "--resume")
    assert "stages.qat.epochs was 1.0, now it is 2.0" in message


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["qat.epoch=3"], "--set qat.epoch=3: stages.qat.epoch: unknown key, did you mean 'epochs'?"),
        (["relu.learning_rate=fast"], "--set relu.learning_rate=fast: stages.relu.learning_rate: expected a number"),
        (["data.name=cifar11"], "there is no dataset 'cifar11'; did you mean"),
        (["data=nowhere/at/all"], "nowhere/at/all"),
        (["model.config.hidden=3"], "model.config.hidden: ViTConfig has no such setting"),
        (["relu.batch_size=64"], "batch_size 64 is more than the 40 training samples"),
        (["data=null"], "no data: name it with data.name and data.source"),
    ],
)
def test_errors_name_what_is_wrong(home: Path, tmp_path: Path, settings: list[str], says: str) -> None:
    first = ["--set", f"data={home / 'cifar'}", f"output={tmp_path / 'run'}"]
    assert says in fails("train", home / "tiny.yaml", *first, *settings, "--cpu")


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    assert "none.yaml: cannot be read" in fails("train", tmp_path / "none.yaml")


def test_a_text_model_with_its_tokenizer(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIKEZIP_CACHE", str(tmp_path / "cache"))
    settings = [f"model={home / 'bert'}", f"data={home}", f"output={tmp_path / 'run'}", "data.max_length=8"]
    said = ok("train", home / "words.yaml", "--set", *settings, "--cpu")
    assert "certificate" in said.stdout
    assert (tmp_path / "run" / "snn" / "tokenizer.json").is_file()
    assert list((tmp_path / "cache" / "tokens").glob("tokens-*.npz"))
    assert ok("verify", tmp_path / "run" / "qann", "--data", home / "dev.tsv", "--samples", 3).stdout.startswith(
        "exact"
    )


def test_stopping_is_not_an_accident(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C: a checkpoint, one line that says how to go on, and the run goes on from there."""
    args = ("train", home / "tiny.yaml", "--set", f"data={home / 'cifar'}", f"output={tmp_path / 'run'}", "--cpu")
    ask = StopOnSignal.on_step_end

    def interrupted(self: Any, arguments: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        ask(self, arguments, state, control, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_step_end", interrupted)
        assert "stopped in stage relu at step 3 of 4; saved in" in fails(*args, code=130)
    assert ok(*args, "--resume").stdout.splitlines()[-1].startswith("everything is in")
