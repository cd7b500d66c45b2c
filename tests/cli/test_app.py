"""What the verbs share: help, versions, errors of one line, exit codes."""

import sys
import types
from pathlib import Path

import pytest
from shell import fails, ok, run

import spikezip
import spikezip.cli

VERBS = [
    "quantize",
    "train",
    "convert",
    "verify",
    "simulate",
    "measure",
    "compare",
    "results",
    "tune",
    "exits",
    "report",
    "attention",
    "inspect",
    "demo",
]


def test_version_and_help() -> None:
    assert ok("--version") == f"spikezip {spikezip.__version__}\n"
    for verb in VERBS:
        assert f"spikezip {verb}" in ok(verb, "--help").split("Example")[1]


def test_demo_returns_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = types.ModuleType("spikezip.demo")
    demo.run = lambda console=None: console.print("hello") or 3
    monkeypatch.setitem(sys.modules, "spikezip.demo", demo)
    result = run("demo")
    assert (result.exit_code, result.stdout) == (3, "hello\n")


def test_wrong_settings_are_refused_before_anything_is_loaded(home: Path) -> None:
    quantize = ("quantize", "no-such-model", "out", "--data", home / "images.npz")
    assert "levels=7" in fails(*quantize, "--levels", 7)
    assert "weight_bits=4" in fails(*quantize, "--weight-bits", 4)
    assert "--weight-bits many" in fails(*quantize, "--weight-bits", "many")
    assert "embedding_bits=4" in fails(*quantize, "--embedding-bits", 4)
    assert "--embedding-bits few" in fails(*quantize, "--embedding-bits", "few")
    assert "--compact: nothing lies on an integer grid" in fails(*quantize, "--weight-bits", "none", "--compact")
    assert "PATTERN=LEVELS" in fails(*quantize, "--site", "*.p")
    assert "--task dance" in fails(*quantize, "--task", "dance")
    assert "choose one of folded, spike" in fails("verify", "q", "--data", "d", "--engine", "warp")
    assert "choose one of analog, rate" in fails("verify", "q", "--data", "d", "--coding", "morse")
    assert "--steps soon" in fails("simulate", "s", "--data", "d", "--steps", "soon")
    assert run("simulate", "s", "--data", "d", "--samples", "0").exit_code == 2


def test_folders_that_are_not_what_they_should_be(home: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    images = home / "images.npz"
    assert "holds no spikezip.json" in fails("convert", empty, tmp_path / "out")
    assert "run `spikezip quantize`" in fails("convert", home / "vit", tmp_path / "out")
    assert "here a QANN is needed" in fails("convert", home / "vit-snn", tmp_path / "out")
    assert "here an SNN is needed" in fails("simulate", home / "vit-qann", "--data", images)
    assert "there is no folder" in fails("convert", tmp_path / "no" / "such", tmp_path / "out")
    assert "is a file" in fails("inspect", images)
    assert "not a transformers model" in fails("inspect", empty)
    assert "quantized already" in fails("quantize", home / "vit-qann", tmp_path / "out", "--data", images)


def test_a_name_that_the_hub_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("no connection\nsecond line")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    line = fails("convert", "some/name", tmp_path / "out")
    assert line == "error: some/name is neither a folder here nor reachable on the Hub: no connection\n"


def test_traceback_on_request(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("inspect", home / "images.npz", "--traceback")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    monkeypatch.setenv("SPIKEZIP_TRACEBACK", "1")
    assert "Traceback" in run("inspect", home / "images.npz").stderr


def test_without_typer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(spikezip.cli, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        spikezip.cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "the command line needs typer and rich: pip install 'spikezip[cli]'\n"
