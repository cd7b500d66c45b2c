"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the python version, the binary version, an .npz, or the Hub."""

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spikezip.data import hub
from spikezip.data.base import IMAGES, Data
from spikezip.data.cifar_names import CIFAR10, CIFAR100
from spikezip.data.images import Images, from_arrays
from spikezip.data.plain_pickle import loads
from spikezip.errors import InputError

Files = Mapping[str, Callable[[], bytes]]  # what a folder or an archive holds, by name without folders
Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class _Cifar:
    name: str
    classes: tuple[str, ...]
    train: tuple[str, ...]  # files, without the .bin of the binary version
    test: str
    key: str  # of the labels, in the python version and on the Hub
    label_bytes: int  # of the binary version; the last one is the class
    mean: tuple[float, ...]
    std: tuple[float, ...]


_CIFAR10 = _Cifar(
    name="cifar10",
    classes=CIFAR10,
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    key="labels",
    label_bytes=1,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
_CIFAR100 = _Cifar(
    name="cifar100",
    classes=CIFAR100,
    train=("train",),
    test="test",
    key="fine_labels",
    label_bytes=2,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)


def open_cifar10(source: str | Path, *, seed: int = 0) -> Data:
    """CIFAR-10: 50,000 and 10,000 images of 32 × 32 pixels in 10 classes.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for file in (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"):
        ...         _ = Path(folder, file).write_bytes(bytes([7]) + bytes(3072))
        ...     data = open_cifar10(folder)
        >>> len(data.train), data.classes[data.test[0]["labels"]]
        (5, 'horse')
    """
    return _open(_CIFAR10, source)


def open_cifar100(source: str | Path, *, seed: int = 0) -> Data:
    """CIFAR-100: the same number of images in 100 classes (the fine labels)."""
    return _open(_CIFAR100, source)


def _open(kind: _Cifar, source: str | Path) -> Data:
    path = Path(source)
    if not path.exists():
        train, test = _from_hub(kind, str(source))
    elif path.suffix == ".npz":
        train, test = _from_npz(kind, path)
    else:
        train, test = _from_batches(kind, path)
    return Data(
        name=kind.name,
        kind=IMAGES,
        classes=kind.classes,
        train=train,
        validation=test,
        test=test,
        note=f"{kind.name}: the published split, {len(train):,} for training and {len(test):,} for test; "
        "there is none for validation, so validation is test.",
        mean=kind.mean,
        std=kind.std,
    )


def _from_hub(kind: _Cifar, source: str) -> tuple[Images, Images]:
    splits = hub.load(source)
    if "test" not in splits:
        raise InputError(f"{source} has no split 'test'; it has {', '.join(splits)}")
    keys = ("fine_label", kind.key) if kind is _CIFAR100 else ("label", kind.key)
    return (
        hub.images(splits["train"], keys, len(kind.classes), f"{source} (train)"),
        hub.images(splits["test"], keys, len(kind.classes), f"{source} (test)"),
    )


def _from_npz(kind: _Cifar, path: Path) -> tuple[Images, Images]:
    wanted = ("x_train", "y_train", "x_test", "y_test")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            held = ", ".join(file) or "none"
            missing = [name for name in wanted if name not in file]
            arrays = [file[name] for name in wanted if name in file]
    except (ValueError, EOFError, OSError, AttributeError, zipfile.BadZipFile, zlib.error):
        raise InputError(f"{path} is not an .npz archive of plain arrays") from None
    if missing:
        raise InputError(f"{path} needs an array {missing[0]!r}; it holds {held}")
    classes = len(kind.classes)
    return (
        from_arrays(arrays[0], arrays[1], classes, f"{path} (train)"),
        from_arrays(arrays[2], arrays[3], classes, f"{path} (test)"),
    )


def _from_batches(kind: _Cifar, path: Path) -> tuple[Images, Images]:
    files = _folder(path) if path.is_dir() else _archive(path)
    suffix = ".bin" if f"{kind.test}.bin" in files else ""
    missing = [name for name in (*kind.train, kind.test) if name + suffix not in files]
    if missing:
        raise InputError(
            f"{path} holds no file {missing[0] + suffix!r}; {kind.name} is the published folder with "
            f"{kind.train[0]} … {kind.test} (or the same names with .bin), its .tar.gz, or an .npz"
        )

    def read(name: str) -> Arrays:
        name += suffix
        return (_binary if suffix else _pickled)(kind, files[name](), path / name)

    parts = [read(name) for name in kind.train]
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    classes = len(kind.classes)
    return from_arrays(pixels, labels, classes, path), from_arrays(*read(kind.test), classes, path / kind.test)


def _folder(path: Path) -> Files:
    """The files of a folder, and of the folder inside it that the published archive unpacks to."""
    inside = [path, *sorted(child for child in path.glob("cifar*") if child.is_dir())]
    return {file.name: file.read_bytes for folder in reversed(inside) for file in folder.iterdir() if file.is_file()}


def _archive(path: Path) -> Files:
    found = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                stream = archive.extractfile(member)  # read here and never written to disk
                if stream is not None:
                    content = stream.read()
                    found[Path(member.name).name] = lambda content=content: content
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InputError(f"{path} is neither a folder nor an .npz nor a .tar.gz that can be read: {error}") from None
    return found


def _pickled(kind: _Cifar, raw: bytes, where: Path) -> Arrays:
    batch = loads(raw, where)
    if not isinstance(batch, dict):
        raise InputError(f"{where} is not a CIFAR batch: it holds no dictionary")
    batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
    missing = [key for key in ("data", kind.key) if key not in batch]
    if missing:
        raise InputError(f"{where} is not a batch of {kind.name}: there is no {missing[0]!r}")
    pixels = np.asarray(batch["data"])
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise InputError(f"{where}: the images are uint8 and [N, 3072], not {pixels.dtype} {list(pixels.shape)}")
    return pixels.reshape(-1, 3, 32, 32), np.asarray(batch[kind.key])


def _binary(kind: _Cifar, raw: bytes, where: Path) -> Arrays:
    size = kind.label_bytes + 3072
    if not raw or len(raw) % size:
        raise InputError(f"{where} holds {len(raw):,} bytes, which is not a multiple of {size:,}; it is cut off")
    records = np.frombuffer(raw, np.uint8).reshape(-1, size)
    return records[:, kind.label_bytes :].reshape(-1, 3, 32, 32), records[:, kind.label_bytes - 1]
