"""RandAugment (Cubuk et al. 2019) in plain torch: a batch at a time, and yet for every image its own operations.

The operations and their strengths are those of timm's `rand-m9-mstd0.5-inc1`: fifteen operations, drawn with
replacement, each carried out with probability ½, magnitude drawn from Normal(magnitude, std) and cut to 0 … 10.
kornia (0.9) has a RandAugment too, but it draws the operations once per batch and knows no spread of magnitudes.

Which images an operation is for is drawn on the CPU, from torch's global generator there: the host must know how many
there are, and would otherwise wait for the device. Strengths and signs are drawn on the device. A loop runs over the
operations, none over the images, and each image is computed only by the operations that it drew.

A small batch on a GPU is done otherwise: there every operation computes all images, each takes what it drew.
Nothing then depends on what was drawn, so that the whole can be recorded as a CUDA graph.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from spikezip.data.augmentation import RandAugment
from spikezip.data.warp import turn, warp
from spikezip.errors import ConfigError, InputError

FILL = 0.5  # grey, where an image is turned or moved out of the way
PROBABILITY = 0.5
SMALL = 2**21  # values of a batch


def randaugment(images: Tensor, settings: RandAugment) -> Tensor:
    """Vary each of the images [B, C, H, W], float32 in 0 … 1 with one or three channels.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> images = torch.rand(8, 3, 16, 16)
        >>> varied = randaugment(images, RandAugment(ops=2, magnitude=9.0, std=0.5))
        >>> varied.shape == images.shape and not torch.equal(varied, images)
        True
    """
    if settings.ops < 0 or not 0 <= settings.magnitude <= 10 or settings.std < 0 or (settings.variety or 1) < 1:
        raise ConfigError(f"{settings}: ops and std are not below 0, magnitude is in 0 … 10, variety is 1 or more")
    if images.shape[1] not in (1, 3):
        raise InputError(f"RandAugment is for images of 1 or 3 channels, not {images.shape[1]}")
    if images.is_cuda and is_small(images):
        return _everywhere(images, settings)
    images, count = images.clone(), len(images)
    variety = min(settings.variety or len(OPERATIONS), len(OPERATIONS))
    for _ in range(settings.ops):
        drawn = torch.randperm(len(OPERATIONS))[:variety][torch.randint(0, variety, (count,))]
        drawn[torch.rand(count) >= PROBABILITY] = len(OPERATIONS)  # these stay as they are
        numbers = torch.bincount(drawn, minlength=len(OPERATIONS) + 1)[:-1].tolist()
        order = drawn.argsort(stable=True).to(images.device, non_blocking=True)
        magnitude = settings.magnitude + settings.std * torch.randn(count, device=images.device)
        strength = (magnitude / 10).clamp(0, 1)[:, None, None, None]
        sign = torch.randint(0, 2, (count, 1, 1, 1), device=images.device) * 2.0 - 1
        start = 0
        for operation, number in zip(OPERATIONS.values(), numbers, strict=True):
            if number:
                chosen = order[start : start + number]
                images.index_copy_(0, chosen, operation(images[chosen], strength[chosen], sign[chosen]))
            start += number
    return images


def is_small(images: Tensor) -> bool:
    """Whether a batch takes longer to launch than to compute.

    Example:
        >>> is_small(torch.zeros(512, 3, 32, 32)), is_small(torch.zeros(512, 3, 224, 224))
        (True, False)
    """
    return images.numel() <= SMALL


def _everywhere(images: Tensor, settings: RandAugment) -> Tensor:
    """Every operation on all images; each image takes what it drew."""
    count, device = len(images), images.device
    variety = min(settings.variety or len(OPERATIONS), len(OPERATIONS))
    for _ in range(settings.ops):
        chosen = torch.rand(len(OPERATIONS), device=device).argsort()[:variety]
        drawn = chosen[torch.randint(0, variety, (count,), device=device)]
        drawn = torch.where(torch.rand(count, device=device) < PROBABILITY, drawn, -1)[:, None, None, None]
        magnitude = settings.magnitude + settings.std * torch.randn(count, device=device)
        strength = (magnitude / 10).clamp(0, 1)[:, None, None, None]
        sign = torch.randint(0, 2, (count, 1, 1, 1), device=device) * 2.0 - 1
        images = _each_its_own(images, drawn, strength, sign)
    return images


def _each_its_own(images: Tensor, drawn: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Each image by the operation it drew: an operation's number, or −1. Blends are one blend, moves one warp."""
    numbers = {name: drawn == number for number, name in enumerate(OPERATIONS)}
    varied, poorer, matrix = images, torch.zeros_like(images), _identity(images)
    for name, tone in TONES.items():
        varied = torch.where(numbers[name], tone(images, strength, sign), varied)
    for name, other in BLENDS.items():
        poorer = torch.where(numbers[name], other(images), poorer)
    for name, change in MOVES.items():
        matrix = torch.where(numbers[name][:, 0], change(images, strength, sign), matrix)
    blended, moved = _blend(poorer, images, strength, sign), warp(images, matrix, FILL)
    is_blend = torch.stack([numbers[name] for name in BLENDS]).any(0)
    is_move = torch.stack([numbers[name] for name in MOVES]).any(0)
    return torch.where(is_move, moved, torch.where(is_blend, blended, varied))


# Each operation takes images [B, C, H, W], strengths in 0 … 1 and signs ±1, both [B, 1, 1, 1].

# ---- tones ----


def autocontrast(x: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Stretch each channel to 0 … 1."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-6), x)


def equalize(x: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Make each channel's histogram flat, by the integer rule of pillow's `ImageOps.equalize`."""
    codes = _codes(x).long().flatten(2)
    counts = codes.new_zeros(*codes.shape[:2], 256).scatter_add_(2, codes, torch.ones_like(codes))
    brightest = codes.amax(2, keepdim=True)
    step = (codes.shape[2] - counts.gather(2, brightest)) // 255
    below = counts.cumsum(2) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step[..., None] > 0, (table.gather(2, codes) / 255).view_as(x), x)


def invert(x: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    return 1 - x


def posterize(x: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Keep the 4 … 1 highest bits; none at all would leave a black image."""
    step = 2 ** (8 - (4 - (4 * strength).floor()).clamp(min=1))
    return (_codes(x) / step).floor() * step / 255


def solarize(x: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Invert what is brighter than a threshold."""
    return torch.where(_codes(x) < 256 - (256 * strength).floor(), x, 1 - x)


def solarize_add(x: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Brighten the darker half."""
    return torch.where(_codes(x) < 128, (x + (110 * strength).floor() / 255).clamp(max=1), x)


TONES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "invert": invert,
    "posterize": posterize,
    "solarize": solarize,
    "solarize_add": solarize_add,
}


# ---- mixtures of the image with a poorer one, by a factor of 1 ± 0.9 ----


def _grey(x: Tensor) -> Tensor:
    if x.shape[1] == 1:
        return x
    red, green, blue = x.split(1, dim=1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _smooth(x: Tensor) -> Tensor:
    """The mean of 3 × 3 pixels, the middle one five times; the rim stays."""
    if min(x.shape[-2:]) < 3:
        return x
    smooth = x.clone()
    smooth[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(x, 3, stride=1) + 4 * x[:, :, 1:-1, 1:-1]) / 13
    return smooth


BLENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "colour": _grey,
    "contrast": lambda x: _grey(x).mean((2, 3), keepdim=True),
    "brightness": torch.zeros_like,
    "sharpness": _smooth,
}


def _blend(poorer: Tensor, x: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    factor = (1 + 0.9 * sign * strength).clamp(min=0.1)
    return (poorer + factor * (x - poorer)).clamp(0, 1)


# ---- moves, as matrices [B, 2, 3] ----


def _identity(x: Tensor) -> Tensor:
    return torch.eye(2, 3, device=x.device).expand(len(x), 2, 3)


def _entry(row: int, column: int, most: Callable[[Tensor], float]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The identity with one entry changed, by up to `most` either way."""

    def matrix(x: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
        changed = _identity(x).clone()
        changed[:, row, column] = (most(x) * sign * strength).flatten()
        return changed

    return matrix


MOVES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "rotate": lambda x, strength, sign: turn(30 * (sign * strength).flatten()),
    "shear_x": _entry(0, 1, lambda x: 0.3),
    "shear_y": _entry(1, 0, lambda x: 0.3),
    "translate_x": _entry(0, 2, lambda x: 0.45 * x.shape[3]),
    "translate_y": _entry(1, 2, lambda x: 0.45 * x.shape[2]),
}


# ---- all of them ----


def _by_blend(poorer: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda x, strength, sign: _blend(poorer(x), x, strength, sign)


def _by_move(matrix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda x, strength, sign: warp(x, matrix(x, strength, sign), FILL)


OPERATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    **TONES,
    **{name: _by_blend(poorer) for name, poorer in BLENDS.items()},
    **{name: _by_move(matrix) for name, matrix in MOVES.items()},
}


def _codes(x: Tensor) -> Tensor:
    return (x * 255).round()
