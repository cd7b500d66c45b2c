"""Recordings by session: which classes and windows end up where, and what the note says of the rest."""

from pathlib import Path

import numpy as np
import pytest
import torch
from event_files import noise, write

from spikezip.data.aedat import read_aedat
from spikezip.data.frames import Binning, count_events, windows
from spikezip.data.recordings import open_recordings
from spikezip.errors import ConfigError, InputError

FILES = {
    "session1": ("Mug.aedat.gz", "Mug_1.aedat.gz", "Box.aedat", "Cube.aedat"),
    "session2": ("Box.aedat.gz", "Mug.aedat", "Phone.aedat", "Mouse.aedat"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for session, files in FILES.items():
        for number, file in enumerate(files):
            write(tmp_path / session / file, noise(seed=number, events=3000, duration=1_050_000))
    (tmp_path / "session1" / "notes.txt").write_text("not a recording")
    return tmp_path


def test_sessions_are_the_split(folder: Path) -> None:
    data = open_recordings(folder, window_ms=100, bins=2, size=16)
    assert data.classes == ("Box", "Mug")
    assert data.kind == "frames"
    # Ten windows a recording; the last tenth of each training recording is for validation.
    assert data.train.labels.tolist() == [0] * 9 + [1] * 18
    assert data.validation.labels.tolist() == [0, 1, 1]
    assert data.test.labels.tolist() == [0] * 10 + [1] * 10
    binning = Binning(2, 16)
    box = windows(read_aedat(folder / "session1/Box.aedat"), window_ms=100)
    assert np.array_equal(data.train.counts[:9], [count_events(w, binning) for w in box[:9]])
    assert np.array_equal(data.validation.counts[0], count_events(box[9], binning))
    mug = windows(read_aedat(folder / "session2/Mug.aedat"), window_ms=100)
    assert np.array_equal(data.test.counts[10:], [count_events(w, binning) for w in mug])
    assert data.train[0]["pixel_values"].shape == (4, 16, 16)


def test_the_note_says_what_was_left_out(folder: Path) -> None:
    note = open_recordings(folder, window_ms=100, min_events=280, size=16).note
    assert "Windows of 100 ms; trained on session1, tested on session2." in note
    assert "Cube of session1, which session2 does not have" in note
    assert "Mouse, Phone of session2, which session1 does not have" in note
    assert "windows of session1 with fewer than 280 events" in note
    assert "fewer than" not in open_recordings(folder, window_ms=100, size=16).note


def test_windows_with_few_events_are_left_out(folder: Path) -> None:
    every = windows(read_aedat(folder / "session2/Box.aedat.gz"), window_ms=100)
    enough = sum(len(window) >= 280 for window in every)
    assert 0 < enough < len(every)
    data = open_recordings(folder, window_ms=100, min_events=280, size=16)
    assert int((data.test.labels == 0).sum()) == enough


def test_the_other_way_round_and_by_count(folder: Path) -> None:
    data = open_recordings(
        folder, train="session2", test="session1", window_events=500, by="count", hold_out=0, size=16, polarity=False
    )
    assert (len(data.train), len(data.test)) == (12, 18)
    assert data.validation is data.test
    assert "Windows of 500 events; trained on session2, tested on session1. Validation: the test windows." in data.note
    assert set(data.train.counts.sum((1, 2, 3)).tolist()) == {500}


def test_nothing_is_random(folder: Path) -> None:
    first, second = (open_recordings(folder, seed=seed, size=16) for seed in (0, 1))
    batch = list(range(len(first.train)))
    assert torch.equal(
        first.train.__getitems__(batch)["pixel_values"], second.train.__getitems__(batch)["pixel_values"]
    )
    assert "200 ms" in first.note


def test_errors_name_the_remedy(folder: Path) -> None:
    with pytest.raises(ConfigError, match="on both sides"):
        open_recordings(folder, test="session1")
    with pytest.raises(ConfigError, match="hold_out is a share"):
        open_recordings(folder, hold_out=1.0)
    with pytest.raises(ConfigError, match="set one of window_ms, window_events"):
        open_recordings(folder, window_ms=1, window_events=1)
    with pytest.raises(InputError, match=r"no folder .*session3; .* holds session1, session2"):
        open_recordings(folder, test="session3")
    with pytest.raises(InputError, match=r"Box\.aedat gives no window .*3,000 events and 0 windows\); make"):
        open_recordings(folder, window_ms=5000)
    with pytest.raises(InputError, match=r"session1: no window is left to train on; .* hold_out smaller"):
        open_recordings(folder, window_ms=1000, hold_out=0.9)
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty holds no .aedat"):
        open_recordings(folder, test="empty")
    write(folder / "other" / "Lamp.aedat", noise(0, 10, 10))
    with pytest.raises(InputError, match=r"no class in common; session1 has Box, Cube, Mug, other has Lamp"):
        open_recordings(folder, test="other")
