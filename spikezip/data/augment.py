"""Augmentation of whole batches, on the device where they lie. Every sample throws its own dice.

All randomness comes from torch's global generators, whose state a training run saves and restores: a resumed run sees
the very batches it would have seen.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from spikezip.data.augmentation import Augmentation
from spikezip.data.pixels import normalize
from spikezip.data.randaugment import randaugment
from spikezip.data.warp import turn, warp
from spikezip.errors import ConfigError, InputError


class Augment:
    """Carries out an `Augmentation` on a batch, before `Pixels`.

    Takes pixels [B, C, H, W], uint8 or floats in 0 … 1, and class numbers [B]. Returns pixels of the same shape, and
    the labels: class numbers still, or, where mixup or cutmix is on, shares [B, classes] that sum to 1. Pixels stay
    uint8 where only whole pixels are moved, else they are floats in 0 … 1; what is off is not touched.

    Example:
        >>> augment = Augment(Augmentation(flip=True, mixup=0.8), classes=10)
        >>> pixels, labels = augment(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([1, 2, 3, 4]))
        >>> pixels.dtype, list(labels.shape)
        (torch.float32, [4, 10])
    """

    def __init__(self, settings: Augmentation, classes: int) -> None:
        for name in ("crop_padding", "erase", "mixup", "cutmix", "mixed", "shift", "rotate", "drop"):
            if getattr(settings, name) < 0:
                raise ConfigError(f"augmentation: {name} is {getattr(settings, name)}; it is 0 (off) or more")
        for name in ("erase", "drop", "mixed"):
            if getattr(settings, name) > 1:
                raise ConfigError(f"augmentation: {name} is {getattr(settings, name)}; a probability is at most 1")
        self.settings, self.classes = settings, classes

    def __call__(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if pixels.ndim != 4 or len(pixels) != len(labels):
            raise InputError(f"pixels are [B, C, H, W], with B labels; not {list(pixels.shape)} and {len(labels)}")
        settings = self.settings
        if settings.crop_padding or settings.shift:
            # Frames are moved just as padded images are cut: what comes in from outside is empty.
            pixels = crop(pixels, settings.crop_padding + settings.shift)
        if settings.flip:
            pixels = flip(pixels)
        if settings.rotate:
            pixels = rotate(_floats(pixels), settings.rotate)
        if settings.drop:
            pixels = drop(pixels, settings.drop)
        if settings.randaugment is not None:
            pixels = randaugment(_floats(pixels), settings.randaugment)
        if settings.erase:
            pixels = erase(_floats(pixels), settings.erase)
        if settings.mixup or settings.cutmix:
            return mix(_floats(pixels), labels, self.classes, settings.mixup, settings.cutmix, settings.mixed)
        return pixels, labels


def crop(pixels: Tensor, padding: int) -> Tensor:
    """Pad with zeros on all sides, and cut the original size out at random.

    Example:
        >>> crop(torch.ones(2, 3, 8, 8), 2).shape
        torch.Size([2, 3, 8, 8])
    """
    count, _, height, width = pixels.shape
    device = pixels.device
    rows = torch.randint(0, 2 * padding + 1, (count, 1), device=device) + torch.arange(height, device=device)
    columns = torch.randint(0, 2 * padding + 1, (count, 1), device=device) + torch.arange(width, device=device)
    padded = F.pad(pixels, (padding,) * 4)
    # One lookup per axis: rows are whole stretches of memory, columns then lie near one another.
    shifted = padded.gather(2, rows[:, None, :, None].expand(-1, pixels.shape[1], -1, padded.shape[3]))
    return shifted.gather(3, columns[:, None, None, :].expand(-1, pixels.shape[1], height, -1))


def flip(pixels: Tensor) -> Tensor:
    """Mirror half of the images.

    Example:
        >>> sorted(flip(torch.tensor([[[[1, 2]]]]).expand(50, 1, 1, 2))[:, 0, 0].unique(dim=0).tolist())
        [[1, 2], [2, 1]]
    """
    chosen = torch.rand(len(pixels), device=pixels.device) < 0.5
    return torch.where(chosen[:, None, None, None], pixels.flip(-1), pixels)


def rotate(pixels: Tensor, degrees: float) -> Tensor:
    """Turn each sample by up to so many degrees, either way; corners that come in are empty.

    Example:
        >>> rotate(torch.ones(2, 4, 8, 8), 15.0).shape
        torch.Size([2, 4, 8, 8])
    """
    return warp(pixels, turn(_between(-degrees, degrees, pixels)))


def drop(pixels: Tensor, probability: float) -> Tensor:
    """Empty bins of time. A bin is two neighbouring channels, its polarities; with an odd number of channels, one.

    Example:
        >>> bool((drop(torch.ones(2, 4, 8, 8), 1.0) == 0).all())
        True
    """
    polarities = 1 if pixels.shape[1] % 2 else 2
    kept = torch.rand(len(pixels), pixels.shape[1] // polarities, device=pixels.device) >= probability
    return pixels * kept.repeat_interleave(polarities, dim=1)[:, :, None, None]


def erase(pixels: Tensor, probability: float) -> Tensor:
    """Random Erasing (Zhong et al. 2017): with this probability a rectangle becomes noise in 0 … 1.

    It covers 2 % to a third of the image and is up to 3.3 times as high as wide, or as wide as high.

    Example:
        >>> erased = erase(torch.zeros(4, 3, 16, 16), 1.0) > 0
        >>> bool(erased.flatten(1).any(1).all())
        True
    """
    height, width = pixels.shape[-2:]
    area = _between(0.02, 1 / 3, pixels) * height * width
    aspect = _between(-1.194, 1.194, pixels).exp()  # ln 3.3
    high, wide = ((area * aspect).sqrt().round().clamp(1, height), (area / aspect).sqrt().round().clamp(1, width))
    top = (_between(0, 1, pixels) * (height - high + 1)).floor()
    left = (_between(0, 1, pixels) * (width - wide + 1)).floor()
    box = _box(pixels, top, top + high, left, left + wide)
    box &= (_between(0, 1, pixels) < probability)[:, None, None, None]
    return torch.where(box, torch.rand_like(pixels), pixels)


def mix(
    pixels: Tensor, labels: Tensor, classes: int, mixup: float, cutmix: float, mixed: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Each sample keeps a share λ of itself and takes the rest from another sample of the batch; so does its label.

    Mixup (Zhang et al. 2017) adds the two images; cutmix (Yun et al. 2019) pastes a rectangle. λ comes from
    Beta(alpha, alpha), for each sample its own. Both are one formula, `mask · own + (1 − mask) · other`, with a mask
    that is λ everywhere, or 0 in the rectangle and 1 outside: so the batch's choice of one can stay on the device. With
    `mixed` below 1, a sample stays as it is with the probability that is left.

    Example:
        >>> _, shares = mix(torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 3]), 4, mixup=1.0, cutmix=0.0)
        >>> torch.allclose(shares.sum(1), torch.ones(4))
        True
    """
    other = torch.rand(len(pixels), device=pixels.device).argsort()  # randperm cannot be part of a CUDA graph
    if mixup:
        kept = _beta(mixup, pixels)
        mask = kept[:, None, None, None]
    if cutmix:
        outside, kept_outside = _outside(pixels, _beta(cutmix, pixels))
        if mixup:
            cut = torch.rand((), device=pixels.device) < 0.5
            mask, kept = torch.where(cut, outside, mask), torch.where(cut, kept_outside, kept)
        else:
            mask, kept = outside, kept_outside
    if mixed < 1:
        alone = torch.rand(len(pixels), device=pixels.device) >= mixed
        mask, kept = mask.masked_fill(alone[:, None, None, None], 1), kept.masked_fill(alone, 1)
    shares = F.one_hot(labels, classes).to(torch.float32)
    kept = kept[:, None]
    return mask * pixels + (1 - mask) * pixels[other], kept * shares + (1 - kept) * shares[other]


def _outside(pixels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """1 outside a rectangle that covers about 1 − `kept` of the image, 0 in it; and what share is really kept."""
    height, width = pixels.shape[-2:]
    high, wide = ((1 - kept).sqrt() * height, (1 - kept).sqrt() * width)
    middle_y, middle_x = _between(0, height, pixels), _between(0, width, pixels)
    top, bottom = ((middle_y + side * high / 2).round().clamp(0, height) for side in (-1, 1))
    left, right = ((middle_x + side * wide / 2).round().clamp(0, width) for side in (-1, 1))
    outside = (~_box(pixels, top, bottom, left, right)).to(torch.float32)
    return outside, 1 - (bottom - top) * (right - left) / (height * width)


def _box(pixels: Tensor, top: Tensor, bottom: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """[B, 1, H, W]: whether a pixel lies in its sample's rectangle."""
    rows = torch.arange(pixels.shape[2], device=pixels.device)
    columns = torch.arange(pixels.shape[3], device=pixels.device)
    in_rows = (rows >= top[:, None]) & (rows < bottom[:, None])
    in_columns = (columns >= left[:, None]) & (columns < right[:, None])
    return (in_rows[:, :, None] & in_columns[:, None, :])[:, None]


def _between(low: float, high: float, pixels: Tensor) -> Tensor:
    """One random number per sample."""
    return low + (high - low) * torch.rand(len(pixels), device=pixels.device)


def _beta(alpha: float, pixels: Tensor) -> Tensor:
    both = torch.full((len(pixels),), alpha, device=pixels.device)
    # Checking the arguments would make the host wait for the device.
    return torch.distributions.Beta(both, both, validate_args=False).sample()


def _floats(pixels: Tensor) -> Tensor:
    return normalize(pixels, (), ())
