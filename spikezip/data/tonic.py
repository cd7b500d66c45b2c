"""Any event dataset of the package tonic (tonic.readthedocs.io) whose events have a place and whose samples a class."""

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from spikezip.data.aedat import Events
from spikezip.data.base import FRAMES, Data
from spikezip.data.frame_split import Frames, Sample, cached, fingerprint, stack
from spikezip.data.frames import TIME, Binning, count_events
from spikezip.data.order import hold_out
from spikezip.errors import ConfigError, InputError


def open_tonic(
    source: str | Path,
    *,
    seed: int = 0,
    dataset: str = "NMNIST",
    bins: int = 4,
    size: int = 128,
    by: str = TIME,
    polarity: bool = True,
    cache: str | Path | None = None,
) -> Data:
    """A dataset of tonic as frames: `dataset="NMNIST"`, `"DVSGesture"`, `"CIFAR10DVS"`, `"NCALTECH101"`, …

    Where tonic has a training and a test part, those are the split, and validation is the test. Where it has one part,
    a tenth of each class, drawn by `seed`, is the test.

    Args:
        source: the folder in which tonic keeps its datasets (its `save_to`); tonic downloads there what is missing.
        dataset: the name of a class in `tonic.datasets`.
        bins, size, by, polarity: how a sample becomes a frame, see `frames.Binning`. A dataset without a sensor size
            (N-Caltech101) takes each sample's own extent.
        cache: a folder for the frames, so that the samples are read once.

    Example:
        >>> open_tonic("data", dataset="NMNIST", bins=4, size=34)  # doctest: +SKIP
    """
    binning = Binning(bins, size, by, polarity)
    kind = _class(dataset)
    if "train" in inspect.signature(kind).parameters:
        whole = {part: _make(kind, source, train=part == "train") for part in ("train", "test")}
        chosen = {part: _ordered(data) for part, data in whole.items()}
        note = f"tonic's own training and test part of {dataset}. Validation is the test."
    else:
        data = _make(kind, source)
        whole = {"train": data, "test": data}
        chosen = dict(zip(("train", "test"), _held_out(data, dataset, seed), strict=True))
        note = f"{dataset} has no split of its own: a tenth of each class, drawn with seed {seed}, is the test. "
        note += "Validation is the test."
    classes = _classes(whole["train"], dataset)
    parts = {
        part: cached(
            cache,
            f"{dataset.lower()}-{part}",
            {
                "dataset": dataset,
                "binning": [bins, size, by, polarity],
                "samples": _fingerprint(data, source, chosen[part]),
            },
            partial(_read, data, chosen[part], classes, dataset, binning),
        )
        for part, data in whole.items()
    }
    return Data(
        name=f"tonic-{dataset.lower()}",
        kind=FRAMES,
        classes=tuple(classes),
        train=parts["train"],
        validation=parts["test"],
        test=parts["test"],
        note=note,
    )


def _class(dataset: str) -> Any:
    try:
        datasets = importlib.import_module("tonic").datasets
    except ModuleNotFoundError as error:
        if error.name != "tonic":
            raise
        raise InputError("a dataset of tonic needs tonic: pip install tonic") from None
    if dataset not in datasets.__all__:
        raise ConfigError(f"tonic has no dataset {dataset!r}; it has {', '.join(sorted(datasets.__all__))}")
    return getattr(datasets, dataset)


def _make(kind: Any, source: str | Path, **part: bool) -> Any:
    try:
        return kind(save_to=str(source), **part)
    except (OSError, RuntimeError) as error:  # no connection, a wrong checksum, to be downloaded by hand
        raise InputError(f"{source} does not hold {kind.__name__}, and tonic cannot get it: {error}") from None


def _files(data: Any) -> list[str] | None:
    """The file of each sample, where tonic lists files."""
    files = getattr(data, "data", None)
    if isinstance(files, list) and len(files) == len(data) and all(isinstance(file, str | Path) for file in files):
        return [str(file) for file in files]
    return None


def _ordered(data: Any) -> list[int]:
    """Samples in the order of their files: tonic lists them as the file system does, which differs by machine."""
    files = _files(data)
    return sorted(range(len(data)), key=files.__getitem__) if files else list(range(len(data)))


def _fingerprint(data: Any, source: str | Path, chosen: Sequence[int]) -> list[Any]:
    """What tells whether samples changed: their files; where tonic does not list them, the folder and the numbers."""
    files = _files(data)
    return [str(source), len(data), *chosen] if files is None else [*fingerprint(Path(files[i]) for i in chosen)]


def _held_out(data: Any, dataset: str, seed: int) -> tuple[list[int], list[int]]:
    targets = getattr(data, "targets", None)
    if targets is None or len(targets) != len(data):
        raise InputError(f"{dataset} has no split and no list of classes to make one from")
    by_class: dict[str, list[int]] = {}
    for index in _ordered(data):
        by_class.setdefault(str(targets[index]), []).append(index)
    train: list[int] = []
    test: list[int] = []
    for indices in by_class.values():
        kept, held = hold_out(len(indices), seed)
        train += [indices[i] for i in kept]
        test += [indices[i] for i in held]
    if not test:
        raise InputError(f"{dataset} has too few samples to hold out a tenth of each class: {len(data)}")
    return train, test


def _classes(data: Any, dataset: str) -> list[str]:
    classes = getattr(data, "classes", None)
    if isinstance(classes, Mapping):  # name → number
        return [str(name) for name, _ in sorted(classes.items(), key=lambda item: item[1])]
    if classes is not None:
        return [str(name) for name in classes]
    targets = getattr(data, "targets", None)
    if targets is None or not all(isinstance(target, str) for target in targets):
        raise InputError(f"{dataset} does not name its classes; only datasets for classification are read here")
    return sorted(set(targets))


def _read(data: Any, chosen: Sequence[int], classes: list[str], dataset: str, binning: Binning) -> Frames:
    files, sensor = _files(data), getattr(data, "sensor_size", None)

    def samples() -> Iterator[Sample]:
        for index in chosen:
            events, target = data[index]
            where = f"{dataset}, sample {files[index] if files else index}"
            yield count_events(_events(events, sensor, where), binning), _label(target, classes, where)

    return stack(samples(), len(chosen))


def _label(target: Any, classes: list[str], where: str) -> int:
    if isinstance(target, str) and target in classes:
        return classes.index(target)
    if isinstance(target, int | np.integer) and 0 <= target < len(classes):
        return int(target)
    raise InputError(f"{where}: the target {target!r} is none of the {len(classes)} classes")


def _events(events: Any, sensor: Sequence[int] | None, where: str) -> Events:
    names = getattr(getattr(events, "dtype", None), "names", None) or ()
    missing = [name for name in ("t", "x", "y", "p") if name not in names]
    if missing:
        raise InputError(
            f"{where}: events have no field {', '.join(missing)}; frames need events with t, x, y and p, from a camera"
        )
    if not len(events):
        raise InputError(f"{where} holds no events")
    t = events["t"].astype(np.int64)
    order = np.argsort(t, kind="stable")  # nearly always in order already
    width, height = sensor[:2] if sensor else (int(events["x"].max()) + 1, int(events["y"].max()) + 1)
    return Events(
        t=t[order],
        x=events["x"][order].astype(np.int16),
        y=events["y"][order].astype(np.int16),
        polarity=events["p"][order] > 0,
        width=int(width),
        height=int(height),
    )
