"""CIFAR10-DVS (Li et al. 2017): 10,000 pictures of CIFAR-10, moved on a screen before a DVS128, as event recordings.

The files are as published: one folder per class, `airplane/cifar10_airplane_0.aedat` … `_999.aedat`, AEDAT 2.0.
Compared with other DVS128 recordings rows and columns are exchanged, as SpikingJelly's reader has it (`cifar10_dvs.py`:
column 127 − row field, row 127 − column field, polarity 1 − bit 0).

The dataset has no split of its own, and papers use three, which give different accuracies:

    "names"   the first nine tenths of each class in the alphabetical order of file names (0, 1, 10, 100, 101, …), as
              SpikingJelly's `split_to_train_test_set(0.9, …)` gives; the one used most
    "number"  the same in the order of the numbers: 0 … 899 train, 900 … 999 test
    "tebn"    100 … 999 train, 0 … 99 test, after TEBN (NeurIPS 2022); SpikingJelly warns that it gives much higher
              accuracies than a random split
"""

import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from spikezip.data.aedat import read_aedat
from spikezip.data.base import FRAMES, Data
from spikezip.data.cifar_names import CIFAR10
from spikezip.data.frame_split import Frames, Sample, cached, fingerprint, stack
from spikezip.data.frames import COUNT, Binning, count_events
from spikezip.errors import ConfigError, InputError

SPLITS = ("names", "number", "tebn")
_NUMBER = re.compile(r"(\d+)\.aedat(\.gz)?")
Files = list[tuple[Path, int]]  # with the class number


def open_cifar10_dvs(
    source: str | Path,
    *,
    seed: int = 0,
    split: str = "names",
    bins: int = 8,
    size: int = 128,
    by: str = COUNT,
    polarity: bool = True,
    unordered: str = "error",
    cache: str | Path | None = None,
) -> Data:
    """CIFAR10-DVS as frames.

    Args:
        source: the folder that holds the ten folders of the classes.
        seed: not used; nothing here is random.
        split: "names", "number" or "tebn", see above. Validation is the test: there is no third part.
        bins, size, by, polarity: how a recording becomes a frame, see `frames.Binning`.
        unordered: see `read_aedat`.
        cache: a folder for the frames, so that the recordings are read once (about 2.6 GB of memory at the defaults,
            much less on disk).

    Example:
        >>> import struct, tempfile
        >>> record = struct.pack(">2I", 0, 5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in CIFAR10:
        ...         Path(folder, name).mkdir()
        ...         for n in range(10):
        ...             file = Path(folder, name, f"cifar10_{name}_{n}.aedat")
        ...             _ = file.write_bytes(b"#!AER-DAT2.0\\r\\n" + record)
        ...     data = open_cifar10_dvs(folder, bins=2, size=32)
        >>> len(data.train), len(data.test), data.train[0]["pixel_values"].shape
        (90, 10, torch.Size([4, 32, 32]))
    """
    if split not in SPLITS:
        raise ConfigError(f"split is one of {', '.join(SPLITS)}, not {split!r}")
    binning = Binning(bins, size, by, polarity)
    train: Files = []
    test: Files = []
    for number, name in enumerate(CIFAR10):
        files = _files(Path(source), name, split)
        held = len(files) - math.ceil(0.9 * len(files))
        first = held if split == "tebn" else 0
        last = len(files) if split == "tebn" else len(files) - held
        train += [(file, number) for file in files[first:last]]
        test += [(file, number) for file in (*files[:first], *files[last:])]
    if not test:
        raise InputError(f"{source} has fewer than 10 recordings per class: there is nothing to test on")
    settings = {"binning": [bins, size, by, polarity], "unordered": unordered}
    parts = {
        part: cached(
            cache,
            f"cifar10-dvs-{part}",
            {**settings, "files": fingerprint(file for file, _ in files)},
            partial(_read, files, binning, unordered),
        )
        for part, files in (("train", train), ("test", test))
    }
    return Data(
        name="cifar10-dvs",
        kind=FRAMES,
        classes=CIFAR10,
        train=parts["train"],
        validation=parts["test"],
        test=parts["test"],
        note=f"The dataset has no split of its own. Split {split!r}, per class: {len(train):,} recordings to train on, "
        f"{len(test):,} to test on. Validation is the test.",
    )


def _files(folder: Path, name: str, split: str) -> list[Path]:
    """The recordings of a class, in the order that the split goes by."""
    path = folder / name
    if not path.is_dir():
        raise InputError(f"there is no folder {path}; CIFAR10-DVS is one folder per class: {', '.join(CIFAR10)}")
    found = sorted(file for file in path.iterdir() if file.name.endswith((".aedat", ".aedat.gz")))
    if not found:
        other = next((file.name for file in path.iterdir() if ".aedat4" in file.name), None)
        raise InputError(
            f"{path} holds no .aedat files"
            + (f', but {other}: AEDAT 4 is read through tonic, open_data("tonic", …)' if other else "")
        )
    if split == "names":
        return found
    numbers: dict[Path, int] = {}
    for file in found:
        number = _NUMBER.search(file.name)
        if number is None:
            raise InputError(f"{file} has no number in its name, which the split {split!r} goes by")
        numbers[file] = int(number[1])
    return sorted(found, key=lambda file: numbers[file])


def _read(files: Files, binning: Binning, unordered: str) -> Frames:
    def samples() -> Iterator[Sample]:
        for file, number in files:
            events = read_aedat(file, unordered)
            if not len(events):
                raise InputError(f"{file} holds no events; get it again")
            yield count_events(events.transposed(), binning), number

    return stack(samples(), len(files))
