"""`spikezip quantize` and `spikezip convert`: what they write, and what they refuse."""

import json
from pathlib import Path

import pytest
import torch
from shell import fails, ok, run

import spikezip
from spikezip.cli.data import Samples, batches
from spikezip.program.rotate import is_rotated
from spikezip.quant.snap import snap


def test_quantize_sets_what_it_was_told(home: Path) -> None:
    qann = spikezip.load(home / "vit-qann")
    assert qann.kind == "qann"
    assert qann.quant_config == spikezip.QuantConfig(levels=16, sites={"*.p": spikezip.SiteConfig(levels=8)})
    assert spikezip.load(home / "bert-qann").quant_config.weight_bits == 16


def test_embedding_bits(home: Path, tmp_path: Path) -> None:
    ok("quantize", home / "bert", tmp_path / "qann", "--data", home / "dev.tsv", "--embedding-bits", 16)
    qann = spikezip.load(tmp_path / "qann")
    assert (qann.quant_config.weight_bits, qann.quant_config.embedding_bits) == (8, 16)
    assert spikezip.load(home / "bert-qann").quant_config.embedding_bits is None


def test_a_scale_per_channel(home: Path, tmp_path: Path) -> None:
    args = ("quantize", home / "bert", tmp_path / "qann", "--data", home / "dev.tsv", "--per-channel", "*.LayerNorm")
    ok(*args, "--site", "*.LayerNorm=64", "--site", "*.p=16", "--effort", "quick")
    qann = spikezip.load(tmp_path / "qann")
    for name, site in qann.sites.items():
        assert site.by_channel == name.endswith(".LayerNorm")
        assert site.levels == (64 if name.endswith(".LayerNorm") else 16 if name.endswith(".p") else 32)
    ok("verify", tmp_path / "qann", "--data", home / "dev.tsv", "--samples", 3)


def test_per_channel_that_cannot_be(home: Path, tmp_path: Path) -> None:
    args = ("quantize", home / "bert", tmp_path / "qann", "--data", home / "dev.tsv", "--per-channel")
    assert "no site matches '*.layer_norm'" in fails(*args, "*.layer_norm")
    assert "one scale for all channels" in fails(*args, "*.q")
    overlap = "site 'embeddings.LayerNorm' is named by --site 'embeddings.*' and by --per-channel '*.LayerNorm'"
    assert overlap in fails(*args, "*.LayerNorm", "--site", "embeddings.*=64")
    assert not (tmp_path / "qann").exists()


@pytest.mark.parametrize("bits", [8, 16])
def test_compact_is_the_same_network_in_less_space(home: Path, tmp_path: Path, bits: int) -> None:
    args = ("--data", home / "images.npz", "--weight-bits", bits)
    ok("quantize", home / "vit", tmp_path / "plain", *args)
    text = ok("quantize", home / "vit", tmp_path / "compact", *args, "--compact")
    assert "moved" not in text
    manifest = json.loads((tmp_path / "compact" / "spikezip.json").read_text())
    assert {entry["bits"] for entry in manifest["packed"].values()} == {bits}
    assert json.loads((tmp_path / "plain" / "spikezip.json").read_text())["packed"] == {}
    assert (tmp_path / "compact" / "preprocessor_config.json").is_file()
    plain, compact = (spikezip.load(tmp_path / name).eval() for name in ("plain", "compact"))
    pixels = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(compact(pixels).logits, plain(pixels).logits)


def test_compact_says_that_scales_moved(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Scales move only behind some scales per channel, by one bit: here snapping says so of a network where they stay.
    monkeypatch.setattr(spikezip, "snap", lambda qann: snap(qann) + 1.2e-7)
    args = ("quantize", home / "vit", tmp_path / "qann", "--data", home / "images.npz", "--compact")
    assert ok(*args).startswith("compact weights: scales moved by up to 1.2e-07 of their value\n")


def test_a_split_of_a_dataset(home: Path, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("label\tsentence\n1\tso good\n0\tso bad\n1\tvery fine\n")
    (tmp_path / "dev.tsv").write_text("label\tsentence\n1\ta film\n")
    args = ("quantize", home / "bert", tmp_path / "qann", "--data")
    assert "calibrated on 3 samples" in ok(*args, f"sst2:{tmp_path}#train")
    assert "calibrated on 1 samples" in ok(*args, f"sst2:{tmp_path}")
    assert "behind # stands train, validation or test, not 'dev'" in fails(*args, f"sst2:{tmp_path}#dev")


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
    result = run("quantize", home / "bert", tmp_path / "qann", "--data", home / "dev.tsv", "--samples", 8)
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: a differential operator in the spiking network: gelu, tanh")
    assert result.stderr.count("\n") == 1


def test_effort_placement_and_equal_levels(home: Path, tmp_path: Path) -> None:
    args = ("quantize", home / "vit", "--data", home / "images.npz", "--levels", 16, "--placement", "products")
    text = ok(args[0], args[1], tmp_path / "shared", *args[2:])
    assert " levels, 1" in text
    assert " on average, calibrated on " in text
    text = ok(args[0], args[1], tmp_path / "equal", *args[2:], "--equal-levels", "--samples", 4, "--seed", 1)
    assert "16 levels, calibrated on 4 samples" in text
    ok(args[0], args[1], tmp_path / "quick", *args[2:], "--effort", "quick")
    ok(args[0], args[1], tmp_path / "plain", *args[2:], "--no-rotate")
    plain = spikezip.load(tmp_path / "plain")
    assert plain.quant_config.rotate is False
    assert not is_rotated(plain.program)
    shared, equal, quick = (spikezip.load(tmp_path / name) for name in ("shared", "equal", "quick"))
    levels = [site.levels for site in shared.sites.values()]
    assert len(set(levels)) > 1
    assert 15 < sum(levels) / len(levels) <= 16
    for network, by_channel in ((equal, True), (quick, False)):
        assert {site.levels for site in network.sites.values()} == {16}
        assert any(site.by_channel for site in network.sites.values()) == by_channel
        assert not any(name.endswith("fc2") for name in network.sites)
    ok("convert", tmp_path / "shared", tmp_path / "snn")
    ok("verify", tmp_path / "shared", tmp_path / "snn", "--data", home / "images.npz", "--samples", 4)
    assert "choose one of quick, default" in fails(args[0], args[1], tmp_path / "x", *args[2:], "--effort", "fast")


def test_samples_are_drawn_from_all_of_the_data(home: Path) -> None:
    """Files are often sorted by label: the first samples would be of one class."""
    model = spikezip.load(home / "bert-qann")
    samples = Samples(texts=["so good"] * 500 + ["so bad"] * 500, labels=[1] * 500 + [0] * 500)

    def labels(drawn_by: int | None) -> list[int]:
        found = batches(samples, model, home / "bert", 16, 64, drawn_by)
        return [int(label) for batch in found for label in batch["labels"]]

    assert labels(None) == [1] * 64
    assert 20 < sum(labels(0)) < 44
    assert labels(0) == labels(0) != labels(1)
