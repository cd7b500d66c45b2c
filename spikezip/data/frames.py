"""Events → frames: counts per pixel, in slices of equal time or of equal numbers of events.

The channels of a frame are [bin 0 −, bin 0 +, bin 1 −, bin 1 +, …], or one per bin without polarity.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spikezip.data.aedat import Events
from spikezip.errors import ConfigError, InputError

TIME, COUNT = "time", "count"


@dataclass(frozen=True)
class Binning:
    """How events become frames.

    Args:
        bins: slices of time. Each gives two channels, OFF and ON.
        size: height and width of a frame.
        by: "time" cuts the time covered into equal slices, "count" cuts the events into slices of equal number.
        polarity: False counts both polarities together, one channel per bin.

    Example:
        >>> Binning(bins=8, size=128).channels
        16
    """

    bins: int
    size: int
    by: str = TIME
    polarity: bool = True

    def __post_init__(self) -> None:
        for name in ("bins", "size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number from 1 on, not {value!r}")
        if self.by not in (TIME, COUNT):
            raise ConfigError(f'by is "time" or "count", not {self.by!r}')

    @property
    def channels(self) -> int:
        return self.bins * (2 if self.polarity else 1)


def to_frames(events: Events, bins: int, size: int, by: str = TIME, polarity: bool = True) -> Tensor:
    """Frames of events, float32 `[channels, size, size]` in 0 … 1: `count_events`, then `normalize`.

    Example:
        >>> t, one, on = np.array([0, 10, 99]), np.ones(3, np.int16), np.array([True, False, True])
        >>> frames = to_frames(Events(t, one, one, on, width=2, height=2), bins=2, size=1)
        >>> frames.shape, frames.flatten()  # bin 0 −, bin 0 +, bin 1 −, bin 1 +
        (torch.Size([4, 1, 1]), tensor([1., 1., 0., 1.]))
    """
    return normalize(count_events(events, Binning(bins, size, by, polarity))[None])[0]


def count_events(events: Events, binning: Binning) -> NDArray[np.uint16]:
    """Events per channel and pixel.

    An event at column x of a sensor of that width goes to column ⌊x · size / width⌋: sum-pooling where the ratio is a
    whole number; else cells that differ by one pixel of the sensor, and still every event counts once. A frame larger
    than the sensor repeats pixels: column X shows column ⌊X · width / size⌋. Each axis by itself: nothing is cut off,
    and a sensor that is not square is stretched to one.
    """
    size = binning.size
    height, width = min(size, events.height), min(size, events.width)
    x = events.x.astype(np.int64) * width // events.width
    y = events.y.astype(np.int64) * height // events.height
    if len(events) and (min(x.min(), y.min()) < 0 or x.max() >= width or y.max() >= height):
        raise InputError(f"an event lies outside of the sensor of {events.width} × {events.height} pixels")
    channel = _slices(events, binning)
    if binning.polarity:
        channel = channel * 2 + events.polarity
    flat = np.bincount((channel * height + y) * width + x, minlength=binning.channels * height * width)
    if flat.max() > np.iinfo(np.uint16).max:
        raise InputError(f"a pixel has {flat.max():,} events in one bin; cut the recording into shorter windows")
    counts = flat.reshape(binning.channels, height, width).astype(np.uint16)
    if height < size:
        counts = counts[:, np.arange(size) * height // size]
    if width < size:
        counts = counts[:, :, np.arange(size) * width // size]
    return counts


def _slices(events: Events, binning: Binning) -> NDArray[np.int64]:
    """The bin of each event."""
    if binning.by == COUNT:
        return np.arange(len(events)) * binning.bins // max(len(events), 1)
    start, stop = events.interval
    slices = (events.t - start) * binning.bins // (stop - start)
    if len(slices) and (slices.min() < 0 or slices.max() >= binning.bins):
        raise InputError(f"an event lies outside of the time from {start} to {stop} µs")
    return slices


def normalize(counts: NDArray[np.unsignedinteger]) -> Tensor:
    """Counts `[N, C, H, W]` as float32 in 0 … 1: log(1 + count) over the sample's largest log(1 + count).

    Counts have a long tail (edges that stay, pixels that stick), which the logarithm draws in, and they grow with the
    length of a recording, which the division takes out. No event stays 0, so frames stay sparse. A sample depends on
    nothing but itself, and the logarithms come from a table, so it has the same bits in every batch.

    Example:
        >>> normalize(np.array([[[[0, 1, 3]]], [[[0, 0, 0]]]], np.uint16)).flatten()
        tensor([0.0000, 0.5000, 1.0000, 0.0000, 0.0000, 0.0000])
    """
    largest = counts.max(axis=(1, 2, 3), keepdims=True)
    table = np.log1p(np.arange(int(largest.max(initial=0)) + 1)).astype(np.float32)
    scale = table[np.maximum(largest, 1)] if len(table) > 1 else np.ones((), np.float32)
    return torch.from_numpy(table[counts] / scale)


def windows(events: Events, window_ms: float | None = None, window_events: int | None = None) -> list[Events]:
    """Cut a recording into stretches of equal duration, or of equal number of events.

    What is left at its end is dropped. A window of equal duration may hold few events, or none.

    Example:
        >>> t = np.arange(0, 10_000, 100)
        >>> recording = Events(t, t * 0, t * 0, t > 0, width=128, height=128)
        >>> [len(w) for w in windows(recording, window_ms=3)], [w.interval for w in windows(recording, window_ms=5)]
        ([30, 30, 30], [(0, 5000)])
        >>> len(windows(recording, window_events=25))
        4
    """
    if (window_ms is None) == (window_events is None):
        raise ConfigError("a window is given either in milliseconds or in events: set one of window_ms, window_events")
    if window_events is not None:
        if isinstance(window_events, bool) or not isinstance(window_events, int) or window_events < 1:
            raise ConfigError(f"window_events must be a whole number from 1 on, not {window_events!r}")
        return [events.part(i, i + window_events) for i in range(0, len(events) - window_events + 1, window_events)]
    assert window_ms is not None
    length = round(window_ms * 1000)
    if length < 1:
        raise ConfigError(f"window_ms must be at least a microsecond, 0.001, not {window_ms!r}")
    start, stop = events.interval
    edges = start + length * np.arange((stop - start) // length + 1)
    at = np.searchsorted(events.t, edges)
    return [
        events.part(int(a), int(b), (int(lo), int(hi)))
        for a, b, lo, hi in zip(at[:-1], at[1:], edges[:-1], edges[1:], strict=True)
    ]
