"""Some samples of the data, and what it takes to show them to people: words, or pixels as they were."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from spikezip.cli.data import Samples
from spikezip.data import Pixels, Split


def take(samples: Samples, which: Sequence[int]) -> Samples:
    """These samples, in this order.

    Example:
        >>> take(Samples(texts=["so good", "so bad", "so so"], labels=[1, 0, 0]), [2, 0])
        Samples(texts=['so so', 'so good'], images=(), labels=[0, 1])
    """
    images: Any = samples.images
    if isinstance(images, Split):
        images = images.take(which)
    elif isinstance(images, np.ndarray):
        images = images[list(which)]
    elif images:
        images = [images[number] for number in which]
    return Samples(
        texts=[samples.texts[number] for number in which] if samples.texts else (),
        images=images,
        labels=None if samples.labels is None else [samples.labels[number] for number in which],
    )


def looks(samples: Samples, folder: Path) -> dict[str, Any]:
    """From the files beside a network: the tokenizer of texts, or the mean and deviation that pixels came from."""
    if samples.texts:
        return {"tokenizer": AutoTokenizer.from_pretrained(folder)}
    file = folder / "preprocessor_config.json"
    pixels = Pixels.from_json(json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {})
    return {"mean": pixels.mean, "std": pixels.std}
