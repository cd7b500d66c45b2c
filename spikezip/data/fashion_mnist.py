"""Fashion-MNIST (Xiao 2017) and MNIST (LeCun 1998): four files in the IDX format, gzipped or not; or the Hub."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from spikezip.data import hub
from spikezip.data.base import IMAGES, Data
from spikezip.data.images import Images, from_arrays
from spikezip.errors import InputError

FASHION = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
DIGITS = tuple("0123456789")


def open_fashion_mnist(source: str | Path, *, seed: int = 0) -> Data:
    """Fashion-MNIST: 60,000 and 10,000 grey images of 28 × 28 pixels in 10 classes.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for part in ("train", "t10k"):
        ...         head = b"\\0\\0\\x08\\x03" + np.array([2, 28, 28], ">i4").tobytes()
        ...         _ = Path(folder, f"{part}-images-idx3-ubyte").write_bytes(head + bytes(2 * 28 * 28))
        ...         labels = b"\\0\\0\\x08\\x01\\0\\0\\0\\2" + b"\\5\\x09"
        ...         _ = Path(folder, f"{part}-labels-idx1-ubyte").write_bytes(labels)
        ...     data = open_fashion_mnist(folder)
        >>> [data.classes[label] for label in data.train.labels]
        ['sandal', 'ankle boot']
    """
    return _open("fashion-mnist", FASHION, source, (0.2860,), (0.3530,))


def open_mnist(source: str | Path, *, seed: int = 0) -> Data:
    """MNIST: the same form, with handwritten digits."""
    return _open("mnist", DIGITS, source, (0.1307,), (0.3081,))


def _open(
    name: str, classes: tuple[str, ...], source: str | Path, mean: tuple[float, ...], std: tuple[float, ...]
) -> Data:
    if Path(source).exists():
        train, test = (_split(Path(source), part, len(classes)) for part in ("train", "t10k"))
    else:
        splits = hub.load(str(source))
        if "test" not in splits:
            raise InputError(f"{source} has no split 'test'; it has {', '.join(splits)}")
        train, test = (
            hub.images(splits[part], ("label",), len(classes), f"{source} ({part})") for part in ("train", "test")
        )
    return Data(
        name=name,
        kind=IMAGES,
        classes=classes,
        train=train,
        validation=test,
        test=test,
        note=f"{name}: the published split, {len(train):,} for training and {len(test):,} for test; "
        "there is none for validation, so validation is test.",
        mean=mean,
        std=std,
    )


def _split(folder: Path, part: str, classes: int) -> Images:
    images, labels = _find(folder, f"{part}-images-idx3-ubyte"), _find(folder, f"{part}-labels-idx1-ubyte")
    return from_arrays(read_idx(images), read_idx(labels), classes, images)


def _find(folder: Path, name: str) -> Path:
    """The file, gzipped or not; some copies write the last dash as a dot."""
    for spelling in (name, name.replace("-idx", ".idx")):
        for file in (folder / spelling, folder / f"{spelling}.gz"):
            if file.is_file():
                return file
    raise InputError(f"{folder} holds neither {name} nor {name}.gz")


def read_idx(path: Path) -> np.ndarray:
    """The array of an IDX file of bytes: two zeros, the type (8), how many dimensions, the dimensions, the bytes.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     _ = file.write(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + b"\\x07\\x08\\x09")
        ...     file.flush()
        ...     read_idx(Path(file.name))
        array([7, 8, 9], dtype=uint8)
    """
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, OSError, zlib.error) as error:
            raise InputError(f"{path} is damaged: {error}") from None
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise InputError(f"{path} is not an IDX file of bytes: it begins with {raw[:4].hex(' ') or 'nothing'}")
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise InputError(f"{path} ends within its header")
    shape = [int(size) for size in np.frombuffer(raw, ">u4", count=raw[3], offset=4)]
    if len(raw) - start != np.prod(shape, dtype=np.int64):
        raise InputError(f"{path} holds {len(raw) - start:,} bytes of data where its header promises {shape}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
