"""What calibration remembers of a site, and the scale it makes of it."""

from math import gcd

import torch
from torch import Tensor

from spikezip.errors import InputError
from spikezip.ops import rounding

_SAMPLE = 1 << 15  # values kept per site and batch
_SAMPLE_BY_CHANNEL = 1 << 9  # … of each channel: a few tokens may be far larger than all others
_CANDIDATES = 80


class RangeObserver:
    """Keeps an even sample of what a site sees and the largest magnitude, and finds the scale of least squared error.

    The sample is taken at a fixed distance, so that calibration is deterministic. The distance has no factor in common
    with the shape: it comes by all channels and all positions, of which a few often hold the largest values.

    Example:
        >>> observer = RangeObserver("site", lo=-4, hi=3)
        >>> observer.see(torch.linspace(-1, 1, 101))
        >>> 0.2 < float(observer.best_scale()) < 0.35
        True
    """

    def __init__(self, name: str, lo: int, hi: int, by_channel: bool = False) -> None:
        self.name, self.lo, self.hi, self.by_channel = name, lo, hi, by_channel
        self.samples: list[Tensor] = []  # [values, channels], one channel unless each has its own scale
        self.largest: Tensor | None = None

    def see(self, u: Tensor) -> None:
        rows = u.detach().reshape(-1, u.shape[-1] if self.by_channel else 1)
        top = rows.abs().amax(dim=0)
        self.largest = top if self.largest is None else torch.maximum(self.largest, top)
        distance = max(1, len(rows) // (_SAMPLE_BY_CHANNEL if self.by_channel else _SAMPLE))
        while gcd(distance, len(rows)) > 1:
            distance += 1
        self.samples.append(rows[::distance])

    def best_scale(self) -> Tensor:
        """The scale, among those that cover the sample from a twentieth of its range to all of it."""
        if self.largest is None:
            raise InputError(f"site {self.name!r} was never reached: no batch went through it")
        if not bool(torch.isfinite(self.largest).all()):
            raise InputError(f"site {self.name!r} saw values that are not finite; check the model and the batches")
        sample = torch.cat(self.samples)
        reach = max(-self.lo, self.hi) if self.lo < 0 else self.hi
        best = self.largest / reach
        least = torch.full_like(best, float("inf"))
        for i in range(1, _CANDIDATES + 1):
            scale = self.largest / reach * (0.05 + 0.95 * i / _CANDIDATES)
            scale = torch.where(scale > 0, scale, torch.ones_like(scale))
            error = (rounding.code(sample, scale, self.lo, self.hi) * scale - sample).square().mean(dim=0)
            best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
        best = torch.where(self.largest > 0, best, torch.full_like(best, 1 / self.hi))
        return best if self.by_channel else best.view(())
