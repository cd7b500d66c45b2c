"""Directives, their errors, and a page that is up to date or not."""

import json
from pathlib import Path

import pytest
import toy_results as toy

from spikezip.errors import ConfigError, InputError
from spikezip.results import add_measurement, add_run, make


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A repository with one run, the same once more, one that was given up, one measurement, and figures of others."""
    folder = toy.home(tmp_path, "", (toy.run(tmp_path / "run"), "toy"), recipes=(toy.recipe(),))
    add_run(toy.run(tmp_path / "old", qann=0.86), folder / "results", "old", kind="tried")
    add_run(toy.run(tmp_path / "more", qann=0.89), folder / "results", kind="again")
    add_measurement(toy.measurement("vit").save(tmp_path / "vit.json"), folder / "results")
    (folder / "results" / "quoted.yaml").write_text(toy.QUOTED, encoding="utf-8")
    (folder / "results" / "other").mkdir()
    (folder / "results" / "other" / "demo.json").write_text('{"size of it": 1234567, "who": "me"}', encoding="utf-8")
    return folder


def page(home: Path, text: str) -> str:
    (home / "results" / "page.md").write_text(text, encoding="utf-8")
    return toy.built(home).removesuffix("\n")


@pytest.mark.parametrize(
    ("directive", "text"),
    [
        ("value runs/toy/metrics.qann.accuracy percent", "90.00 %"),
        ("value runs/toy/metrics.qann.accuracy points", "90.00"),
        ("value runs/toy/metrics.qann.accuracy samples", "90"),
        ("value runs/toy/accuracy@2 percent", "80.00 %"),
        ("value runs/toy/accuracy@64 percent", "90.00 %"),
        ("value runs/toy/agreement@last percent", "100.00 %"),
        ("value runs/toy/certificate.codes number", "12,345"),
        ("value runs/toy/certificate.settings.device text", "cuda (Toy GPU)"),
        ("value runs/toy/settings.stages.qat.learning_rate number", "0.001"),
        ("value runs/toy/metrics.snn.over_time.1.step number", "2"),
        ("value runs/toy/metrics.qann.parameters millions", "22.7 M"),
        ("value runs/toy/metrics.qat.seconds duration", "300 s"),
        ("value tried/old/metrics.qann.accuracy percent", "86.00 %"),
        ("value again/sst2-toy/metrics.qann.accuracy samples", "89"),
        ("value again/sst2-toy/accuracy@2 percent", "80.00 %"),
        ("value measured/vit/latency.within.1.0 number", "2"),
        ("value measured/vit/energy.snn.total joules", "4.00 mJ"),
        ("value measured/vit/energy.paper.power_w watts", "12.3 mW"),
        ("value measured/vit/spikes_per_neuron@last decimal", "1.50"),
        ('value "measured/vit/energy.per_inference.MACs without time" short', "1.00 G"),
        ('value "other/demo/size of it" number', "1,234,567"),
        ("value quoted/language/rows.other.accuracy.sst2 text", "85.30"),
        ("difference runs/toy/metrics.qann.accuracy tried/old/metrics.qann.accuracy points", "4.00"),
        ("difference runs/toy/metrics.qann.accuracy runs/toy/accuracy@2 samples", "10"),
        ("sum runs/toy/metrics.relu.seconds runs/toy/metrics.qat.seconds number", "500"),
    ],
)
def test_single_figures(home: Path, directive: str, text: str) -> None:
    assert page(home, f"It is {{{{ {directive} }}}}, so.") == f"It is {text}, so."


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{{ valu runs/toy/recipe text }}", "there is no directive 'valu': did you mean value? choose among value,"),
        ("{{ }}", "there is no directive ''"),
        ("{{ value runs/toy/metrics.qann.accuracy }}", "value is written {{ value KEY FORMAT }}"),
        ("{{ value runs/tow/recipe text }}", "there is no runs/tow, did you mean runs/toy?"),
        ("{{ value runs/toy text }}", "runs/toy: a key is needed"),
        ("{{ value runs/toy/metrics.qan.accuracy percent }}", "runs/toy has no key 'metrics.qan.accuracy': did you"),
        ("{{ value runs/toy/metrics.snn.over_time.99.step number }}", "metrics.snn.over_time is a list of 3"),
        ("{{ value runs/toy/recipe.name text }}", "recipe is a single value"),
        ("{{ value runs/toy/metrics.qann.accuracy per_cent }}", "there is no format 'per_cent'"),
        ("{{ value runs/toy/recipe percent }}", "'sst2-toy' is no number"),
        ("{{ value runs/toy/seed text }}", "0 is no text"),
        ("{{ value runs/toy/firing_rate@3 decimal }}", "runs/toy has no firing_rate over time"),
        ("{{ value other/demo/who samples }}", "'me' is no number"),
        ("{{ difference runs/toy/seed runs/toy/seed percent }}", "a difference cannot be written as percent"),
        ("{{ difference runs/toy/accuracy@1 measured/vit/accuracy@1 samples }}", "is of 100 samples"),
        ("{{ sum runs/toy/seed number }}", "sum is written {{ sum KEY KEY … FORMAT }}"),
        ('{{ value "runs/toy/seed number }}', "No closing quotation"),
        ("{{ value runs/toy/seed number", "a directive stands on one line"),
        ("{{ table }}", "which table?"),
        ("{{ table langage }}", "there is no table 'langage': did you mean language?"),
        ("{{ table language mr }}", "table language takes no more words, not mr"),
        ("see {{ table language }}", "a table stands alone on its line"),
        ("{{ table latency }}", "table latency needs the name of at least one measurement"),
        ("{{ table latency vitt }}", "there is no measured/vitt.json; there is vit"),
        ("{{ table activity vit vit }}", "table activity needs the name of a measurement"),
        ("{{ table over-time vit }}", "name the steps to show, as in at=1,4,8"),
        ("{{ table over-time vit at=1,x }}", "at=x: steps are whole numbers from 1"),
        ("{{ table latency vit at=1 }}", "table latency takes no steps"),
        ("{{ figure }}", "a picture needs a name"),
        ("{{ figure all }}", "picture all: name the runs or measurements to draw"),
        ("{{ figure all runs/none }}", "there is no runs/none; there is runs/toy, measured/vit"),
        ("{{ figure all runs/none* }}", "runs/none*: there is no such run"),
        ("{{ figure a runs/* }} {{ figure a runs/* }}", "there are two figures 'a'"),
        ("It has 90.23 % here.", "'90.23' is typed by hand; take it from a metrics file"),
        ("Of 12,345 codes", "'12,345' is typed by hand"),
        ("It has 90 % here", "'90 %' is typed by hand"),
    ],
)
def test_errors_name_the_line(home: Path, line: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        page(home, f"# Page\n\n{line}\n")
    where, _, said = str(error.value).partition(": ")
    assert where.endswith("results/page.md, line 3")
    assert problem in said


def test_what_may_be_typed(home: Path) -> None:
    text = "SST-2 at T = 64, `stagger=0.5`, [notes](a-1.5.md), DVS128, ICML 2024\n\n```\n--stagger 0.5  # 12,345\n```"
    assert page(home, text) == text


def test_the_first_line_says_where_the_page_comes_from(home: Path) -> None:
    made = make(home / "results", home / "docs" / "results.md", home / "recipes")
    assert made.text.startswith(
        "<!-- Made by `spikezip results build` from the files in results/: edit results/page.md"
    )


def test_up_to_date_or_not(home: Path) -> None:
    text = "{{ table language }}\n\n![x]({{ figure all runs/* }})"
    (home / "results" / "page.md").write_text(text, encoding="utf-8")
    docs = home / "docs" / "results.md"
    place = (home / "results", docs, home / "recipes")
    assert make(*place).differences() == [f"{docs} is not there"]
    make(*place).write()
    assert make(*place).differences() == []
    picture = docs.parent / "img" / "results" / "all.svg"
    before = picture.read_bytes()
    picture.unlink()
    assert make(*place).differences() == [f"{picture} does not show what the files give"]
    make(*place).write()
    assert picture.read_bytes() == before

    docs.write_text(docs.read_text("utf-8").replace("90.00", "99.00"), encoding="utf-8")
    (text,) = make(*place).differences()
    assert text.startswith(f"{docs} is not what the files give:\n")
    assert "99.00" in text
    make(*place).write()

    file = home / "results" / "runs" / "toy" / "results.json"
    results = json.loads(file.read_text("utf-8"))
    results["metrics"]["snn"]["over_time"][1]["accuracy"] = 0.81  # at T = 2: on no table, but in the picture
    file.write_text(json.dumps(results), encoding="utf-8")
    assert make(*place).differences() == [f"{picture} does not show what the files give"]
    make(*place).write()
    assert picture.read_bytes() != before


def test_old_pictures_go_and_those_of_others_stay(home: Path) -> None:
    (home / "results" / "page.md").write_text("![x]({{ figure all runs/* }})", encoding="utf-8")
    place = (home / "results", home / "docs" / "results.md", home / "recipes")
    make(*place).write()
    old, others = (home / "docs" / "img" / "results" / f"{name}.svg" for name in ("old", "others"))
    old.write_bytes((home / "docs" / "img" / "results" / "all.svg").read_bytes())
    others.write_text("<svg/>", encoding="utf-8")
    assert make(*place).differences() == [f"{old} is on no page any more"]
    make(*place).write()
    assert not old.exists()
    assert others.exists()
    assert make(*place).differences() == []


def test_files_that_are_missing_or_torn(home: Path) -> None:
    results = home / "results"
    with pytest.raises(InputError, match=r"docs is not a folder of results: it holds no page.md"):
        make(home / "docs", home / "docs" / "results.md", home / "recipes")
    (results / "page.md").write_text("{{ table language }}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"nowhere is no folder; --recipes names the one"):
        make(results, home / "docs" / "results.md", home / "nowhere")
    file = results / "runs" / "toy" / "results.json"
    plain = json.loads(file.read_text("utf-8"))
    del plain["metrics"]["qann"]["parameters"]
    file.write_text(json.dumps(plain), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"runs/toy/results.json has no key 'metrics.qann.parameters'"):
        toy.built(home)
    file.write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"runs/toy/results.json is not JSON"):
        toy.built(home)
    file.unlink()
    with pytest.raises(InputError, match=r"runs/toy holds no results.json: `spikezip results add`"):
        toy.built(home)
