"""The page of this repository: what its files give, and nothing of the machines that they come from."""

import json
import re
from pathlib import Path

import pytest

from spikezip.results import make

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
RUNS = sorted(path.parent for path in RESULTS.glob("*/*/results.json"))


def test_the_page_is_what_the_files_give() -> None:
    page = make(RESULTS, ROOT / "docs" / "results.md", ROOT / "recipes")
    assert page.differences() == [], "spikezip results build"


def test_links_lead_somewhere() -> None:
    text = (ROOT / "docs" / "results.md").read_text("utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    assert len(targets) > 20
    for target in targets:
        assert target.startswith("https://") or (ROOT / "docs" / target).exists(), target


def test_no_trace_of_a_machine() -> None:
    files = [file for file in RESULTS.rglob("*") if file.suffix in (".json", ".yaml")]
    assert len(files) > 20
    for file in files:
        assert not re.search(r'["\s:=](/[a-z]+/|~/|[A-Z]:\\)', file.read_text("utf-8")), file


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_runs_are_exact(folder: Path) -> None:
    metrics = json.loads((folder / "results.json").read_text("utf-8"))["metrics"]
    certificate = json.loads((folder / "certificate.json").read_text("utf-8"))
    assert certificate["exact"]
    assert metrics["qann"]["accuracy"] == metrics["snn"]["accuracy"]
    assert certificate["t_eq"] == metrics["snn"]["t_eq"]


def test_the_zoo_and_the_demo_are_those_of_the_page() -> None:
    found = {json.dumps(json.loads((run / "results.json").read_text("utf-8"))) for run in RUNS}
    for file in (ROOT / "zoo").glob("*/results.json"):
        assert json.dumps(json.loads(file.read_text("utf-8"))) in found, f"spikezip results add: {file.parent}"
    demo = ROOT / "spikezip" / "demo" / "data" / "metrics.json"
    assert (RESULTS / "other" / "demo.json").read_bytes() == demo.read_bytes()
