"""`spikezip inspect`: what is in a folder, what would become of a model."""

from pathlib import Path

from shell import ok, run, save_longformer


def test_inspect_shows_sites(home: Path) -> None:
    for kind in ("qann", "snn"):
        text = ok("inspect", home / f"vit-{kind}")
        assert f"ViTForImageClassification, {kind.upper()}" in text
        assert "12 sites, 16 levels, 8 at *.p, 8-bit weights" in text
        assert "layers.0.attention.p" in text
        assert "0…7" in text


def test_inspect_says_what_is_on_a_grid_and_per_channel(home: Path, tmp_path: Path) -> None:
    ok(
        *("quantize", home / "bert", tmp_path / "qann", "--data", home / "dev.tsv", "--embedding-bits", 8),
        *("--per-channel", "*.LayerNorm", "--site", "*.o=16"),
    )
    ok("convert", tmp_path / "qann", tmp_path / "snn")
    for kind in ("qann", "snn"):
        text = ok("inspect", tmp_path / kind)
        assert "32 levels, 16 at *.o, per channel at *.LayerNorm, 8-bit weights, 8-bit embeddings" in text
        row = next(line for line in text.splitlines() if "embeddings.LayerNorm" in line)
        assert row.count("…") == 2  # lo…hi and the range of the scales
        assert "(16 channels)" in row


def test_inspect_needs_only_the_config_of_a_float_model(home: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((home / "vit" / "config.json").read_text())
    text = ok("inspect", tmp_path)
    assert "ViTForImageClassification: 12 sites, 10 products" in text
    assert "complete" in text


def test_inspect_of_a_model_that_cannot_be_captured_exits_with_1(tmp_path: Path) -> None:
    save_longformer(tmp_path)
    result = run("inspect", tmp_path)
    assert result.exit_code == 1
    assert "LongformerForSequenceClassification cannot be captured" in result.stdout
