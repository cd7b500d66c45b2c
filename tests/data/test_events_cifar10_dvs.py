"""CIFAR10-DVS, on small files in the published form: orientation, the three splits, the cache."""

from pathlib import Path

import numpy as np
import pytest
from event_files import address, noise, write

from spikezip.data.cifar10_dvs import open_cifar10_dvs
from spikezip.data.cifar_names import CIFAR10
from spikezip.errors import ConfigError, InputError

PER_CLASS = 20


def events_of(number: int) -> int:
    """The recordings differ in how many events they have, so that each can be told from its counts."""
    return number + 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dvs")
    for name in CIFAR10:
        for number in range(PER_CLASS):
            records = [(address(0, 0, 0), t) for t in range(events_of(number))]
            write(root / name / f"cifar10_{name}_{number}.aedat", records)
    return root


def numbers(split: object) -> list[list[int]]:
    """Which recordings a split holds, per class, told from their number of events."""
    found = [int(count) - 1 for count in split.counts.sum((1, 2, 3))]
    labels = split.labels.tolist()
    assert labels == sorted(labels)
    return [[n for n, label in zip(found, labels, strict=True) if label == c] for c in range(10)]


@pytest.mark.parametrize(
    ("split", "test"),
    # Names sort as text: 0, 1, 10, 11, … 19, 2, 3, … 8, 9.
    [("names", [8, 9]), ("number", [18, 19]), ("tebn", [0, 1])],
)
def test_splits(folder: Path, split: str, test: list[int]) -> None:
    data = open_cifar10_dvs(folder, split=split, bins=1, size=8)
    assert data.classes == CIFAR10
    assert numbers(data.test) == [test] * 10
    assert [sorted(part) for part in numbers(data.train)] == [[n for n in range(PER_CLASS) if n not in test]] * 10
    assert data.validation is data.test
    assert repr(split) in data.note
    assert "180 recordings" in data.note


def test_rows_and_columns_are_exchanged(tmp_path: Path) -> None:
    for name in CIFAR10:
        for number in range(10):
            write(tmp_path / name / f"cifar10_{name}_{number}.aedat", [(address(27, 100, 1), 0)])
    data = open_cifar10_dvs(tmp_path, bins=1, size=128)
    where = np.argwhere(data.test.counts[0])
    assert where.tolist() == [[0, 127 - 27, 127 - 100]]  # OFF, row 127 − column field, column 127 − row field


def test_frames_have_bins_times_two_channels(tmp_path: Path) -> None:
    for name in CIFAR10:
        for number in range(10):
            write(tmp_path / name / f"{number}.aedat.gz", noise(number, 64, 1000))
    data = open_cifar10_dvs(tmp_path, bins=4, size=32)
    assert data.train[0]["pixel_values"].shape == (8, 32, 32)
    assert data.train.counts[0].reshape(4, -1).sum(1).tolist() == [16] * 4


def test_the_cache_is_used_and_knows_its_settings(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_cifar10_dvs(folder, bins=1, size=8, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    with monkeypatch.context() as patch:
        patch.setattr("spikezip.data.cifar10_dvs.read_aedat", lambda *_: pytest.fail("read again"))
        again = open_cifar10_dvs(folder, bins=1, size=8, cache=tmp_path)
    assert np.array_equal(first.train.counts, again.train.counts)
    open_cifar10_dvs(folder, bins=2, size=8, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_errors_name_the_remedy(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names, number, tebn, not 'random'"):
        open_cifar10_dvs(folder, split="random")
    with pytest.raises(InputError, match=r"no folder .*airplane; CIFAR10-DVS is one folder per class"):
        open_cifar10_dvs(tmp_path)
    (tmp_path / "airplane").mkdir()
    with pytest.raises(InputError, match=r"airplane holds no .aedat files$"):
        open_cifar10_dvs(tmp_path)
    (tmp_path / "airplane" / "cifar10_airplane_0.aedat4").touch()
    with pytest.raises(InputError, match="AEDAT 4 is read through tonic"):
        open_cifar10_dvs(tmp_path)
    for name in CIFAR10:
        write(tmp_path / name / "first.aedat", [])
    with pytest.raises(InputError, match="fewer than 10 recordings per class"):
        open_cifar10_dvs(tmp_path)
    with pytest.raises(InputError, match=r"first\.aedat has no number in its name"):
        open_cifar10_dvs(tmp_path, split="number")
    for number in range(10):
        for name in CIFAR10:
            write(tmp_path / name / f"{number}.aedat", [])
    with pytest.raises(InputError, match=r"0\.aedat holds no events"):
        open_cifar10_dvs(tmp_path)
