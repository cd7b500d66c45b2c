"""`spikezip results`, as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shell import fails, ok, run

HERE = str(Path(__file__).parents[2])
sys.path.insert(0, str(Path(__file__).parents[1] / "results"))
import toy_results as toy  # noqa: E402  # the folders of the tests of `spikezip.results`


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a page, a recipe and two runs beside it; we are in it."""
    toy.home(tmp_path, "# Page\n\n{{ table language }}\n\n![x]({{ figure all runs/* }})\n", recipes=(toy.recipe(),))
    toy.run(tmp_path / "runs" / "a")
    toy.run(tmp_path / "runs" / "b", toy.recipe(seed=1), qann=0.92)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_runs_to_the_page(repository: Path) -> None:
    text = ok("results", "add", "runs/a", "runs/b")
    assert text == "runs/a → results/runs/sst2-toy\nruns/b → results/runs/sst2-toy-seed1\n"
    stale = run("results", "build", "--check")
    assert (stale.exit_code, stale.stdout) == (1, "")
    assert stale.stderr == "error: docs/results.md is not there\n"
    assert ok("results", "build").startswith("docs/results.md: ")
    page = (repository / "docs" / "results.md").read_text("utf-8")
    assert "| 91.00\u00a0±\u00a01.41 (2) |" in page
    assert (repository / "docs" / "img" / "results" / "all.svg").is_file()
    assert ok("results", "build", "--check") == "docs/results.md is what the files in results give\n"
    (repository / "docs" / "results.md").write_text(page.replace("91.00", "99.00"), encoding="utf-8")
    stale = run("results", "build", "--check")
    assert stale.exit_code == 1
    assert "docs/results.md is not what the files give" in stale.stderr
    assert "99.00" in (repository / "docs" / "results.md").read_text("utf-8"), "--check writes nothing"


def test_measurements_and_other_places(repository: Path) -> None:
    toy.measurement("snn").save("m.json")
    assert ok("results", "add", "m.json", "--name", "vit") == "m.json → results/measured/vit.json\n"
    assert json.loads(Path("results/measured/vit.json").read_text("utf-8"))["name"] == "vit"
    ok("results", "add", "runs/a", "--into", "results", "--tried", "--name", "old")
    assert Path("results/tried/old/results.json").is_file()
    assert ok("results", "add", "runs/a", "--again") == "runs/a → results/again/sst2-toy\n"
    Path("results/page.md").write_text("{{ table power }}", encoding="utf-8")
    ok("results", "build", "results", "--out", "there/page.md", "--recipes", "recipes")
    assert "](../results/measured/vit.json)" in Path("there/page.md").read_text("utf-8")


def test_mistakes(repository: Path) -> None:
    assert "runs/c is not there" in fails("results", "add", "runs/c")
    assert "runs is not the folder of a run" in fails("results", "add", "runs")
    assert "one name cannot serve 2 things" in fails("results", "add", "runs/a", "runs/b", "--name", "x")
    toy.measurement().save("m.json")
    assert "--tried is for runs; m.json is a file" in fails("results", "add", "m.json", "--tried")
    assert "--again is for runs; m.json is a file" in fails("results", "add", "m.json", "--again")
    assert "--tried and --again: a run is either given up" in fails("results", "add", "runs/a", "--tried", "--again")
    assert "--recipe is for runs; m.json is a file" in fails(
        "results", "add", "m.json", "--recipe", "runs/a/recipe.yaml"
    )
    assert "--recipe nowhere.yaml is not there" in fails("results", "add", "runs/a", "--recipe", "nowhere.yaml")
    ok("results", "add", "runs/a", "--recipe", "runs/a/recipe.yaml")
    assert "results/runs/sst2-toy is there already" in fails("results", "add", "runs/a")
    ok("results", "add", "runs/a", "--over")
    Path("results/page.md").write_text("\n{{ value runs/sst2-toy/metrics.qan percent }}\n", encoding="utf-8")
    line = fails("results", "build")
    assert line.startswith("error: results/page.md, line 2: runs/sst2-toy has no key 'metrics.qan'")
    assert "nowhere is not a folder of results" in fails("results", "build", "nowhere")


def test_help_has_examples() -> None:
    for words in (("results",), ("results", "add"), ("results", "build")):
        assert f"spikezip {' '.join(words)}" in ok(*words, "--help").split("Example")[1]


def test_what_recipes_need_is_named(repository: Path) -> None:
    program = "import sys; sys.modules['accelerate'] = None; from spikezip.cli import main; main()"
    words = [sys.executable, "-c", program, "results", "add", "runs/a"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=120, env=os.environ | {"PYTHONPATH": HERE})
    assert result.returncode == 2
    assert result.stderr == "error: reading recipes needs accelerate: pip install 'spikezip[train]'\n"
