"""Events to frames: counts against a plain loop, the rule for sizes, normalization, windows."""

import math
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch

from spikezip.data.aedat import Events
from spikezip.data.frame_split import Frames, cached, stack
from spikezip.data.frames import Binning, count_events, normalize, to_frames, windows
from spikezip.errors import ConfigError, InputError


def some_events(count: int = 700, width: int = 20, height: int = 12, seed: int = 0) -> Events:
    rng = np.random.default_rng(seed)
    t = np.sort(rng.integers(1000, 9000, count))
    x, y = rng.integers(0, width, count).astype(np.int16), rng.integers(0, height, count).astype(np.int16)
    return Events(t, x, y, rng.random(count) < 0.4, width, height)


def by_hand(events: Events, bins: int, size: int, by: str, polarity: bool) -> np.ndarray:
    counts = np.zeros((bins * (2 if polarity else 1), size, size), int)
    first, last = int(events.t[0]), int(events.t[-1]) + 1
    for n in range(len(events)):
        part = n / len(events) if by == "count" else (int(events.t[n]) - first) / (last - first)
        channel = math.floor(part * bins) * (2 if polarity else 1) + (int(events.polarity[n]) if polarity else 0)
        for row in range(size):
            for column in range(size):
                if size <= events.width:
                    hit_x = int(events.x[n]) * size // events.width == column
                else:
                    hit_x = column * events.width // size == int(events.x[n])
                if size <= events.height:
                    hit_y = int(events.y[n]) * size // events.height == row
                else:
                    hit_y = row * events.height // size == int(events.y[n])
                counts[channel, row, column] += hit_x and hit_y
    return counts


@pytest.mark.parametrize("size", [4, 7, 12, 15, 24])
@pytest.mark.parametrize(("bins", "by", "polarity"), [(1, "time", True), (3, "count", True), (4, "time", False)])
def test_counts_are_those_of_a_plain_loop(size: int, bins: int, by: str, polarity: bool) -> None:
    events = some_events(60)
    counts = count_events(events, Binning(bins, size, by, polarity))
    assert np.array_equal(counts, by_hand(events, bins, size, by, polarity))


def test_whole_ratios_are_sum_pooling() -> None:
    events = some_events(width=16, height=16)
    full = count_events(events, Binning(2, 16)).astype(int)
    assert np.array_equal(count_events(events, Binning(2, 4)), full.reshape(4, 4, 4, 4, 4).sum((2, 4)))
    assert np.array_equal(count_events(events, Binning(2, 32)), full.repeat(2, 1).repeat(2, 2))


@pytest.mark.parametrize("size", [3, 5, 11, 12])
def test_every_event_counts_once(size: int) -> None:
    assert count_events(some_events(), Binning(5, size)).sum() == 700


def test_slices_of_equal_count() -> None:
    counts = count_events(some_events(), Binning(7, 12, by="count", polarity=False))
    assert counts.sum((1, 2)).tolist() == [100] * 7


def test_normalization_is_a_samples_own_and_keeps_zero() -> None:
    counts = np.random.default_rng(1).poisson(0.3, (5, 4, 9, 9)).astype(np.uint8)
    counts[2] = 0
    counts[3, 0, 0, 0] = 200
    together = normalize(counts)
    for i in range(5):
        assert torch.equal(normalize(counts[i : i + 1])[0], together[i])
    assert torch.equal(normalize(counts.astype(np.uint16)), together)
    assert torch.equal(together == 0, torch.from_numpy(counts == 0))
    assert together.amax((1, 2, 3)).tolist() == [1, 1, 0, 1, 1]
    assert together.dtype == torch.float32


def test_to_frames_is_counts_normalized() -> None:
    events = some_events()
    frames = to_frames(events, bins=3, size=6)
    assert frames.shape == (6, 6, 6)
    assert torch.equal(frames, normalize(count_events(events, Binning(3, 6))[None])[0])


def test_no_events_are_an_empty_frame() -> None:
    empty = some_events().part(0, 0)
    assert not to_frames(empty, bins=2, size=4).any()
    assert not to_frames(empty, bins=2, size=4, by="count").any()


def test_windows_of_time_keep_their_slices() -> None:
    events = some_events()
    first, last = events.interval
    cut = windows(events, window_ms=2)
    assert len(cut) == (last - first) // 2000
    for number, window in enumerate(cut):
        start = first + 2000 * number
        assert window.interval == (start, start + 2000)
        inside = (events.t >= start) & (events.t < start + 2000)
        assert np.array_equal(window.t, events.t[inside])
        assert np.array_equal(window.x, events.x[inside])
        # The slices are those of the window, not from its first event to its last.
        halves = count_events(window, Binning(2, 1, polarity=False)).flatten()
        assert halves.tolist() == [int((window.t < start + 1000).sum()), int((window.t >= start + 1000).sum())]


def test_windows_of_count() -> None:
    events = some_events()
    cut = windows(events, window_events=300)
    assert [len(window) for window in cut] == [300, 300]
    assert np.array_equal(cut[1].t, events.t[300:600])


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="bins must be a whole number"):
        Binning(0, 4)
    with pytest.raises(ConfigError, match="size must be a whole number"):
        Binning(1, 4.0)
    with pytest.raises(ConfigError, match='"time" or "count", not \'space\''):
        Binning(1, 4, by="space")
    for wrong in ({}, {"window_ms": 1.0, "window_events": 2}, {"window_events": 0}, {"window_ms": 0.0}):
        with pytest.raises(ConfigError, match="window"):
            windows(some_events(), **wrong)


def test_events_that_cannot_be() -> None:
    t, place = np.array([0]), np.array([5], np.int16)
    with pytest.raises(InputError, match="outside of the sensor of 5 × 8"):
        count_events(Events(t, place, place, t > 0, 5, 8), Binning(1, 4))
    with pytest.raises(InputError, match="outside of the time"):
        count_events(Events(t + 9, place, place, t > 0, 8, 8, span=(0, 9)), Binning(1, 4))
    many = np.zeros(70_000, np.int16)
    with pytest.raises(InputError, match="70,000 events in one bin"):
        count_events(Events(many.astype(np.int64), many, many, many > 0, 8, 8), Binning(1, 4))


def test_a_split_hands_out_whole_batches() -> None:
    counts = [np.full((2, 3, 3), n, np.uint16) for n in (1, 2, 300)]
    split = stack(((c, n) for n, c in enumerate(counts)), 3)
    assert split.counts.dtype == np.uint16
    assert split.counts[:, 0, 0, 0].tolist() == [1, 2, 300]
    batch = split.__getitems__([2, 0])
    assert batch["labels"].tolist() == [2, 0]
    assert torch.equal(batch["pixel_values"], torch.ones(2, 2, 3, 3))
    assert torch.equal(split[1]["pixel_values"], torch.ones(2, 3, 3))
    with pytest.raises(InputError, match="no samples"):
        stack([], 0)


def test_the_cache(tmp_path: Path) -> None:
    made = []

    def make() -> Frames:
        made.append(1)
        return Frames(np.ones((2, 1, 2, 2), np.uint8), np.array([0, 1]))

    first = cached(tmp_path, "some", {"bins": 1}, make)
    again = cached(tmp_path, "some", {"bins": 1}, make)
    assert len(made) == 1
    assert np.array_equal(first.counts, again.counts)
    assert torch.equal(first.labels, again.labels)
    cached(tmp_path, "some", {"bins": 2}, make)
    cached(None, "some", {"bins": 1}, make)
    assert len(made) == 3


def test_the_cache_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Frames:
        return Frames(np.ones((2, 1, 2, 2), np.uint8), np.array([0, 1]))

    def broken(file: BinaryIO, **arrays: object) -> None:
        file.write(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez_compressed", broken)
        with pytest.raises(OSError, match="disk full"):
            cached(tmp_path, "some", {}, make)
    assert list(tmp_path.iterdir()) == []
    cached(tmp_path, "some", {}, make)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(InputError, match=r"is damaged.*delete it"):
        cached(tmp_path, "some", {}, make)
