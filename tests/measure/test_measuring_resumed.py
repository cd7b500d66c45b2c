"""A measurement that is stopped and goes on ends in the document of one that was not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measured
import pytest
import torch

import spikezip
from spikezip.errors import CheckpointError, ConfigError
from spikezip.measure.document import Measurement
from spikezip.measure.journal import Journal
from spikezip.measure.measuring import measure
from spikezip.measure.tally import Tally

SIZES = (2, 3, 1, 2, 2)


def _stop_after(samples: int) -> Any:
    def progress(done: int) -> None:
        if done >= samples:
            raise KeyboardInterrupt

    return progress


def _measure(**more: Any) -> Measurement:
    _, qann, snn = measured.networks()
    return measure(snn, measured.batches(*SIZES), qann, **more)


@pytest.fixture(scope="module")
def whole() -> Measurement:
    return _measure()


@pytest.mark.parametrize("save_every", [1, 2, 10])
def test_interrupted_and_resumed(whole: Measurement, tmp_path: Path, save_every: int) -> None:
    folder = tmp_path / "deep" / "folder"
    for samples in (5, 8):  # stopped twice
        with pytest.raises(KeyboardInterrupt):
            _measure(folder=folder, resume=True, save_every=save_every, progress=_stop_after(samples))
        assert not (folder / "measurement.json").exists()
    seen: list[int] = []
    assert _measure(folder=folder, resume=True, save_every=save_every, progress=seen.append) == whole
    assert seen == [10]  # the last batch alone was left
    assert Measurement.load(folder / "measurement.json") == whole
    assert _measure(folder=folder, resume=True, progress=seen.append) == whole  # nothing is left: the same again
    assert seen == [10]
    assert sorted(path.name for path in folder.iterdir()) == ["measurement.json", "measuring.json"]


def test_the_certificate_goes_on_too(whole: Measurement, tmp_path: Path) -> None:
    """What differed before the stop is not forgotten, and what comes after is added."""
    assert whole.certificate is not None
    assert (whole.certificate["exact"], whole.certificate["samples"]) == (True, sum(SIZES))
    snn, data, qann = measured.networks()[2], measured.batches_with_differences(), measured.altered()
    unbroken = measure(snn, data, qann)
    assert unbroken.certificate is not None
    assert (unbroken.certificate["exact"], unbroken.certificate["first_mismatch"]["batch"]) == (False, 1)
    with pytest.raises(KeyboardInterrupt):
        measure(snn, data, qann, folder=tmp_path, progress=_stop_after(4))  # the first difference is behind
    before = json.loads((tmp_path / "measuring.json").read_text())["tally"]["comparison"]
    assert (before["samples"], before["first"]["batch"]) == (4, 1)
    assert 0 < before["mismatches"] < unbroken.certificate["mismatches"]
    assert measure(snn, data, qann, folder=tmp_path, resume=True) == unbroken


def test_an_interrupt_inside_a_batch_loses_that_batch_only(
    whole: Measurement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spikezip.measure import one_batch

    real, calls = one_batch.activity, []

    def stops(run: spikezip.Run) -> Any:
        calls.append(run)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(run)

    monkeypatch.setattr(one_batch, "activity", stops)
    with pytest.raises(KeyboardInterrupt):
        _measure(folder=tmp_path)
    assert json.loads((tmp_path / "measuring.json").read_text())["tally"]["batches"] == 2
    assert _measure(folder=tmp_path, resume=True) == whole
    assert len(calls) == 6  # 2, the one that was lost, and the 3 that were left


def test_a_stream_is_read_once(whole: Measurement, tmp_path: Path) -> None:
    _, qann, snn = measured.networks()
    with pytest.raises(KeyboardInterrupt):
        measure(snn, iter(measured.batches(*SIZES)), qann, folder=tmp_path, progress=_stop_after(5))
    assert measure(snn, iter(measured.batches(*SIZES)), qann, folder=tmp_path, resume=True) == whole


def test_a_state_of_something_else_is_refused(tmp_path: Path) -> None:
    model, qann, snn = measured.networks()
    with pytest.raises(KeyboardInterrupt):
        _measure(folder=tmp_path, progress=_stop_after(5))
    before = (tmp_path / "measuring.json").read_bytes()
    again: dict[str, Any] = {"folder": tmp_path, "resume": True}

    with pytest.raises(ConfigError, match=r"holds a measurement already; resume it \(--resume\)"):
        _measure(folder=tmp_path)
    torch.manual_seed(5)
    other = spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(levels=16)), torch.randn(8, 3, 16, 16))
    with pytest.raises(CheckpointError, match=r"measuring\.json is of another spiking network"):
        measure(spikezip.convert(other), measured.batches(*SIZES), other, **again)
    with pytest.raises(CheckpointError, match="is of another QANN"):
        measure(snn, measured.batches(*SIZES), **again)
    with pytest.raises(CheckpointError, match="is of another float model"):
        _measure(float_model=model, **again)
    with pytest.raises(CheckpointError, match=r"another setting: stagger was 0, now it is 0\.5"):
        _measure(stagger=0.5, **again)
    with pytest.raises(CheckpointError, match="another setting: steps was 'equilibrium', now it is 7"):
        _measure(steps=7, **again)
    with pytest.raises(CheckpointError, match="other data: the first 2 batches are not those"):
        measure(snn, measured.batches(*SIZES, seed=2), qann, **again)
    with pytest.raises(CheckpointError, match="other data: the first 2 batches are not those"):
        measure(snn, measured.batches(5, 5), qann, **again)
    with pytest.raises(CheckpointError, match="it has 2 batches, here there are 1"):
        measure(snn, measured.batches(2), qann, **again)
    assert (tmp_path / "measuring.json").read_bytes() == before


def test_files_that_are_no_state(tmp_path: Path) -> None:
    (tmp_path / "measuring.json").write_text('{"format": "spikezip-measurement-state", "ver')
    with pytest.raises(CheckpointError, match="is not the state of a measurement"):
        _measure(folder=tmp_path, resume=True)
    (tmp_path / "measuring.json").write_text('{"format": "spikezip-measurement", "version": 1}')
    with pytest.raises(CheckpointError, match="it is 'spikezip-measurement', version 1"):
        _measure(folder=tmp_path, resume=True)
    (tmp_path / "measuring.json").write_text('{"format": "spikezip-measurement-state", "version": 1}')
    with pytest.raises(CheckpointError, match="version 1; choose another folder"):  # it compared no codes
        _measure(folder=tmp_path, resume=True)
    (tmp_path / "measuring.json").rename(tmp_path / "measuring-0-of-2.json")
    with pytest.raises(CheckpointError, match="another number of processes than the 1 of now"):
        _measure(folder=tmp_path, resume=True)
    with pytest.raises(ConfigError, match="is a file"):
        _measure(folder=tmp_path / "measuring-0-of-2.json")
    with pytest.raises(ConfigError, match="resume=True needs the folder"):
        _measure(resume=True)


def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    """What is kept has the same size after many batches: only numbers grow."""
    _, qann, snn = measured.networks()

    def size(tally: dict[str, Any]) -> int:
        return sum(size(v) for v in tally.values()) if isinstance(tally, dict) else len(str(tally).split(","))

    sizes: list[int] = []
    real = Journal.add

    def watched(self: Journal, tally: Tally, digest: str) -> None:
        real(self, tally, digest)
        plain = self.tally.to_json()
        sizes.append(size({k: v for k, v in plain["sites"]["embeddings"].items() if k != "t_eq"}))

    def same() -> Iterator[Any]:
        for _ in range(6):
            yield measured.batches(2)[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "add", watched)
        measure(snn, same(), qann)
    assert len(set(sizes)) == 1
