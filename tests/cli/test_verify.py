"""`spikezip verify`: the certificate and the exit code."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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


# ---- against the certificate of another machine


@pytest.fixture(scope="module")
def there(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text network and its certificate over seven samples."""
    folder = tmp_path_factory.mktemp("there")
    shutil.copytree(home / "bert-qann", folder / "qann", ignore=shutil.ignore_patterns("certificate.json"))
    _verify(folder, home, "--samples", 7)
    (folder / "qann" / "certificate.json").rename(folder / "certificate.json")
    return folder


def _command(folder: Path, home: Path, *more: object) -> tuple[object, ...]:
    return ("verify", folder / "qann", "--data", home / "dev.tsv", *more)


def _verify(folder: Path, home: Path, *more: object) -> str:
    return ok(*_command(folder, home, *more))


def _against(there: Path, tmp_path: Path, **changes: Any) -> tuple[object, ...]:
    """Options that name a copy of the certificate in which something is changed."""
    file = tmp_path / "certificate.json"
    file.write_text(json.dumps({**json.loads((there / "certificate.json").read_text()), **changes}))
    return "--samples", 7, "--against", file


def test_against_the_same(there: Path, home: Path, tmp_path: Path) -> None:
    spikezip.save(spikezip.convert(spikezip.load(there / "qann")), tmp_path / "snn")
    arguments = _command(there, home, *_against(there, tmp_path), "--batch-size", 3, "--engine", "spike")
    text = ok(*arguments[:2], tmp_path / "snn", *arguments[2:])
    sites = len(spikezip.load(there / "qann").sites)
    assert text.endswith(f"\nequal to {tmp_path / 'certificate.json'}: {sites} sites, outputs\n")
    written = spikezip.Certificate.from_json((tmp_path / "snn" / "certificate.json").read_text())
    assert written.against(spikezip.Certificate.from_json((there / "certificate.json").read_text())) is None


def test_against_one_that_differs(there: Path, home: Path, tmp_path: Path) -> None:
    hashes = json.loads((there / "certificate.json").read_text())["hashes"]
    sites = list(hashes)
    changes: dict[str, Any] = {"hashes": {**hashes, sites[5]: "0" * 64, sites[3]: "1" * 64}, "batch_size": 7}
    result = run(*_command(there, home, *_against(there, tmp_path, **changes), "--batch-size", 4))
    assert result.exit_code == 1
    assert result.stdout.startswith("exact\n")
    said = f"NOT equal to {tmp_path / 'certificate.json'}: first at {sites[3]}; 2 of {len(sites)} sites differ\n"
    assert said in result.stdout
    assert "batches had 7 samples there, 4 here" in result.stdout


def test_against_another_network(there: Path, home: Path, tmp_path: Path) -> None:
    other = spikezip.load(there / "qann")
    with torch.no_grad():
        weight = other.get_parameter("bert.encoder.layer.0.output.dense.weight")
        weight[0, 0] += weight[0].abs().max()
    spikezip.save(other, tmp_path / "qann")
    line = fails(*_command(tmp_path, home, *_against(there, tmp_path)))
    assert f"--against {tmp_path / 'certificate.json'}: the certificate is of another network, " in line
    assert not (tmp_path / "qann" / "certificate.json").exists(), "refused before the work"


def test_against_other_data(there: Path, home: Path, tmp_path: Path) -> None:
    lines = (home / "dev.tsv").read_text().splitlines()
    (tmp_path / "dev.tsv").write_text("\n".join([*lines[:3], "0\tso dull", *lines[4:]]) + "\n")
    options = _against(there, tmp_path)
    assert "the certificate is of other data: take the same samples" in fails(*_command(there, tmp_path, *options))
    (tmp_path / "dev.tsv").write_text("\n".join([lines[0], *reversed(lines[1:8])]) + "\n")
    ok(*_command(there, tmp_path, *options))  # the same samples in another order
    labels = [line if not number else f"0\t{line[2:]}" for number, line in enumerate(lines)]
    (tmp_path / "dev.tsv").write_text("\n".join(labels) + "\n")
    ok(*_command(there, tmp_path, *options))  # labels are no inputs


def test_against_what_cannot_be_compared(there: Path, home: Path, tmp_path: Path) -> None:
    options = _against(there, tmp_path)
    line = fails(*_command(there, home, *options[2:]))
    assert "the certificate is of 7 samples, here are 9: take as many (--samples)" in line
    old = _against(there, tmp_path)[-1]
    content = json.loads(Path(str(old)).read_text())
    first = ("exact", "sites", "codes", "samples", "mismatches", "output_mismatches", "unsettled", "first_mismatch")
    Path(str(old)).write_text(json.dumps({key: content[key] for key in (*first, "t_eq", "settings")}))
    assert "the certificate has no hashes: make it again with `verify`" in fails(*_command(there, home, *options))
    options = _against(there, tmp_path, by_batch=["embeddings"], batch_size=7)
    assert "batches of 7 samples only, by 'embeddings'; here they have 4" in fails(
        *_command(there, home, *options, "--batch-size", 4)
    )
    (tmp_path / "certificate.json").write_text("{}")
    assert "certificate.json: this is not a spikezip certificate" in fails(*_command(there, home, *options))
    (tmp_path / "certificate.json").unlink()
    assert "No such file" in fails(*_command(there, home, *options))


def test_the_certificate_that_it_is_compared_with_stays(there: Path, home: Path, tmp_path: Path) -> None:
    shutil.copytree(there / "qann", tmp_path / "qann")
    file = tmp_path / "qann" / "certificate.json"
    shutil.copyfile(there / "certificate.json", file)
    before = file.read_bytes()
    text = _verify(tmp_path, home, "--samples", 7, "--against", file, "--engine", "spike")
    assert "equal to" in text
    assert "certificate →" not in text
    assert file.read_bytes() == before
