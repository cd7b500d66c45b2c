"""Pictures in a folder per class, as ImageNet is laid out; or ImageNet from the Hub."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spikezip.data import hub
from spikezip.data.base import IMAGES, Data, Split
from spikezip.data.images import check_labels
from spikezip.errors import ConfigError, InputError

ENDINGS = (".jpeg", ".jpg", ".png", ".bmp", ".webp")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
HELD = ("val", "validation", "test")


class Pictures(Split):
    """Pictures that are decoded when they are asked for, all to the same size.

    For training a random part is cut out (8 % to 100 % of the area, 3:4 to 4:3) and resized; the dice are torch's, so
    that a resumed run cuts the same. For evaluation the shorter side is brought to 256/224 of the size, and the middle
    cut out.
    """

    def __init__(self, pictures: Sequence[Any], labels: Tensor, size: int, train: bool) -> None:
        self.pictures, self.labels, self.size, self.train = pictures, labels, size, train

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Any]:
        chosen = [int(index) for index in indices]
        pixels = np.stack([self._pixels(index) for index in chosen])
        return {
            "pixel_values": torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(),
            "labels": self.labels[chosen],
        }

    def _pixels(self, index: int) -> np.ndarray:
        image_module = _pillow()
        picture = self.pictures[index]
        if isinstance(picture, dict):  # a row of the Hub
            return self._cut(picture["image"].convert("RGB"))
        try:
            with image_module.open(picture) as opened:
                return self._cut(opened.convert("RGB"))
        except OSError as error:
            raise InputError(f"{picture} cannot be opened as an image: {error}") from None

    def _cut(self, picture: Any) -> np.ndarray:
        box = random_box(*picture.size) if self.train else middle_box(*picture.size)
        bicubic = _pillow().Resampling.BICUBIC
        return np.asarray(picture.resize((self.size, self.size), bicubic, box=box))


def random_box(width: int, height: int) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a random part: 8 % to 100 % of the area, 3:4 to 4:3.

    Ten tries, then the largest part in the middle that has an allowed shape.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> left, top, right, bottom = random_box(500, 400)
        >>> 0 <= left < right <= 500 and 0 <= top < bottom <= 400
        True
    """
    for _ in range(10):
        area, shape, across, down = torch.rand(4).tolist()
        area = (0.08 + 0.92 * area) * width * height
        aspect = math.exp((2 * shape - 1) * math.log(4 / 3))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(across * (width - wide + 1)), int(down * (height - high + 1))
            return left, top, left + wide, top + high
    wide, high = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def middle_box(width: int, height: int) -> tuple[float, float, float, float]:
    """The square in the middle whose side is 224/256 of the shorter side.

    Cutting it out and resizing it is the same as resizing the picture and cutting the middle out, in one go.

    Example:
        >>> middle_box(512, 256)
        (144.0, 16.0, 368.0, 240.0)
    """
    side = min(width, height) * 224 / 256
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def open_image_folder(source: str | Path, *, seed: int = 0, image_size: int = 224) -> Data:
    """Pictures as `train/<class>/*` and `val/<class>/*` (or `validation/`), and `test/<class>/*` where there is one.

    Classes are numbered in the order of their folders' names.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for picture in ("train/cat/1", "train/dog/1", "val/cat/2", "val/dog/2"):
        ...         file = Path(folder, f"{picture}.png")
        ...         file.parent.mkdir(parents=True)
        ...         _pillow().new("RGB", (40, 30)).save(file)
        ...     data = open_image_folder(folder, image_size=16)
        ...     list(data.test.__getitems__([0, 1])["pixel_values"].shape)
        [2, 3, 16, 16]
    """
    return _open("image-folder", source, image_size)


def open_imagenet(source: str | Path, *, seed: int = 0, image_size: int = 224) -> Data:
    """ImageNet-1k: `train/<synset>/*.JPEG`, `val/<synset>/*.JPEG`; or from the Hub, "ILSVRC/imagenet-1k"."""
    return _open("imagenet", source, image_size)


def _open(name: str, source: str | Path, size: int) -> Data:
    if size < 1:
        raise ConfigError(f"image_size is {size}; it is at least 1")
    path = Path(source)
    if path.exists():
        classes, splits = _from_folder(path, size)
    else:
        classes, splits = _from_hub(str(source), size)
    note = f"{name}: {len(classes):,} classes, {'/'.join(f'{len(split):,}' for split in splits)} pictures."
    if name == "imagenet" and len(classes) != 1000:
        note += " ImageNet-1k has 1,000 classes: this is a part of it."
    if len(splits) == 2:
        note += " Validation and test are the same pictures."
    return Data(
        name=name,
        kind=IMAGES,
        classes=classes,
        train=splits[0],
        validation=splits[1],
        test=splits[-1],
        note=note,
        mean=MEAN,
        std=STD,
    )


# ---- a folder ----


def _from_folder(root: Path, size: int) -> tuple[tuple[str, ...], list[Split]]:
    held = [part for part in HELD if (root / part).is_dir()]
    if not (root / "train").is_dir() or not held:
        raise InputError(f"{root} needs a folder 'train' and a folder 'val', each with a folder per class")
    classes = _classes(root / "train")
    for part in held:
        odd = sorted(set(classes) ^ set(_classes(root / part)))
        if odd:
            raise InputError(f"{root}: the class {odd[0]!r} is only in one of 'train' and {part!r}")
    return classes, [_pictures(root / part, classes, size, part == "train") for part in ("train", *held)]


def _classes(folder: Path) -> tuple[str, ...]:
    found = sorted(child.name for child in folder.iterdir() if child.is_dir())
    if not found:
        raise InputError(f"{folder} holds no folder: each class is a folder of pictures")
    return tuple(found)


def _pictures(folder: Path, classes: Sequence[str], size: int, train: bool) -> Pictures:
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in ENDINGS)
        if not found:
            raise InputError(f"{folder / name} holds no picture ({', '.join(ENDINGS)})")
        paths += found
        labels += [label] * len(found)
    return Pictures(paths, torch.tensor(labels), size, train)


# ---- the Hub ----


def _from_hub(source: str, size: int) -> tuple[tuple[str, ...], list[Split]]:
    splits = hub.load(source)
    held = hub.held(splits, ("label",), source)
    if not held:
        raise InputError(f"{source} has no split with labels beside 'train'; it has {', '.join(splits)}")
    hub.column(splits["train"], ("image",), source)
    labels = {name: hub.class_numbers(splits[name], ("label",), source) for name in ("train", *held)}
    named = getattr(splits["train"].features["label"], "names", None)
    classes = tuple(named) if named else tuple(str(number) for number in range(max(labels["train"]) + 1))
    for name, numbers in labels.items():
        check_labels(np.array(numbers), len(classes), f"{source} ({name})")
    return classes, [Pictures(splits[name], torch.tensor(labels[name]), size, name == "train") for name in labels]


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise InputError("pictures need pillow: pip install pillow") from None
    return Image
