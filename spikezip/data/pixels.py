"""From pixels as they are stored to pixels as a model takes them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spikezip.errors import ConfigError, InputError

RESCALE = 1 / 255
RESAMPLE = {"nearest": 0, "bilinear": 2, "bicubic": 3}  # as pillow and preprocessor_config.json number them


@dataclass(frozen=True)
class Pixels:
    """A batch [B, C, H, W] to float32: resized where `size` differs, brought to 0 … 1, normalised.

    uint8 counts as 0 … 255; floats are taken to be in 0 … 1 already, as `Augment` returns them.

    Args:
        size: height and width, or one number for both; None leaves the size as it is.
        mean, std: per channel, or one for all; empty: not normalised (frames of events).
        resample: "bilinear", "bicubic" or "nearest".
        rescale: what uint8 is multiplied by; None leaves it 0 … 255.

    Example:
        >>> pixels = Pixels(None, mean=(0.5,), std=(0.5,))
        >>> pixels(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-1.,  1.]]]])
    """

    size: int | tuple[int, int] | None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    resample: str = "bicubic"
    rescale: float | None = RESCALE

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ConfigError(f"mean has {len(self.mean)} values, std has {len(self.std)}")
        if any(not std > 0 for std in self.std):
            raise ConfigError(f"std is {self.std}; every value must be above 0")
        if self.resample not in RESAMPLE:
            raise ConfigError(f"resample is {self.resample!r}; it is one of {', '.join(RESAMPLE)}")

    def __call__(self, pixels: Tensor) -> Tensor:
        values = normalize(pixels, (), (), self.rescale)
        if self.size is not None:
            top = 1.0 if pixels.is_floating_point() else 255 * (1 if self.rescale is None else self.rescale)
            shape = (self.size, self.size) if isinstance(self.size, int) else self.size
            values = resize(values, shape, self.resample, top)
        return normalize(values, self.mean, self.std)

    def to_json(self) -> dict[str, Any]:
        """The content of a `preprocessor_config.json`, which image processors of transformers read as well.

        Example:
            >>> described = Pixels(224, (0.5,), (0.5,)).to_json()
            >>> described["size"]
            {'height': 224, 'width': 224}
            >>> Pixels.from_json(described).mean
            (0.5,)
        """
        described: dict[str, Any] = {
            "do_resize": self.size is not None,
            "resample": RESAMPLE[self.resample],
            "do_rescale": self.rescale is not None,
            "rescale_factor": RESCALE if self.rescale is None else self.rescale,
            "do_normalize": bool(self.mean),
        }
        if self.size is not None:
            height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
            described["size"] = {"height": height, "width": width}
        if self.mean:
            described |= {"image_mean": list(self.mean), "image_std": list(self.std)}
        return described

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> "Pixels":
        """What a `preprocessor_config.json` says; means and deviations that it leaves out are 0.5.

        A size that names only the shortest edge is taken as a square, and so is a centre crop: the images that come
        here are square, or cut already.
        """
        mean: tuple[float, ...] = ()
        std: tuple[float, ...] = ()
        if described.get("do_normalize", True):
            mean, std = (_as_tuple(described.get(name, 0.5)) for name in ("image_mean", "image_std"))
            longest = max(len(mean), len(std))
            mean, std = (values * longest if len(values) == 1 else values for values in (mean, std))
        rescale = float(described.get("rescale_factor", RESCALE)) if described.get("do_rescale", True) else None
        return cls(_size(described), mean, std, resample(described), rescale)


def normalize(pixels: Tensor, mean: Sequence[float], std: Sequence[float], rescale: float | None = RESCALE) -> Tensor:
    """The one place where pixels become numbers: `(pixels · rescale − mean) / std`, in float32.

    Only uint8 is rescaled. Without mean and std it is not normalised.

    Example:
        >>> normalize(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8), [0.5], [0.25]).item()
        2.0
    """
    values = pixels.to(torch.float32)
    if rescale is not None and not pixels.is_floating_point():
        values = values * rescale
    if not len(mean):
        return values
    if {len(mean), len(std)} - {1, pixels.shape[1]}:
        raise InputError(f"image_mean has {len(mean)} values, the images have {pixels.shape[1]} channel(s)")
    return (values - _constant(tuple(mean), pixels.device)) / _constant(tuple(std), pixels.device)


def resize(values: Tensor, shape: tuple[int, int], resample: str = "bicubic", top: float = 1.0) -> Tensor:
    """Float images in 0 … `top`, brought to another height and width; those of the right size are not touched.

    Example:
        >>> resize(torch.ones(1, 3, 8, 8), (16, 16)).shape
        torch.Size([1, 3, 16, 16])
    """
    if tuple(values.shape[-2:]) == shape:
        return values
    if resample == "nearest":
        return F.interpolate(values, shape, mode="nearest")
    return F.interpolate(values, shape, mode=resample, antialias=True).clamp(0, top)  # bicubic overshoots at edges


def resample(described: Mapping[str, Any]) -> str:
    """How a `preprocessor_config.json` has images resized; bilinearly, where it does not say.

    Example:
        >>> resample({"resample": 3})
        'bicubic'
    """
    names = {code: name for name, code in RESAMPLE.items()}
    code = described.get("resample", RESAMPLE["bilinear"])
    if code not in names:
        raise ConfigError(f"resample is {code}; it is one of {', '.join(map(str, names))}")
    return names[code]


@lru_cache(maxsize=32)
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """On the device, kept: a copy in each step would make the host wait for the device."""
    with torch.inference_mode(False):  # made while evaluating, it must also serve training
        return torch.tensor(values, device=device)[:, None, None]


def _as_tuple(value: Any) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not values or not all(isinstance(number, int | float) and math.isfinite(number) for number in values):
        raise ConfigError(f"image_mean and image_std are numbers or lists of numbers, not {value!r}")
    return tuple(float(number) for number in values)


def _size(described: Mapping[str, Any]) -> tuple[int, int] | None:
    crops = described.get("do_center_crop", False) and "crop_size" in described
    if not (crops or (described.get("do_resize", True) and "size" in described)):
        return None
    size = described["crop_size" if crops else "size"]
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping):
        if "height" in size and "width" in size:
            return int(size["height"]), int(size["width"])
        if "shortest_edge" in size:
            return int(size["shortest_edge"]), int(size["shortest_edge"])
    raise ConfigError(f"size is a number, or has height and width, or shortest_edge; not {size!r}")
