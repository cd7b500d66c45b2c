"""The report in a browser. Without Chromium these are skipped; `test_show_report` checks the file in any case."""

from collections.abc import Iterator
from pathlib import Path

import browser
import pytest
from shown import BERT, VIT, measured, story

from spikezip.show.report import report

pytestmark = pytest.mark.skipif(
    browser.find() is None, reason="no Chromium here: install one, or name it in SPIKEZIP_CHROMIUM"
)

DRAWN = "[...document.querySelectorAll('.plot')].filter(box => box.querySelector('.xtick') !== null).length"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    return {name: report(measured(name), folder / f"{name}.html", story(name)) for name in (VIT, BERT)}


@pytest.fixture(params=[VIT, BERT])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _step(page: browser.Page) -> int:
    return int(page.run("document.documentElement.dataset.step"))


def _bars(page: browser.Page) -> list[str]:
    return page.run("[...document.querySelectorAll('#bars .value')].map(e => e.textContent)")


def test_it_loads_without_a_word(page: browser.Page, files: dict[str, Path], name: str) -> None:
    page.problems.clear()
    page.requests.clear()
    page.open(files[name])
    assert page.problems == []
    assert {address.partition(":")[0] for address in page.requests} <= {"file", "blob", "data"}
    assert sum(address.startswith("file:") for address in page.requests) == 1
    assert page.run(DRAWN) == page.run("document.querySelectorAll('.plot').length") == 8
    assert page.run("document.documentElement.dataset.prediction") == story(name).qann_prediction
    assert _step(page) == story(name).steps


def test_the_slider_moves(page: browser.Page, files: dict[str, Path], name: str) -> None:
    page.open(files[name])
    told = story(name)
    last = _bars(page)
    page.run("document.getElementById('step').focus()")
    page.press("ArrowLeft")
    assert _step(page) == told.steps - 1
    page.press("Home")
    assert _step(page) == 1
    assert page.run("document.documentElement.dataset.prediction") == told.predictions[0]
    assert _bars(page) != last
    shown = page.run(
        "[...document.querySelectorAll('#layers .value')].map(e => Number(e.textContent.replaceAll(',', '')))"
    )
    assert shown == [layer.spikes[0] for layer in told.layers]
    page.press("End")
    assert _bars(page) == last
    assert page.run("document.documentElement.dataset.prediction") == told.qann_prediction


def test_it_plays_and_pauses(page: browser.Page, files: dict[str, Path], name: str) -> None:
    page.open(files[name], fragment="#t=2")
    assert _step(page) == 2
    page.run("document.getElementById('step').focus()")
    page.press(" ")
    page.wait("Number(document.documentElement.dataset.step) >= 4")
    page.press(" ")
    stopped = _step(page)
    assert page.run("document.getElementById('run').getAttribute('aria-pressed')") == "false"
    page.run("new Promise(resolve => setTimeout(resolve, 700))")
    assert _step(page) == stopped
    page.press("End")
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    page.run("document.getElementById('run').click()")
    page.wait(f"Number(document.documentElement.dataset.step) === {story(name).steps}")
    page.wait("document.getElementById('run').getAttribute('aria-pressed') === 'false'")


def test_attention_at_the_last_step_is_the_qann(page: browser.Page, files: dict[str, Path]) -> None:
    page.open(files[VIT])
    same = "document.getElementById('picture-snn').toDataURL() === document.getElementById('picture-qann').toDataURL()"
    for number in range(len(story(VIT).attention.maps)):
        page.run(
            f"(m => {{ m.value = {number}; m.dispatchEvent(new Event('change')); }})(document.getElementById('map'))"
        )
        assert page.run(same)
    page.open(files[VIT], fragment="#t=1")
    assert not page.run(same)
    page.open(files[BERT])
    colours = "[...document.querySelectorAll('#text-%s span')].map(e => e.style.backgroundColor).join()"
    assert page.run(colours % "snn") == page.run(colours % "qann")
    assert len(set(page.run(colours % "snn").split("),"))) > 1


def test_nothing_is_wider_than_the_window(page: browser.Page, files: dict[str, Path], name: str) -> None:
    page.open(files[name], width=390)
    page.run("document.querySelectorAll('details').forEach(box => { box.open = true; })")
    for width in (390, 320, 800, 1280):
        page.resize(width)
        page.wait(f"document.documentElement.scrollWidth <= {width}", timeout=10)


def test_light_and_dark(page: browser.Page, files: dict[str, Path]) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    page.open(files[VIT])
    light = page.run(ground)
    page.open(files[VIT], dark=True)
    dark = page.run(ground)
    assert light != dark
    page.run("document.getElementById('theme').click()")
    assert page.run(ground) == light
    page.wait("document.querySelector('#chart-accuracy .xtick text').style.fill === 'rgb(27, 31, 36)'")


def test_tables_are_copied_as_text(page: browser.Page, files: dict[str, Path]) -> None:
    page.open(files[VIT])
    page.run("navigator.clipboard.writeText = async text => { window.copied = text; }")
    page.run("document.querySelector('[data-copy=table-over-time]').click()")
    page.wait("window.copied !== undefined")
    rows = page.run("window.copied").split("\n")
    assert len(rows) == measured(VIT).steps + 1
    assert rows[0].split("\t")[:2] == ["step", "accuracy"]


def test_it_prints(page: browser.Page, files: dict[str, Path], tmp_path: Path) -> None:
    page.open(files[VIT], dark=True)
    page.problems.clear()
    page.print(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert page.run("document.documentElement.dataset.theme") == "dark"  # as before
    assert page.problems == []


def test_it_prints_all_charts_before_any_was_drawn(page: browser.Page, files: dict[str, Path]) -> None:
    """As by someone who prints as soon as the text is there."""
    page.problems.clear()
    page.open(
        files[VIT],
        dark=True,
        before=f"""document.addEventListener("DOMContentLoaded", () => {{
            window.early = [typeof Plotly, {DRAWN}];
            window.dispatchEvent(new Event("beforeprint"));
            window.printed = [document.documentElement.dataset.theme, {DRAWN}];
            window.script = Plotly;
            window.dispatchEvent(new Event("afterprint"));
        }});""",
    )
    assert page.run("window.early") == ["undefined", 0]
    assert page.run("window.printed") == ["light", 8]
    assert page.run(DRAWN) == 8
    assert page.run("document.documentElement.dataset.theme") == "dark"
    assert page.run("Plotly === window.script")  # it is not run twice
    assert page.problems == []


@pytest.mark.parametrize(("fragment", "first"), [("", "chart-accuracy"), ("#chart-waste", "chart-waste")])
def test_what_is_looked_at_is_drawn_first(
    page: browser.Page, files: dict[str, Path], fragment: str, first: str
) -> None:
    page.open(
        files[VIT],
        fragment=fragment,
        before="""window.order = [];
        new MutationObserver(changes => changes.forEach(({ target }) => {
            if (target.classList.contains("js-plotly-plot") && !order.includes(target.id)) order.push(target.id);
        })).observe(document, { attributes: true, attributeFilter: ["class"], subtree: true });""",
    )
    assert page.run("order.length") == 8
    assert page.run("order[0]") == first
