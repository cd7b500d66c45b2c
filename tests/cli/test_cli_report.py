"""`spikezip report`: from folders and files to one page."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from spikezip.cli.report import report
from spikezip.errors import ConfigError, InputError
from spikezip.measure.document import Measurement


def _block(page: str, name: str) -> object:
    return json.loads(re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.S)[1])


@pytest.mark.parametrize(("name", "file"), [("vit", "images.npz"), ("bert", "dev.tsv")])
def test_measure_and_report(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, file: str
) -> None:
    out = tmp_path / "report.html"
    report(str(home / f"{name}-snn"), str(home / file), qann=str(home / f"{name}-qann"), samples=4, sample=2, out=out)
    assert "report → " in capsys.readouterr().out
    page = out.read_text(encoding="utf-8")
    told, measured = _block(page, "story"), _block(page, "measurement")
    assert told["predictions"][-1] == told["qann"]["prediction"]
    assert measured["data"]["samples"] == 4
    certificate = measured["certificate"]
    assert (certificate["exact"], certificate["samples"]) == (True, 4)
    if name == "bert":
        assert told["tokens"][0]["text"] == "[CLS]"
    else:
        assert told["picture"]["height"] == 16


def test_report_of_a_measurement(home: Path, tmp_path: Path) -> None:
    snn, data = str(home / "vit-snn"), str(home / "images.npz")
    report(snn, data, samples=2, out=tmp_path / "first.html")
    measured = Measurement.from_json(_block((tmp_path / "first.html").read_text(encoding="utf-8"), "measurement"))
    file = measured.save(tmp_path / "m.json")
    report(snn, data, measurement=file, sample=9, out=tmp_path / "second.html")
    assert _block((tmp_path / "second.html").read_text(encoding="utf-8"), "measurement") == measured.to_json()
    with pytest.raises(InputError, match=r"m.json is of another network: it has a ViTForImage.*, SNN a BertFor"):
        report(str(home / "bert-snn"), str(home / "dev.tsv"), measurement=file, out=tmp_path / "third.html")


def test_with_a_qann_there_is_always_a_certificate(home: Path, tmp_path: Path) -> None:
    """Also for a measurement that was made without one, of a network that has none beside it."""
    shutil.copytree(home / "vit-snn", tmp_path / "snn", ignore=shutil.ignore_patterns("certificate.json"))
    snn, data, page = str(tmp_path / "snn"), str(home / "images.npz"), tmp_path / "page.html"
    report(snn, data, samples=2, out=page)
    measured = Measurement.from_json(_block(page.read_text(encoding="utf-8"), "measurement"))
    assert measured.certificate is None
    file = measured.save(tmp_path / "m.json")
    report(snn, data, measurement=file, qann=str(home / "vit-qann"), out=page)
    again = Measurement.from_json(_block(page.read_text(encoding="utf-8"), "measurement"))
    assert again.certificate is not None
    assert (again.certificate["exact"], again.certificate["samples"]) == (True, 2)
    assert replace(again, certificate=None) == measured


def test_mistakes(home: Path, tmp_path: Path) -> None:
    snn, data = str(home / "vit-snn"), str(home / "images.npz")
    with pytest.raises(InputError, match=r"--sample 10: .*images.npz holds 10 samples, counted from 0"):
        report(snn, data, sample=10)
    with pytest.raises(ConfigError, match="is a folder; a file is needed"):
        report(snn, data, out=tmp_path)
    (tmp_path / "m.json").write_text("{}")
    with pytest.raises(InputError, match=r"m.json: this is no measurement"):
        report(snn, data, measurement=tmp_path / "m.json")
