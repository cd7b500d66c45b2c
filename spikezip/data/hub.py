"""Datasets of the Hugging Face Hub, through the package `datasets`."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spikezip.data.images import Images, from_arrays
from spikezip.errors import InputError

VALIDATION = ("validation", "valid", "dev", "val")


def load(source: str, config: str | None = None) -> Mapping[str, Any]:
    """The splits of a dataset on the Hub, by name.

    `source` is what the user gave and is no path that exists, so an error speaks of both.
    """
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError:
        raise InputError(
            f"{source}: there is no such file or folder; a dataset of the Hub needs datasets: pip install datasets"
        ) from None
    try:
        found: Mapping[str, Any] = datasets.load_dataset(source, config)
    except (OSError, ValueError) as error:  # not found, no connection, a config that is missing or unknown
        raise InputError(f"{source}: there is no such file or folder, and the Hub does not give it: {error}") from None
    if "train" not in found:
        raise InputError(f"{source} has no split 'train'; it has {', '.join(found) or 'none'}")
    return found


def column(split: Any, candidates: Sequence[str], source: str) -> str:
    """The first of `candidates` that the split has."""
    for name in candidates:
        if name in split.column_names:
            return name
    raise InputError(f"{source} needs a column {' or '.join(candidates)}; it has {', '.join(split.column_names)}")


def held(splits: Mapping[str, Any], labels: Sequence[str], source: str) -> list[str]:
    """The splits beside "train" that can be measured on: first validation, then test.

    Test splits whose labels are kept secret (−1, as in GLUE and ImageNet) are none.
    """
    names = [name for name in (*VALIDATION, "test") if name in splits]
    return [name for name in names if len(splits[name]) and min(class_numbers(splits[name], labels, source)) >= 0]


def class_numbers(split: Any, labels: Sequence[str], source: str) -> list[int]:
    """The labels of a split; a column of labels is numbers on the Hub."""
    name = column(split, labels, source)
    found = list(split[name])
    if not all(isinstance(label, int | np.integer) for label in found):
        raise InputError(f"{source}: the column {name!r} does not hold whole numbers")
    return [int(label) for label in found]


def class_names(split: Any, labels: Sequence[str], otherwise: tuple[str, ...], source: str) -> tuple[str, ...]:
    """What the Hub calls the classes: its numbers need not be those of the published files."""
    name = column(split, labels, source)
    names = getattr(split.features.get(name), "names", None)
    if names is None and "label_text" in split.column_names:
        named = dict(zip(class_numbers(split, labels, source), split["label_text"], strict=True))
        names = [named.get(number, otherwise[number]) for number in range(len(otherwise))]
    if names is None:
        return otherwise
    if len(names) != len(otherwise):
        raise InputError(f"{source} has the classes {', '.join(names)}; expected {len(otherwise)}")
    return tuple(names)


def images(split: Any, labels: Sequence[str], classes: int, source: str) -> Images:
    """A split of small images, decoded into one array."""
    name = column(split, ("img", "image"), source)
    pixels = np.stack([np.asarray(picture) for picture in split[name]])
    return from_arrays(pixels, np.array(class_numbers(split, labels, source)), classes, source)
