"""`--engine auto`: every verb writes down the engine that ran."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from shell import ok

from spikezip.ops.compiled import numba_is_here

RAN = "event" if numba_is_here() else "folded"
VERBS: dict[str, tuple[object, ...]] = {
    "simulate": ("--steps", 4),
    "measure": ("--steps", 4),
    "exits": ("--agreement", 0.5),
    "tune": ("--staggers", 0, "--max-spikes", 1, "--samples", 2),
}


def engines(x: Any) -> set[str]:
    """All that is called an engine in a document."""
    if isinstance(x, dict):
        own = {x["engine"]} if "engine" in x else set()
        return own.union(*map(engines, x.values()))
    return set().union(*map(engines, x)) if isinstance(x, list) else set()


@pytest.mark.parametrize("verb", VERBS)
def test_the_file_names_the_engine_that_ran(verb: str, home: Path, tmp_path: Path) -> None:
    common = ("--data", home / "images.npz", "--engine", "auto", "--device", "cpu", "--json", tmp_path / "n.json")
    # Other tests may have left a certificate with the network, which `measure` quotes.
    snn = shutil.copytree(home / "vit-snn", tmp_path / "snn", ignore=shutil.ignore_patterns("certificate.json"))
    ok(verb, snn, *common, *VERBS[verb])
    assert engines(json.loads((tmp_path / "n.json").read_text())) == {RAN}


def test_a_certificate_names_the_engine_that_ran(home: Path, tmp_path: Path) -> None:
    snn = shutil.copytree(home / "vit-snn", tmp_path / "snn")
    samples = ("--data", home / "images.npz", "--samples", 2)
    text = ok("verify", home / "vit-qann", snn, *samples, "--engine", "auto", "--device", "cpu")
    assert f"{RAN} engine" in text
    assert engines(json.loads((snn / "certificate.json").read_text())) == {RAN}
