"""`spikezip quantize` and `spikezip convert`: what they write, and what they refuse."""

from pathlib import Path

import pytest
from shell import fails, ok, run

import spikezip


def test_quantize_sets_what_it_was_told(home: Path) -> None:
    qann = spikezip.load(home / "vit-qann")
    assert qann.kind == "qann"
    assert qann.quant_config == spikezip.QuantConfig(levels=16, sites={"*.p": spikezip.SiteConfig(levels=8)})
    assert spikezip.load(home / "bert-qann").quant_config.weight_bits == 16


def test_tokenizer_and_processor_files_go_along(home: Path) -> None:
    for kind in ("qann", "snn"):
        assert (home / f"bert-{kind}" / "tokenizer.json").is_file()
        assert (home / f"vit-{kind}" / "preprocessor_config.json").is_file()


def test_nothing_of_others_is_overwritten(home: Path) -> None:
    weights = (home / "vit" / "model.safetensors").read_bytes()
    assert "would be overwritten" in fails("quantize", home / "vit", home / "vit", "--data", home / "images.npz")
    assert "would be overwritten" in fails("convert", home / "vit-qann", home / "vit")
    assert "choose another folder" in fails("convert", home / "vit-qann", home / "vit-qann")
    assert (home / "vit" / "model.safetensors").read_bytes() == weights


def test_a_new_network_does_not_inherit_a_certificate(home: Path, tmp_path: Path) -> None:
    ok("convert", home / "vit-qann", tmp_path / "snn")
    (tmp_path / "snn" / "certificate.json").write_text("{}")
    ok("convert", home / "vit-qann", tmp_path / "snn")
    assert not (tmp_path / "snn" / "certificate.json").exists()


def test_a_pattern_that_matches_no_site(home: Path, tmp_path: Path) -> None:
    line = fails("quantize", home / "vit", tmp_path, "--data", home / "images.npz", "--site", "nowhere=8")
    assert "no site matches 'nowhere'" in line


@pytest.mark.filterwarnings("default:a differential operator:UserWarning")
def test_warnings_are_one_line(home: Path, tmp_path: Path) -> None:
    result = run("quantize", home / "bert", tmp_path / "qann", "--data", home / "dev.tsv", "--batches", 1)
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: a differential operator in the spiking network: GELUActivation, Tanh")
    assert result.stderr.count("\n") == 1
