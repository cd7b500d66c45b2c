"""The figure as a document: what is in it, that it comes back as it was, and what is drawn from it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from shown import BERT, VIT, networks

from spikezip.errors import ConfigError, InputError
from spikezip.show import attention_figure, attention_maps, look, looking
from spikezip.show.attention_document import AttentionDocument, Picture
from spikezip.show.feature_map import Row, draw_images, masked

AT = (1, 4, 99)


@pytest.fixture(scope="module")
def document() -> AttentionDocument:
    """Two images of the tiny ViT, the later one first."""
    qann, snn, batch = networks(VIT)
    return look(snn, batch, qann, samples=[2, 0], indices=[12, 10], at=AT, name="tiny", data="images", engine="spike")


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def simulated(*args: object, **settings: object) -> None:
        raise AssertionError("a mistake must be found before anything is simulated")

    monkeypatch.setattr(looking, "simulate", simulated)


def test_weights_are_shares_of_the_largest(document: AttentionDocument) -> None:
    qann, snn, batch = networks(VIT)
    for sample, place in zip(document.samples, (2, 0), strict=True):
        one = attention_maps(snn, batch, qann, sample=place).last_layer
        assert sample.top == float(one.qann.max())
        for step, weights in zip(AT[:2], sample.weights, strict=False):
            expected = one.over_time[step - 1].double() / one.top
            assert weights == tuple(round(value, 4) for value in expected.tolist())
        assert sample.weights[2] == sample.qann  # long after equilibrium
        assert sample.weights[0] != sample.qann
        assert max(sample.qann) == 1


def test_facts(document: AttentionDocument) -> None:
    _, snn, batch = networks(VIT)
    assert [sample.index for sample in document.samples] == [12, 10]
    assert (document.map, document.source) == ("layers.1.attention.p", "the class token")
    assert (document.name, document.class_, document.levels, document.data) == ("tiny", VIT, 16, "images")
    assert (document.settings.engine, document.settings.steps) == ("spike", "equilibrium")
    said = snn(**{key: value for key, value in batch.items() if key != "labels"}).logits.argmax(dim=-1).tolist()
    assert [sample.label for sample in document.samples] == ["class 1", "class 0"]
    assert [sample.answer for sample in document.samples] == [f"class {said[2]}", f"class {said[0]}"]
    assert all(sample.t_eq and sample.t_eq > 4 for sample in document.samples)


def test_round_trip(document: AttentionDocument, tmp_path: Path) -> None:
    path = document.save(tmp_path / "a.json")
    assert AttentionDocument.load(path) == document
    plain = json.loads(path.read_text("utf-8"))
    assert (plain["format"], plain["version"], plain["class"]) == ("spikezip-attention", 1, VIT)
    image = torch.randint(0, 256, (3, 5, 3), dtype=torch.uint8)
    assert torch.equal(Picture.of(image).tensor(), image)


def test_the_figure_is_that_of_the_networks(document: AttentionDocument) -> None:
    qann, snn, batch = networks(VIT)
    axes = document.figure().axes
    assert [axis.get_title() for axis in axes] == ["input", "T = 1", "T = 4", "T = 99", "QANN", *[""] * 5]
    for row, place in zip((axes[:5], axes[5:]), (2, 0), strict=True):
        direct = attention_figure(snn, batch, qann, sample=place, at=AT).axes
        for one, other in zip(row, direct, strict=True):
            far = one.images[0].get_array().astype(int) - other.images[0].get_array().astype(int)
            assert abs(far).max() <= 1  # weights of four decimals: a byte may be rounded to its neighbour
    answers = [axis.texts[0].get_text() for axis in (axes[0], axes[5])]
    assert answers == [sample.said for sample in document.samples]
    assert answers[0].splitlines()[0] == "class 1"


def test_pixels_are_masked_by_the_weights_of_the_document(document: AttentionDocument) -> None:
    sample = document.samples[0]
    assert sample.picture is not None
    dark = replace(sample, weights=((0.0,) * 16, *sample.weights[1:]))
    shown = replace(document, samples=(dark,)).figure().axes[1].images[0].get_array()
    expected = masked(sample.picture.tensor(), torch.zeros(16), (4, 4)).expand(-1, -1, 3)
    assert torch.equal(torch.tensor(shown), expected)


def test_nothing_overlaps_and_nothing_is_cut_off(document: AttentionDocument) -> None:
    long = replace(document.samples[0], label="a very long name of a class, with more behind", answer="$5 {bill")
    figure = replace(document, samples=(long, document.samples[1])).figure()
    figure.draw_without_rendering()
    boxes = [axis.get_window_extent() for axis in figure.axes]
    boxes += [text.get_window_extent() for axis in figure.axes for text in (axis.title, *axis.texts) if text.get_text()]
    assert len(boxes) == 10 + 5 + 2
    for number, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])


def test_a_text() -> None:
    qann, snn, batch = networks(BERT)
    found = look(snn, batch, qann, samples=[1], at=(1, 2))
    (sample,) = found.samples
    assert (len(sample.tokens), sample.picture, sample.grid) == (5, None, None)
    (axis,) = found.figure().axes
    assert len(axis.texts) == 3 * 5
    assert axis.get_title() == f"attention of the first token (class 2, SNN: {sample.answer})"


def test_networks_without_classes() -> None:
    for name in ("ViTModel", "GPT2LMHeadModel"):
        qann, snn, batch = networks(name)
        (sample,) = look(snn, batch, qann, samples=[0], at=(2,)).samples
        assert (sample.label, sample.answer, sample.said) == (None, None, "")


def test_another_map(document: AttentionDocument) -> None:
    qann, snn, batch = networks(VIT)
    other = look(snn, batch, qann, samples=[2], at=AT, map="rolled out")
    assert other.map == "rolled out"
    assert other.samples[0].qann != document.samples[0].qann


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("name", "wrong", "problem"),
    [
        (VIT, {"map": "x"}, r"no attention map 'x'; there are layers\.0\.attention\.p, layers\.1\..*, rolled out"),
        (VIT, {"at": (0, 1)}, "steps are counted from 1"),
        (VIT, {"at": (2, 2)}, "each stands once"),
        (VIT, {"at": ()}, "steps are counted from 1"),
        (VIT, {"samples": [0, 3]}, "there is no sample 3: the batch holds 3"),
        (VIT, {"samples": [1, 1]}, r"samples=\(1, 1\): at least one is needed, and each once"),
        (VIT, {"samples": [1], "indices": [4, 5]}, "indices: expected 1, one for each sample, not 2"),
        (BERT, {}, "a figure of words shows one text, not 3: choose one sample"),
    ],
)
def test_mistakes_are_found_before_any_simulation(name: str, wrong: dict[str, Any], problem: str) -> None:
    qann, snn, batch = networks(name)
    with pytest.raises((InputError, ConfigError), match=problem):
        look(snn, batch, qann, **wrong)


@pytest.mark.usefixtures("nothing_runs")
def test_another_network_and_other_labels_are_refused() -> None:
    _, snn, batch = networks(VIT)
    with pytest.raises(ConfigError, match="the QANN is another network"):
        look(snn, batch, networks("DeiTForImageClassification")[0])
    with pytest.raises(InputError, match="the label 7 does not fit the head"):
        look(snn, {**batch, "labels": torch.tensor([0, 7, 1])})


def test_what_is_no_document(document: AttentionDocument, tmp_path: Path) -> None:
    def loaded(**changes: Any) -> None:
        path = tmp_path / "a.json"
        path.write_text(json.dumps(document.to_json() | changes), encoding="utf-8")
        AttentionDocument.load(path)

    loaded()
    first, second = document.to_json()["samples"]
    for changes, problem in (
        ({"format": "spikezip-measurement"}, r"a\.json: this is no attention document: `spikezip attention … --json"),
        ({"version": 2}, r"a\.json: this attention document has version 2, here 1 is read"),
        ({"steps": [1, 0, 2]}, "steps: expected whole numbers from 1, each once"),
        ({"steps": [1, 2]}, "sample 12 has weights for 3 steps, not for 2"),
        ({"samples": []}, "samples: expected at least one"),
        ({"samples": [first, first]}, "samples: expected at least one, and each once"),
        ({"samples": [first | {"qann": [1.0]}]}, r"samples\[0\]: qann: expected 16 weights, one for each place, not 1"),
        ({"samples": [first | {"grid": [16]}]}, "grid: expected height and width in patches"),
        ({"samples": [first | {"picture": None}]}, "expected a picture and its grid, or tokens"),
        ({"samples": [first | {"picture": first["picture"] | {"width": 3}}]}, r"picture: bytes: expected 288 for"),
        ({"samples": [first | {"picture": first["picture"] | {"bytes": "%%"}}]}, "bytes: not base64"),
        ({"samples": [second | {"weights": [[1.0, "a"]]}]}, r"samples\[0\]\.weights\[0\]\[1\]: expected a number"),
        ({"more": 1}, "unknown key 'more'"),
    ):
        with pytest.raises(InputError, match=problem):
            loaded(**changes)


def test_some_of_the_samples(document: AttentionDocument) -> None:
    assert document.only([10, 12]).samples == document.samples[::-1]
    with pytest.raises(InputError, match="there is no sample 0 in 'tiny'; there is 12, 10"):
        document.only([12, 0])


def test_rows_of_other_shapes_stand_below_each_other() -> None:
    square, wide = (torch.zeros(shape, dtype=torch.uint8) for shape in ((32, 32, 3), (8, 32, 1)))
    axes = draw_images([Row(image, (2, 2), [torch.ones(4)] * 4) for image in (square, wide)], AT).axes
    first, second = (axis.get_window_extent() for axis in (axes[0], axes[5]))
    assert first.width == pytest.approx(second.width)  # in pixels, from fractions of a figure: the last bits differ
    assert second.height == pytest.approx(second.width / 4)
    assert second.y1 < first.y0
