"""Datasets of tonic, through a stand-in with its interface: `tonic` itself is not needed to test."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spikezip.data.tonic import open_tonic
from spikezip.errors import ConfigError, InputError

DTYPE = np.dtype([("x", np.int16), ("y", np.int16), ("p", bool), ("t", np.int64)])


class Dataset:
    """As tonic's: `data` lists files, `targets` classes; a sample is (structured array, target)."""

    sensor_size: Any = (16, 16, 2)
    classes: Any = ("left", "right")
    names: Any = (0, 1)  # of the targets
    per_class = 10

    def __init__(self, save_to: str) -> None:
        self.data, self.targets = [], []
        for target in self.names:
            for number in reversed(range(self.per_class)):  # in no useful order, as a file system has it
                path = Path(save_to, f"{target}-{number}.npy")
                self.data.append(str(path))
                self.targets.append(target)
                if not path.exists():
                    path.write_bytes(b"")

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        number = int(Path(self.data[index]).stem.split("-")[1])
        events = np.zeros(number + 1, DTYPE)
        events["t"] = np.arange(number + 1)[::-1]
        return events, self.targets[index]


class Parted(Dataset):
    def __init__(self, save_to: str, train: bool = True) -> None:
        self.per_class = 6 if train else 2
        super().__init__(save_to)


class Named(Dataset):  # as N-Caltech101
    sensor_size, classes, names = None, None, ("zebra", "ant")


class Mapped(Dataset):  # as CIFAR10-DVS
    classes = {"right": 1, "left": 0}  # noqa: RUF012  # a plain attribute, as tonic has it


class Sound(Parted):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return np.zeros(3, [("t", int), ("x", int), ("p", int)]), 0


class Flow(Parted):
    classes = None


class Strange(Parted):
    names = (0, 7)


class Silent(Parted):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return np.zeros(0, DTYPE), 0


class Away(Parted):
    def __init__(self, save_to: str, train: bool = True) -> None:
        raise OSError("no route to host")


@pytest.fixture(autouse=True)
def _tonic(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (Dataset, Parted, Named, Mapped, Sound, Flow, Strange, Silent, Away)
    module = ModuleType("tonic")
    module.datasets = SimpleNamespace(
        __all__=[kind.__name__ for kind in kinds], **{kind.__name__: kind for kind in kinds}
    )
    monkeypatch.setitem(sys.modules, "tonic", module)


def test_tonics_own_parts_are_the_split(tmp_path: Path) -> None:
    data = open_tonic(tmp_path, dataset="Parted", bins=2, size=8)
    assert data.classes == ("left", "right")
    assert data.train.labels.tolist() == [0] * 6 + [1] * 6
    assert data.train.counts.sum((1, 2, 3)).tolist() == [1, 2, 3, 4, 5, 6] * 2  # in the order of the files
    assert data.train[0]["pixel_values"].shape == (4, 8, 8)
    assert len(data.test) == 4
    assert data.validation is data.test


def test_without_parts_a_tenth_of_each_class_is_held_out(tmp_path: Path) -> None:
    data = open_tonic(tmp_path, dataset="Mapped", size=8)
    assert data.classes == ("left", "right")
    assert data.train.labels.tolist() == [0] * 9 + [1] * 9
    assert data.test.labels.tolist() == [0, 1]
    for label in (0, 1):
        both = [s.counts[(s.labels == label).numpy()].sum((1, 2, 3)) for s in (data.train, data.test)]
        assert sorted(np.concatenate(both).tolist()) == list(range(1, 11))
    assert "seed 0" in data.note
    chosen = {int(open_tonic(tmp_path, dataset="Mapped", size=8, seed=s).test.counts[0].sum()) for s in range(8)}
    assert len(chosen) > 1


def test_names_as_targets_and_no_sensor_size(tmp_path: Path) -> None:
    data = open_tonic(tmp_path, dataset="Named", size=4)
    assert data.classes == ("ant", "zebra")
    assert sorted(data.test.labels.tolist()) == [0, 1]


def test_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_tonic(tmp_path, dataset="Parted", size=8, cache=tmp_path / "cache")
    monkeypatch.setattr(Parted, "__getitem__", lambda *_: pytest.fail("read again"))
    again = open_tonic(tmp_path, dataset="Parted", size=8, cache=tmp_path / "cache")
    assert np.array_equal(first.train.counts, again.train.counts)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("Sound", "Sound, sample .*: events have no field y"),
        ("Flow", "Flow does not name its classes"),
        ("Strange", "the target 7 is none of the 2 classes"),
        ("Silent", "holds no events"),
        ("Away", "does not hold Away, and tonic cannot get it: no route to host"),
    ],
)
def test_datasets_that_do_not_fit(tmp_path: Path, dataset: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_tonic(tmp_path, dataset=dataset)


def test_too_few_to_hold_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dataset, "per_class", 3)
    with pytest.raises(InputError, match="too few samples"):
        open_tonic(tmp_path, dataset="Dataset")


def test_unknown_names_and_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="tonic has no dataset 'NMINST'; it has Away, Dataset, Flow"):
        open_tonic(tmp_path, dataset="NMINST")
    monkeypatch.setitem(sys.modules, "tonic", None)
    with pytest.raises(InputError, match="needs tonic: pip install tonic"):
        open_tonic(tmp_path)
