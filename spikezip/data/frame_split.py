"""A split of frames, and its cache. Frames are kept as counts, one or two bytes each, and normalized per batch."""

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spikezip.data.base import Split
from spikezip.data.frames import normalize
from spikezip.errors import InputError

Counts = NDArray[np.unsignedinteger]
Sample = tuple[NDArray[np.uint16], int]  # counts [C, H, W], class number


class Frames(Split):
    """Frames of events: counts `[N, C, H, W]`, handed out as float32 in 0 … 1 (`frames.normalize`).

    Example:
        >>> split = Frames(np.array([[[[0, 1]]], [[[2, 0]]]], np.uint8), np.array([0, 1]))
        >>> split.__getitems__([1])
        {'pixel_values': tensor([[[[1., 0.]]]]), 'labels': tensor([1])}
    """

    def __init__(self, counts: Counts, labels: NDArray[np.int64]) -> None:
        self.counts, self.labels = counts, torch.from_numpy(np.asarray(labels, np.int64))

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Any]:
        chosen = np.asarray(indices, np.int64)
        return {"pixel_values": normalize(self.counts[chosen]), "labels": self.labels[torch.from_numpy(chosen)]}


def stack(samples: Iterable[Sample], total: int) -> Frames:
    """A split from `total` samples that come one at a time; one byte per count, or two if any is above 255.

    Example:
        >>> stack(((np.full((1, 2, 2), n, np.uint16), n % 2) for n in (3, 300)), total=2).counts.dtype
        dtype('uint16')
    """
    counts: Counts | None = None
    labels = np.zeros(total, np.int64)
    for index, (sample, label) in enumerate(samples):
        if counts is None:
            counts = np.zeros((total, *sample.shape), np.uint8)
        if counts.dtype == np.uint8 and sample.max() > 255:
            counts = counts.astype(np.uint16)
        counts[index], labels[index] = sample, label
    if counts is None:
        raise InputError("there are no samples to make frames from")
    return Frames(counts, labels)


def cached(folder: str | Path | None, name: str, key: dict[str, Any], make: Callable[[], Frames]) -> Frames:
    """The split that `make` makes, kept as an .npz file in `folder` if one is given.

    The file's name holds a hash of `key`: all that the frames depend on. It appears whole or not at all, so a run that
    is broken off, or two at once, do no harm.
    """
    if folder is None:
        return make()
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    path = Path(folder) / f"{name}-{digest}.npz"
    if path.exists():
        try:
            with path.open("rb") as kept, np.load(kept, allow_pickle=False) as saved:
                return Frames(saved["counts"], saved["labels"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"the cache {path} is damaged ({error}); delete it, and it is made again") from None
    frames = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{name}-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, counts=frames.counts, labels=frames.labels.numpy())
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    return frames


def fingerprint(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """What tells whether files changed: name, size and time of change of each."""
    return [(f"{file.parent.name}/{file.name}", (s := file.stat()).st_size, s.st_mtime_ns) for file in files]
