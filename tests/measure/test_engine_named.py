"""What is written down names the engine that ran, never "auto"."""

from pathlib import Path
from typing import Any

import measured
import pytest

import spikezip
from spikezip.measure import tune
from spikezip.measure.document import Measurement
from spikezip.measure.measuring import measure
from spikezip.ops.compiled import numba_is_here


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.skipif(not numba_is_here(), reason="numba"))])
def ran(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine that "auto" stands for, with compiled loops and without."""
    monkeypatch.setattr("spikezip.engines.loop.numba_is_here", lambda: request.param)
    return "event" if request.param else "folded"


def test_certificates(ran: str) -> None:
    _, qann, snn = measured.networks()
    engines: list[str] = []
    data = measured.batches(2)
    found = spikezip.verify(qann, snn, data, engine="auto", watch=lambda output, run: engines.append(run.engine))
    assert engines == [ran]
    assert found.settings["engine"] == ran
    assert found == spikezip.verify(qann, snn, data, engine=ran)


def test_measurements(ran: str, tmp_path: Path) -> None:
    _, qann, snn = measured.networks()
    options: dict[str, Any] = {"steps": 20, "save_every": 1}
    found = measure(snn, measured.batches(2), qann, engine="auto", folder=tmp_path, **options)
    assert found.certificate is not None
    assert (found.settings.engine, found.certificate["settings"]["engine"]) == (ran, ran)
    assert Measurement.load(tmp_path / "measurement.json") == found
    # A run that is resumed with the engine's own name is the same run.
    assert measure(snn, measured.batches(2), qann, engine=ran, folder=tmp_path, resume=True, **options) == found


def test_tuning(ran: str) -> None:
    snn = measured.networks()[2]
    found = tune(snn, measured.batches(2), [0], [1], cost="spikes", engine="auto")
    assert found.engine == ran
    assert found == tune(snn, measured.batches(2), [0], [1], cost="spikes", engine=ran)
