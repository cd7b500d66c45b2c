"""`spikezip attention`: from networks and data to a figure and its document."""

from pathlib import Path

import numpy as np
import pytest
from shell import fails, ok, run

from spikezip.cli.data import Samples
from spikezip.cli.shown_samples import take
from spikezip.show import looking
from spikezip.show.attention_document import AttentionDocument


def words(home: Path, name: str = "vit", data: str = "images.npz") -> tuple[object, ...]:
    return "attention", home / f"{name}-snn", "--qann", home / f"{name}-qann", "--data", home / data


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def simulated(*args: object, **settings: object) -> None:
        raise AssertionError("a mistake must be found before anything is simulated")

    monkeypatch.setattr(looking, "simulate", simulated)


def test_images(home: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "a.png", tmp_path / "a.json"
    said = ok(*words(home), "--samples", "7,0", "--at", "1,3,99", "--out", out, "--json", file, "--engine", "spike")
    assert said == f"attention → {file}\nfigure → {out}\n"
    assert out.read_bytes().startswith(b"\x89PNG")
    found = AttentionDocument.load(file)
    assert (found.name, found.steps, found.settings.engine) == ("vit-snn", (1, 3, 99), "spike")
    assert (found.data, found.class_) == (str(home / "images.npz"), "ViTForImageClassification")
    assert found.command is not None
    assert [sample.index for sample in found.samples] == [7, 0]
    with np.load(home / "images.npz") as arrays:
        for sample in found.samples:
            assert sample.picture is not None
            assert (sample.picture.tensor().numpy() == arrays["x"][sample.index]).all()
            assert sample.label == f"class {arrays['y'][sample.index]}"
            assert sample.weights[-1] == sample.qann
    assert len(found.figure().axes) == 2 * 5


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("PDF", b"%PDF")])
def test_the_ending_says_how(home: Path, tmp_path: Path, ending: str, start: bytes) -> None:
    out = tmp_path / f"a.{ending}"
    ok(*words(home), "--at", "2", "--out", out)
    assert out.read_bytes().startswith(start)


def test_a_text(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    given = words(home, "bert", "dev.tsv")
    ok(*given, "--samples", 3, "--out", tmp_path / "a.svg", "--json", file, "--name", "b", "--map", "rolled out")
    found = AttentionDocument.load(file)
    assert (found.name, found.map) == ("b", "rolled out")
    (sample,) = found.samples
    assert (sample.tokens[0], sample.tokens[-1]) == ("[CLS]", "[SEP]")
    assert sample.label == "class 1"
    text = (tmp_path / "a.svg").read_text("utf-8")
    assert f"attention of the first token (class 1, SNN: {sample.answer})" in text


@pytest.mark.usefixtures("nothing_runs")
def test_mistakes(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.svg").mkdir()
    given = *words(home), "--out", tmp_path / "b.svg"
    for wrong, problem in (
        (("--samples", "0,10"), "images.npz holds 10 samples, counted from 0"),
        (("--samples", "-1"), "--samples -1: samples are counted from 0"),
        (("--samples", "0,x"), "--samples 0,x: write whole numbers with commas between them"),
        (("--samples", "2,3,2"), "--samples 2,3,2: 2 stands there twice"),
        (("--at", "4,0"), "--at 4,0: steps are counted from 1"),
        (("--at", "4,4"), "--at 4,4: 4 stands there twice"),
        (("--at", "4,"), "--at 4,: write whole numbers"),
        (("--map", "layer"), "no attention map 'layer'; there are layers.0.attention.p, rolled out"),
        (("--out", tmp_path / "a.gif"), "a.gif: a figure is written as .png, .svg, .pdf"),
        (("--out", tmp_path / "none"), "none: a figure is written as .png, .svg, .pdf"),
        (("--out", tmp_path / "a.svg"), "a.svg is a folder; a file is needed"),
        (("--json", tmp_path), "is a folder; a file is needed"),
        (("--json", tmp_path / "b.svg"), "--out and --json both name"),
        (("--qann", home / "vit-snn"), "here a QANN is needed"),
        (("--qann", home / "bert-qann"), "the QANN is another network"),
        (("--data", home / "dev.tsv"), "takes pixel_values, not text"),
        (("--engine", "warp"), "choose one of folded, spike"),
    ):
        assert problem in fails(*given, *wrong)
    texts = *words(home, "bert", "dev.tsv"), "--out", tmp_path / "b.svg"
    assert "--samples 0,1: a figure of words shows one text; name one sample" in fails(*texts, "--samples", "0,1")
    assert list(tmp_path.iterdir()) == [tmp_path / "a.svg"]
    assert run("attention", home / "vit-snn").exit_code == 2  # no --data


def test_matplotlib_is_asked_for_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spikezip.show.need.find_spec", lambda name: None)
    assert "pictures need matplotlib: pip install 'spikezip[show]'" in fails("attention", "no-such", "--data", "none")


def test_take() -> None:
    paths = [Path("a.png"), Path("b.png"), Path("c.png")]
    assert take(Samples(images=paths, labels=["x", "y", "z"]), [2, 0]) == Samples(
        images=[paths[2], paths[0]], labels=["z", "x"]
    )
    images = take(Samples(images=np.arange(4).reshape(4, 1, 1)), [3, 1]).images
    assert isinstance(images, np.ndarray)
    assert images.flatten().tolist() == [3, 1]


def test_from_the_figure_to_the_page(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "recipes").mkdir()
    Path("results/page.md").write_text("![looks]({{ attention vit* }})\n", encoding="utf-8")
    ok("results", "build")
    assert "looks" not in Path("docs/results.md").read_text("utf-8")
    ok(*words(home), "--samples", "0,1", "--at", "2,4", "--json", "a.json")
    assert Path("attention.svg").is_file()
    assert ok("results", "add", "a.json", "--name", "vit") == "a.json → results/attention/vit.json\n"
    assert str(home) not in Path("results/attention/vit.json").read_text("utf-8")
    ok("results", "build")
    assert "![looks](img/results/attention-vit.svg)" in Path("docs/results.md").read_text("utf-8")
    ok("results", "build", "--check")
    Path("docs/img/results/attention-vit.svg").unlink()
    assert "attention-vit.svg does not show what the files give" in run("results", "build", "--check").stderr
