"""What a recipe says about augmentation. `augment.py` carries it out, on batches, on the device."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RandAugment:
    """RandAugment: `ops` random operations per image, of strength `magnitude` (0 … 10) with spread `std`.

    Args:
        variety: each batch draws from this many operations, chosen anew for it; null is all of them. An image meets
            every operation as often as before, but a batch takes fewer kernels: a small one is done sooner.

    Example:
        >>> RandAugment().magnitude
        9.0
    """

    ops: int = 2
    magnitude: float = 9.0
    std: float = 0.5
    variety: int | None = None


@dataclass(frozen=True)
class Augmentation:
    """How training samples are varied. Everything is off by default.

    Args:
        crop_padding: pad by so many pixels on each side and cut the original size out at random.
        flip: mirror half of the images.
        randaugment: see `RandAugment`.
        erase: probability that a random rectangle is erased.
        mixup, cutmix: alpha of the Beta distribution that mixes two samples; 0 is off. With both on, each batch
            takes one of them, half and half.
        mixed: with one of them on, the probability that a sample is mixed at all.
        shift, rotate, drop: for frames of events: move by up to so many pixels; turn by up to so many degrees; drop
            each bin of time with this probability.

    Example:
        >>> Augmentation(mixup=0.8, cutmix=1.0).mixup
        0.8
    """

    crop_padding: int = 0
    flip: bool = False
    randaugment: RandAugment | None = None
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mixed: float = 1.0
    shift: int = 0
    rotate: float = 0.0
    drop: float = 0.0
