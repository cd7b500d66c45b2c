"""`spikezip verify`: the certificate and the exit code."""

import json
from pathlib import Path

import numpy as np
import pytest
from shell import fails, ok, run

import spikezip


@pytest.mark.parametrize(("name", "file"), [("vit", "images.npz"), ("bert", "dev.tsv")])
def test_verify_is_exact_and_writes_the_certificate(home: Path, name: str, file: str) -> None:
    text = ok("verify", home / f"{name}-qann", home / f"{name}-snn", "--data", home / file, "--batch-size", 4)
    assert text.startswith("exact\n")
    certificate = spikezip.Certificate.from_json((home / f"{name}-snn" / "certificate.json").read_text())
    assert certificate.exact
    assert certificate.samples == (10 if name == "vit" else 9)


def test_verify_without_snn_and_with_other_settings(home: Path) -> None:
    text = ok(
        *("verify", home / "vit-qann", "--data", home / "images.npz", "--samples", 3),
        *("--engine", "spike", "--coding", "rate", "--max-spike", 4, "--stagger", 0.5),
    )
    certificate = json.loads((home / "vit-qann" / "certificate.json").read_text())
    assert certificate["samples"] == 3
    settings = certificate["settings"]
    assert (settings["engine"], settings["coding"], settings["max_spike"]) == ("spike", "rate", 4)
    assert settings["stagger"] == 0.5
    assert "largest spike 4, stagger 0.5" in text


def test_verify_says_no_with_exit_code_1(home: Path, tmp_path: Path) -> None:
    other = spikezip.load(home / "vit-qann")
    other.scale(next(iter(other.sites))).data.mul_(3)
    spikezip.save(spikezip.convert(other), tmp_path / "other")
    result = run("verify", home / "vit-qann", tmp_path / "other", "--data", home / "images.npz")
    assert result.exit_code == 1
    assert result.stdout.startswith("NOT exact\n")
    assert "first difference" in result.stdout
    assert not json.loads((tmp_path / "other" / "certificate.json").read_text())["exact"]


def test_images_of_another_size(home: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "large.npz", x=np.zeros((1, 3, 32, 32), np.float32))
    line = fails("verify", home / "vit-qann", "--data", tmp_path / "large.npz")
    assert "pixel_values has the shape [1, 3, 32, 32], but [b, 3, 16, 16] is needed" in line
