"""Where networks look, on the page: documents on their way into the folder, and their pictures."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import toy_results as toy

from spikezip.errors import ConfigError, InputError
from spikezip.measure.document import Measurement
from spikezip.results import Page, add_attention, add_file, figures, make
from spikezip.show.attention_document import AttentionDocument

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A repository with one document."""
    folder = toy.home(tmp_path, "")
    add_attention(toy.attention("vit").save(tmp_path / "a.json"), folder / "results")
    return folder


def page(home: Path, *lines: str) -> Page:
    (home / "results" / "page.md").write_text("\n".join(("before", *lines, "after")), encoding="utf-8")
    return make(home / "results", home / "docs" / "results.md", home / "recipes")


def test_a_document_is_copied_without_the_machine(tmp_path: Path) -> None:
    document = toy.attention("snn")
    file = document.save(tmp_path / "a.json")
    added = add_file(file, tmp_path / "results", "vit")
    assert added == tmp_path / "results" / "attention" / "vit.json"
    found = AttentionDocument.load(added)
    assert (found.name, found.data) == ("vit", "cifar10:cifar10")
    assert found.command == "spikezip attention snn --data cifar10:cifar10"
    assert document.samples[0].picture is not None
    assert document.samples[0].picture.bytes.startswith("/Q"), "it looks like a path, and must stay"
    assert found.samples == document.samples
    assert add_file(file, tmp_path / "results").name == "snn.json"
    with pytest.raises(ConfigError, match=r"vit\.json is there already: choose another --name, or replace it with"):
        add_file(file, tmp_path / "results", "vit")
    add_file(file, tmp_path / "results", "vit", over=True)


def test_files_are_known_by_their_format(tmp_path: Path) -> None:
    into = tmp_path / "results"
    assert add_file(toy.measurement("m").save(tmp_path / "m.json"), into) == into / "measured" / "m.json"
    assert Measurement.load(into / "measured" / "m.json").name == "m"
    (tmp_path / "e.json").write_text('{"format": "spikezip-exits"}', encoding="utf-8")
    with pytest.raises(InputError, match=r"e\.json cannot be added: its format is 'spikezip-exits', known are"):
        add_file(tmp_path / "e.json", into)
    (tmp_path / "n.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"n\.json cannot be added: its format is None"):
        add_file(tmp_path / "n.json", into)
    (tmp_path / "t.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"t\.json is not JSON"):
        add_file(tmp_path / "t.json", into)
    old = toy.attention().to_json() | {"version": 0}
    (tmp_path / "o.json").write_text(json.dumps(old), encoding="utf-8")
    with pytest.raises(InputError, match="has version 0, here 1 is read"):
        add_file(tmp_path / "o.json", into)


@pytest.mark.parametrize("name", ["vit", "vit*", "*"])
def test_a_picture_for_a_document(home: Path, name: str) -> None:
    found = page(home, f"![it]({{{{ attention {name} }}}})")
    assert found.text.endswith("before\n![it](img/results/attention-vit.svg)\nafter\n")
    found.write()
    (path,) = found.pictures
    assert path == home / "docs" / "img" / "results" / "attention-vit.svg"
    root = ElementTree.parse(path).getroot()
    texts = ["".join(node.itertext()).strip() for node in root.iter(f"{SVG}text")]
    assert {"input", "T = 1", "T = 5", "QANN", "cat", "SNN: dog"} <= set(texts)
    images = list(root.iter(f"{SVG}image"))
    assert len(images) == 3 * 7
    assert {(image.get("width"), image.get("height")) for image in images} == {("32", "32")}, "their own resolution"
    assert all("pixelated" in (image.get("style") or "") for image in images)
    assert path.stat().st_size < 150_000


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    document = toy.attention()
    drawn = set()
    for number in range(6):
        figures.draw(document, tmp_path / f"{number}.svg")
        drawn.add((tmp_path / f"{number}.svg").read_bytes())
    assert len(drawn) == 1
    assert figures.digest(document) in drawn.pop().decode("utf-8")


def test_some_samples(home: Path) -> None:
    (drawn,) = page(home, "![it]({{ attention vit 14 0 }})").pictures.values()
    assert isinstance(drawn, AttentionDocument)
    assert [sample.index for sample in drawn.samples] == [14, 0]


def test_a_pattern_that_finds_nothing_leaves_its_line_out(home: Path) -> None:
    found = page(home, "![it]({{ attention swin* 3 }})")
    assert found.text.endswith("before\nafter\n")
    assert not found.pictures


def test_up_to_date_or_not(home: Path) -> None:
    line = "![it]({{ attention vit }})"
    page(home, line).write()
    assert page(home, line).differences() == []
    file = home / "results" / "attention" / "vit.json"
    document = AttentionDocument.load(file)
    first, *others = document.samples
    changed = replace(first, qann=(0.1234, *first.qann[1:]))
    replace(document, samples=(changed, *others)).save(file)
    picture = home / "docs" / "img" / "results" / "attention-vit.svg"
    before = picture.read_bytes()
    assert page(home, line).differences() == [f"{picture} does not show what the files give"]
    page(home, line).write()
    assert picture.read_bytes() != before
    assert page(home, line).differences() == []
    assert page(home).differences()[-1] == f"{picture} is on no page any more"


def test_single_figures(home: Path) -> None:
    assert "after 27 steps" in page(home, "after {{ value attention/vit/samples.1.t_eq number }} steps").text


@pytest.mark.parametrize(
    ("directive", "problem"),
    [
        ("attention", "whose attention? As in {{ attention cifar10-vit }}"),
        ("attention vitt", "there is no attention/vitt.json; there is other, vit"),
        ("attention *t*", "attention *t*: a line shows one of other, vit; name it"),
        ("attention vit first", "behind the name stand numbers of samples, not 'first'"),
        ("attention no* -1", "behind the name stand numbers of samples, not '-1'"),
        ("attention vit 0 3", "there is no sample 3 in 'vit'; there is 0, 7, 14"),
        ("attention vit 0 0", "samples: expected at least one, and each once"),
        ("attention vit }} {{ attention vit 7", "there are two figures 'attention-vit'"),
    ],
)
def test_errors_name_the_line(home: Path, directive: str, problem: str) -> None:
    add_attention(toy.attention("other").save(home / "b.json"), home / "results")
    with pytest.raises(ConfigError) as error:
        page(home, f"{{{{ {directive} }}}}")
    assert str(error.value).startswith(f"{home / 'results' / 'page.md'}, line 2: ")
    assert problem in str(error.value)


def test_a_torn_document_is_named(home: Path) -> None:
    (home / "results" / "attention" / "torn.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"attention/torn\.json: this is no attention document"):
        page(home)
