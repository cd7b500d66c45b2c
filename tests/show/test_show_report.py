"""The report as a file: whole, self-contained, and what it says is what was measured. The browser is elsewhere."""

import hashlib
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
from shown import BERT, VIT, measured, networks, story

from spikezip.errors import ConfigError, InputError
from spikezip.show.chart import Chart, Heat, Series
from spikezip.show.interactive import describe
from spikezip.show.need import need
from spikezip.show.report import LARGEST, render, report
from spikezip.show.story import tell

VOID = {"meta", "input", "link", "br", "img"}


class Reader(HTMLParser):
    """Collects elements, addresses in attributes, and texts by id; checks that elements are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.texts: dict[str, str] = {}
        self.tables: dict[str, list[list[str]]] = {}
        self._id = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.addresses += [found[key] or "" for key in ("src", "href", "action", "data") if key in found]
        if "id" in found:
            self._id = found["id"] or ""
            self.ids.append(self._id)
        if tag == "table":
            self.tables[self._id] = []
        elif tag == "tr" and self.tables:
            self.tables[self._id].append([])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("pre", "script", "strong"):
            self.texts[self._id] = self.texts.get(self._id, "") + data
        if self.open and self.open[-1] in ("td", "th") and self._id in self.tables:
            self.tables[self._id][-1].append(data)


@pytest.mark.parametrize("name", [VIT, BERT])
def test_it_is_whole(tmp_path: Path, name: str) -> None:
    path = report(measured(name), tmp_path / "new" / "report.html", story(name))
    page = path.read_text(encoding="utf-8")
    assert len(page.encode()) < 2_000_000 < LARGEST
    found = Reader(page)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert found.addresses == []  # nothing is loaded from anywhere
    assert "default-src 'none'" in page  # and nothing may be
    assert not re.search(r"@import|url\(", (page.split("<style>")[1]).split("</style>")[0])
    told = json.loads(found.texts["story"])
    assert told["predictions"][-1] == told["qann"]["prediction"] == story(name).qann_prediction
    assert json.loads(found.texts["measurement"]) == json.loads(json.dumps(measured(name).to_json()))
    drawn = {figure["name"] for figure in json.loads(found.texts["figures"])}
    assert drawn == {"accuracy", "t_eq", "energy", "energy-parts", "firing", "spikes", "sites", "waste"}
    assert {f"chart-{chart}" for chart in drawn} <= set(found.ids)
    assert found.texts["certificate"] == "exact"
    assert found.texts["command"] == measured(name).command


def test_tables_hold_the_numbers() -> None:
    one = measured()
    tables = Reader(render(one)).tables
    rows = tables["table-over-time"]
    assert len(rows) == one.steps + 1
    assert one.over_time.accuracy is not None
    assert [float(row[1].removesuffix(" %")) for row in rows[1:]] == [round(100 * a, 2) for a in one.over_time.accuracy]
    assert [row[0] for row in tables["table-sites"][1:]] == [site.name for site in one.sites]
    assert len(tables["table-complexity"]) == len(one.complexity) + 1


def test_names_cannot_break_the_page() -> None:
    evil = '</script><script>alert("x")</script>&amp;'
    qann, snn, batch = networks(VIT)
    told = tell(snn, batch, qann, title=evil, labels=[evil] * 5)
    found = Reader(render(replace(measured(), name=evil, command=evil), told))
    assert found.open == []
    assert json.loads(found.texts["story"])["predictions"][0] == evil
    assert found.texts["command"] == evil
    plain = Reader(render(measured(), story()))
    assert found.tags.count("script") == plain.tags.count("script")


def test_without_a_story_or_a_certificate() -> None:
    found = Reader(render(replace(measured(), certificate=None, command=None)))
    assert "player" not in found.ids
    assert json.loads(found.texts["story"]) is None
    assert found.texts["certificate"] == "not verified here"
    assert "Called from Python" in found.texts["command"]
    wrong = {**(measured().certificate or {}), "exact": False, "mismatches": 7}
    assert Reader(render(replace(measured(), certificate=wrong))).texts["certificate"] == "not exact"


def test_data_without_labels_and_networks_without_one_attention() -> None:
    one = measured()
    curves = replace(one.over_time, accuracy=None, top5=None, agreement=None)
    drawn = json.loads(Reader(render(replace(one, over_time=curves, qann=None))).texts["figures"])
    assert "accuracy" not in {figure["name"] for figure in drawn}
    swin = "SwinForImageClassification"
    page = render(measured(swin), story(swin))
    assert "attends within windows" in page
    assert "picture-snn" not in Reader(page).ids


def test_no_other_package_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spikezip.show.need.find_spec", lambda name: None)
    with pytest.raises(ConfigError):
        need("plotly")
    assert "plotly.js (cartesian" in Reader(render(measured(), story())).texts["plotly"]


def test_plotly_is_as_it_was_published_and_goes_with_its_licence() -> None:
    folder = files("spikezip.show") / "page"
    script = (folder / "plotly-cartesian.min.js").read_bytes()
    about = (folder / "plotly-README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(script).hexdigest() in about
    version = re.search(rb"plotly.js \(cartesian - minified\) v([\d.]+)", script)
    assert version is not None
    assert f"| version | {version[1].decode()} |" in about
    page = render(measured())
    assert (folder / "plotly-LICENSE.txt").read_text(encoding="utf-8") in page
    assert ", (() => {\n" in page  # compiled beside the page
    assert page.count(script[2000:400_000].decode()) == 1


def test_what_is_no_number_leaves_a_gap() -> None:
    nan, inf = float("nan"), float("inf")
    found = describe(Chart("a", "A", "x", "y", (Series("one", (1, 2, 3), (0.5, nan, inf)),)))
    assert found["data"][0]["y"] == [0.5, None, None]
    heat = describe(Heat("b", "B", "x", "y", ("r",), (1, 2), ((nan, 1.0),), "unit"))
    assert heat["data"][0]["z"] == [[None, 1.0]]


def test_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["spikezip.show.report"], "LARGEST", 1000)
    with pytest.raises(InputError, match=r"the report would have \d\.\d MB"):
        report(measured(), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
