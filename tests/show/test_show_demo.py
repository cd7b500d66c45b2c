"""The demo ends with a report, or says how to get one."""

import json
import re
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from spikezip.demo import load_images, load_qann, normalise, run
from spikezip.demo.show import SHOWN
from spikezip.engines import simulate
from spikezip.models.networks import convert
from spikezip.show import need


def test_the_demo_writes_a_report(tmp_path: Path) -> None:
    said = StringIO()
    assert run(Console(file=said, width=200), samples=4, batch_size=4, report=tmp_path / "demo.html") == 0
    assert str(tmp_path / "demo.html") in said.getvalue()
    assert "exact: the SNN is the QANN, bit for bit" in said.getvalue()
    page = (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert "The first test image. Its class is “ankle boot”." in page
    block = re.search(r'<script type="application/json" id="measurement">(.*?)</script>', page, re.S)
    assert block is not None
    measured = json.loads(block[1])
    assert (measured["data"]["samples"], measured["certificate"]["samples"]) == (4, 4)  # one pass over all of them
    assert f"{measured['certificate']['codes']:,} at 52 sites, 0 mismatches" in said.getvalue()
    assert f"{measured['over_time']['spikes_per_neuron'][-1]:.2f} until equilibrium" in said.getvalue()


def test_the_report_needs_no_package_for_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(need, "find_spec", lambda name: None)
    said = StringIO()
    assert run(Console(file=said, width=200), samples=2, batch_size=2, report=tmp_path / "demo.html") == 0
    assert (tmp_path / "demo.html").exists()


def test_a_report_that_cannot_be_written_undoes_nothing(tmp_path: Path) -> None:
    said = StringIO()
    assert run(Console(file=said, width=200), samples=2, batch_size=2, report=tmp_path) == 0
    assert "could not be written" in said.getvalue().splitlines()[-1]
    assert "exact: the SNN is the QANN, bit for bit" in said.getvalue()  # all else is there


def test_what_it_prints_is_what_was_simulated() -> None:
    """The table, against the outputs of both networks, one image at a time."""
    said = StringIO()
    assert run(Console(file=said, width=200), samples=3, batch_size=2, report=None) == 0
    qann = load_qann().eval()
    snn, (images, labels) = convert(qann), load_images()
    pixels = normalise(images[:3])
    runs = [simulate(snn, pixels[i : i + 1], steps="equilibrium") for i in range(3)]
    with torch.no_grad():
        answers = qann(pixels).logits.argmax(-1).tolist()
    for t in SHOWN:
        at_t = [int(r.logits_per_step[min(t, r.steps) - 1].argmax()) for r in runs]
        right, same = (
            100 * sum(a == b for a, b in zip(at_t, others, strict=True)) / 3
            for others in (labels[:3].tolist(), answers)
        )
        assert re.search(rf"│ +{t} │ +{right:.1f} % │ +{same:.1f} % │", said.getvalue()), t
    t_eq = sorted(r.t_eq[0] for r in runs if r.t_eq[0] is not None)
    assert f"median {t_eq[1]}, 99 % {t_eq[2]}, maximum {t_eq[2]} steps" in said.getvalue()
    assert "report" not in said.getvalue()
