"""The demo ends with a report, or says how to get one."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from spikezip.demo import run
from spikezip.show import need


def test_the_demo_writes_a_report(tmp_path: Path) -> None:
    said = StringIO()
    assert run(Console(file=said, width=200), samples=4, batch_size=4, report=tmp_path / "demo.html") == 0
    assert str(tmp_path / "demo.html") in said.getvalue()
    assert "exact: the SNN is the QANN, bit for bit" in said.getvalue()
    page = (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert "The first test image. Its class is “ankle boot”." in page


def test_without_the_extra_one_line_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(need, "find_spec", lambda name: None)
    said = StringIO()
    assert run(Console(file=said, width=200), samples=2, batch_size=2, report=tmp_path / "demo.html") == 0
    assert "pip install 'spikezip[show]'" in said.getvalue().splitlines()[-1]
    assert not (tmp_path / "demo.html").exists()
