"""The datasets: each from files in the form in which it is published, or from the Hugging Face Hub.

A new dataset is a new small file with a function `open_…(source, *, seed, …) -> Data`, and a line in `DATASETS`.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from spikezip.data.augment import Augment
from spikezip.data.augmentation import Augmentation, RandAugment
from spikezip.data.base import FRAMES, IMAGES, TEXT, Data, Split, collate
from spikezip.data.order import shuffled
from spikezip.data.pixels import Pixels
from spikezip.data.tokens import tokenize
from spikezip.errors import ConfigError

__all__ = [
    "FRAMES",
    "IMAGES",
    "TEXT",
    "Augment",
    "Augmentation",
    "Data",
    "Pixels",
    "RandAugment",
    "Split",
    "collate",
    "names",
    "open_data",
    "takes",
    "tokenize",
]

DATASETS = {
    "cifar10": "spikezip.data.cifar:open_cifar10",
    "cifar100": "spikezip.data.cifar:open_cifar100",
    "fashion-mnist": "spikezip.data.fashion_mnist:open_fashion_mnist",
    "mnist": "spikezip.data.fashion_mnist:open_mnist",
    "imagenet": "spikezip.data.image_folder:open_imagenet",
    "image-folder": "spikezip.data.image_folder:open_image_folder",
    "mr": "spikezip.data.text:open_mr",
    "subj": "spikezip.data.text:open_subj",
    "sst2": "spikezip.data.text:open_sst2",
    "sst5": "spikezip.data.text:open_sst5",
    "chnsenticorp": "spikezip.data.text:open_chnsenticorp",
    "waimai": "spikezip.data.text:open_waimai",
    "cifar10-dvs": "spikezip.data.cifar10_dvs:open_cifar10_dvs",
    "events": "spikezip.data.recordings:open_recordings",
    "tonic": "spikezip.data.tonic:open_tonic",
}


def names() -> list[str]:
    """What `open_data` knows.

    Example:
        >>> "sst2" in names()
        True
    """
    return list(DATASETS)


def open_data(name: str, source: str | Path, *, seed: int = 0, limit: int | None = None, **options: Any) -> Data:
    """Open a dataset.

    Args:
        name: one of `names()`.
        source: a file or folder; or, for most, a dataset of the Hub such as "uoft-cs/cifar10".
        seed: chooses the split where the dataset has none of its own.
        limit: keep so many samples of each split, drawn at random but always the same ones, for quick tries.
        options: what this dataset takes besides, such as `image_size` for "imagenet".

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for part in ("train", "dev", "test"):
        ...         _ = Path(folder, f"stsa.fine.{part}").write_text("4 a joy .\\n0 a bore .\\n")
        ...     data = open_data("sst5", folder, limit=1)
        >>> data.kind, len(data.train), data.classes[4]
        ('text', 1, 'very positive')
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}; at least 1 sample must stay (None keeps all)")
    opener = _opener(name)
    _check_options(name, opener, options)
    data: Data = opener(source, seed=seed, **options)
    return data if limit is None else _limited(data, limit)


def takes(name: str, option: str) -> bool:
    """Whether the dataset of this name has this option of its own.

    Example:
        >>> takes("imagenet", "image_size"), takes("cifar10", "image_size")
        (True, False)
    """
    return option in inspect.signature(_opener(name)).parameters


def _opener(name: str) -> Callable[..., Data]:
    if name not in DATASETS:
        close = difflib.get_close_matches(name.lower(), DATASETS, n=3)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise ConfigError(f"there is no dataset {name!r}; {hint}There are: {', '.join(DATASETS)}")
    module, function = DATASETS[name].split(":")
    opener: Callable[..., Data] = getattr(importlib.import_module(module), function)
    return opener


def _check_options(name: str, opener: Callable[..., Data], options: dict[str, Any]) -> None:
    parameters = inspect.signature(opener).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return  # it checks them itself
    known = [parameter.name for parameter in parameters if parameter.name not in ("source", "seed")]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ConfigError(f"{name} has no option {unknown[0]!r}; it takes {', '.join(known) or 'none'}")


def _limited(data: Data, limit: int) -> Data:
    parts: dict[int, Split] = {}  # by identity: where validation is test, it stays so
    for split in (data.train, data.validation, data.test):
        if id(split) not in parts:
            parts[id(split)] = split.take(shuffled(len(split), seed=0)[:limit])
    return replace(
        data,
        train=parts[id(data.train)],
        validation=parts[id(data.validation)],
        test=parts[id(data.test)],
        note=f"{data.note} Of each split only {limit:,} samples, drawn at random.",
    )
