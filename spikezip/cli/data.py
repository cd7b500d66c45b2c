"""What `--data` names, as batches of model inputs: sentences, arrays of images, pictures in a folder, a dataset."""

import csv
import inspect
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from spikezip.cli.folders import TOKENIZER_FILES
from spikezip.data import TEXT, Pixels, Split, names, open_data
from spikezip.data.pixels import resample
from spikezip.data.text import Texts
from spikezip.data.text_files import TEXT_COLUMNS
from spikezip.data.tokens import padded_length, positions
from spikezip.errors import InputError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


@dataclass(frozen=True)
class Samples:
    """Samples in the order of their file: `texts`, or `images`; maybe labels.

    Images are one array, paths of pictures, or a split of a dataset. Pictures in folders have the name of their folder
    as label, if there are several folders.
    """

    texts: Sequence[str] = ()
    images: np.ndarray | Sequence[Path] | Split = ()
    labels: Sequence[Any] | None = None

    def __len__(self) -> int:
        return max(len(self.texts), len(self.images))

    def without_labels(self) -> "Samples":
        """For verbs that do not look at labels: any will do."""
        return replace(self, labels=None)


def read(path: str) -> Samples:
    """Open what `--data` names, before any model is loaded.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        ...     _ = file.write("label,text\\n1,so good\\n0,so bad\\n")
        ...     file.flush()
        ...     read(file.name)
        Samples(texts=['so good', 'so bad'], images=(), labels=['1', '0'])
    """
    file = Path(path)
    if not file.exists():
        return _read_dataset(path)
    readers = {".txt": _read_lines, ".tsv": _read_table, ".csv": _read_table, ".npz": _read_arrays}
    reader = _read_folder if file.is_dir() else readers.get(file.suffix.lower())
    if reader is None:
        raise InputError(f"--data {path}: not one of {', '.join(readers)} or a folder of images")
    try:
        samples = reader(file)
    except (UnicodeDecodeError, csv.Error, zipfile.BadZipFile) as error:
        raise InputError(f"--data {path} cannot be read: {error}") from None
    if not len(samples):
        raise InputError(f"--data {path} holds no samples")
    if samples.labels is not None and len(samples.labels) != len(samples):
        raise InputError(f"--data {path} holds {len(samples)} samples, but {len(samples.labels)} labels")
    return samples


def batches(
    samples: Samples,
    model: PreTrainedModel,
    folder: Path,
    batch_size: int,
    limit: int | None = None,
    drawn_by: int | None = None,
) -> Iterator[dict[str, Tensor]]:
    """The inputs that `model` takes, with "labels" where they are known.

    With a `limit` these are the first samples, or, with the seed `drawn_by`, some that are drawn from all of them.
    Tokenizer and image-processor files are looked for in `folder`.
    """
    collate = _sentences(model, folder) if samples.texts else _images(model, folder)
    end = min(len(samples), limit or len(samples))
    order = range(end) if drawn_by is None else Random(drawn_by).sample(range(len(samples)), end)
    for start in range(0, end, batch_size):
        part = order[start : start + batch_size]
        batch = collate([samples.texts[i] for i in part] if samples.texts else _part(samples.images, part))
        if samples.labels is not None:
            batch["labels"] = label_tensor([samples.labels[i] for i in part], model.config)
        yield batch


# ---- files ----


def _read_lines(file: Path) -> Samples:
    lines = (line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines())
    return Samples(texts=[line for line in lines if line])


def _read_table(file: Path) -> Samples:
    tabs = file.suffix.lower() == ".tsv"
    with file.open(encoding="utf-8-sig", newline="") as stream:
        # Sentences in .tsv files hold quotation marks that quote nothing.
        rows = csv.DictReader(
            stream, delimiter="\t" if tabs else ",", quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL
        )
        columns = rows.fieldnames or []
        column = next((name for name in TEXT_COLUMNS if name in columns), None)
        if column is None:
            raise InputError(
                f"{file} needs a column {', '.join(TEXT_COLUMNS[:-1])} or {TEXT_COLUMNS[-1]}; "
                f"its first line names {', '.join(columns) or 'none'}"
            )
        wanted = [column, "label"] if "label" in columns else [column]
        found: dict[str, list[str]] = {name: [] for name in wanted}
        for row in rows:
            for name in wanted:
                if row[name] is None:
                    raise InputError(f"{file}, line {rows.line_num}: there is no {name!r}")
                found[name].append(row[name])
    return Samples(texts=found[column], labels=found.get("label"))


def _read_arrays(file: Path) -> Samples:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            images = next((arrays[name] for name in ("x", "images") if name in arrays), None)
            labels = next((arrays[name] for name in ("y", "labels") if name in arrays), None)
            names = ", ".join(arrays)
    except (ValueError, EOFError):
        raise InputError(f"{file} is not an .npz archive of plain arrays") from None
    if images is None:
        raise InputError(f"{file} needs an array 'x' or 'images'; it holds {names or 'none'}")
    if images.ndim not in (3, 4) or not (images.dtype == np.uint8 or np.issubdtype(images.dtype, np.floating)):
        raise InputError(
            f"{file}: images are uint8 or float and [N, C, H, W], [N, H, W, C] or [N, H, W], "
            f"not {images.dtype} {list(images.shape)}"
        )
    return Samples(images=images, labels=None if labels is None else labels.reshape(-1).tolist())


def _read_folder(folder: Path) -> Samples:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)
    inside = [path.relative_to(folder).parts for path in found]
    classes = [parts[0] for parts in inside if len(parts) > 1]
    labelled = len(classes) == len(found) and len(set(classes)) > 1
    return Samples(images=found, labels=classes if labelled else None)


def _read_dataset(path: str) -> Samples:
    """`NAME:SOURCE#SPLIT?OPTION=VALUE&…`, a dataset of `spikezip.data`; without #, its test split."""
    name, colon, source = path.partition(":")
    if not colon or name not in names():
        raise InputError(
            f"--data {path}: there is no such file or folder; a dataset is NAME:SOURCE, where NAME is one of "
            f"{', '.join(names())}"
        )
    part, options = "test", {}
    if "?" in source and not Path(source).exists():
        source, _, query = source.rpartition("?")
        options = dict(_option(path, text) for text in query.split("&"))
    if "#" in source and not Path(source).exists():
        source, _, part = source.rpartition("#")
        if part not in ("train", "validation", "test"):
            raise InputError(f"--data {path}: behind # stands train, validation or test, not {part!r}")
    data = open_data(name, source, **options)
    split: Split = getattr(data, part)
    labels = split.labels.tolist()
    if data.kind == TEXT:
        assert isinstance(split, Texts)
        return Samples(texts=split.texts, labels=labels)
    return Samples(images=split, labels=labels)


def _option(path: str, text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InputError(f"--data {path}: behind ? stand options of the dataset, key=value&key=value; not {text!r}")
    return key, yaml.safe_load(value)


# ---- sentences ----


def _sentences(model: PreTrainedModel, folder: Path) -> Any:
    if model.main_input_name != "input_ids":
        raise InputError(f"{type(model).__name__} takes {model.main_input_name}, not text")
    # Without its files AutoTokenizer would make one up, with an all but empty vocabulary.
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(f"{folder} holds no tokenizer, which text needs: copy tokenizer.json and its like there")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    length = min(tokenizer.model_max_length, positions(model.config))
    takes = inspect.signature(type(model).forward).parameters

    def collate(texts: Sequence[str]) -> dict[str, Tensor]:
        tokens = tokenizer(list(texts), truncation=True, max_length=length)
        # As long as in training: a spiking network's padding is input, too.
        width = padded_length(max(map(len, tokens["input_ids"])), length)
        inputs = tokenizer.pad(tokens, padding="max_length", max_length=width, return_tensors="pt")
        return {name: value for name, value in inputs.items() if name in takes}

    return collate


# ---- images ----


def _images(model: PreTrainedModel, folder: Path) -> Any:
    if model.main_input_name != "pixel_values":
        raise InputError(f"{type(model).__name__} takes {model.main_input_name}, not images")
    file = folder / "preprocessor_config.json"
    processor = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    channels = getattr(model.config, "num_channels", 3)
    # Sizes are the model's, not those that the file names.
    values = {name: value for name, value in processor.items() if name not in ("size", "crop_size", "resample")}
    pixels_of = Pixels.from_json(values)

    def collate(images: np.ndarray | Sequence[Path] | Tensor) -> dict[str, Tensor]:
        if isinstance(images, Tensor):
            sized = replace(pixels_of, size=_both(model.config.image_size), resample=resample(processor))
            pixels = _dataset_pixels(images, channels, sized)
        else:
            if not isinstance(images, np.ndarray):
                images = _open_pictures(images, _both(model.config.image_size), channels, processor.get("resample", 2))
            pixels = torch.from_numpy(_channels_first(images, channels))
            pixels = pixels_of(pixels) if pixels.dtype == torch.uint8 else pixels
        return {"pixel_values": pixels.to(model.dtype)}

    return collate


def _part(images: np.ndarray | Sequence[Path] | Split, part: Sequence[int]) -> Any:
    if isinstance(images, Split):
        return images.__getitems__(part)["pixel_values"]
    return images[list(part)] if isinstance(images, np.ndarray) else [images[i] for i in part]


def _both(size: int | Sequence[int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def _dataset_pixels(pixels: Tensor, channels: int, pixels_of: Pixels) -> Tensor:
    """Pixels of a dataset as training saw them. Frames of events (floats) pass as they are."""
    if pixels.shape[1] == 1 and pixels.dtype == torch.uint8:  # grey
        pixels = pixels.expand(-1, channels, -1, -1)
    if pixels.shape[1] != channels:
        raise InputError(f"the dataset has {pixels.shape[1]} channel(s), the model takes {channels}")
    return pixels if pixels.is_floating_point() else pixels_of(pixels)


def _channels_first(images: np.ndarray, channels: int) -> np.ndarray:
    if images.ndim == 3:  # grey
        return np.repeat(images[:, None], channels, axis=1)
    if images.shape[1] == channels:
        return images
    if images.shape[3] == channels:
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    raise InputError(f"images of shape {list(images.shape)} do not have the {channels} channel(s) that the model takes")


def _open_pictures(paths: Sequence[Path], size: tuple[int, int], channels: int, resample: int) -> np.ndarray:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise InputError("a folder of images needs pillow: pip install pillow") from None
    height, width = size
    opened = []
    for path in paths:
        try:
            with Image.open(path) as picture:
                plain = picture.convert("L" if channels == 1 else "RGB")
                opened.append(np.asarray(plain.resize((width, height), resample)))
        except OSError as error:
            raise InputError(f"{path} cannot be opened as an image: {error}") from None
    return np.stack(opened)


# ---- labels ----


def label_tensor(labels: Sequence[Any], config: Any) -> Tensor:
    """Class numbers as they are, class names by the model's own list, other numbers as floats (regression)."""
    known = getattr(config, "label2id", None) or {}
    if any(isinstance(label, str) and label in known for label in labels):
        return torch.tensor([_class_number(label, known) for label in labels])
    try:
        numbers = [float(label) for label in labels]
    except ValueError:
        raise InputError(f"labels such as {labels[0]!r} are neither numbers nor among {', '.join(known)}") from None
    whole = all(number.is_integer() for number in numbers)
    return torch.tensor([int(number) for number in numbers] if whole else numbers)


def _class_number(label: Any, known: dict[str, int]) -> int:
    if label not in known:
        raise InputError(f"the label {label!r} is not among {', '.join(known)}")
    return int(known[label])
