"""What calibration remembers of a site, and the scale it makes of it."""

import torch
from torch import Tensor

from spikezip.errors import InputError
from spikezip.ops import rounding

_SAMPLE = 1 << 15  # values kept per site and batch
_CANDIDATES = 80


class RangeObserver:
    """Keeps an even sample of what a site sees and the largest magnitude, and finds the scale of least squared error.

    The sample is taken at fixed distances, so that calibration is deterministic.

    Example:
        >>> observer = RangeObserver("site", lo=-4, hi=3)
        >>> observer.see(torch.linspace(-1, 1, 101))
        >>> 0.2 < float(observer.best_scale()) < 0.35
        True
    """

    def __init__(self, name: str, lo: int, hi: int) -> None:
        self.name, self.lo, self.hi = name, lo, hi
        self.samples: list[Tensor] = []
        self.largest = torch.zeros(())

    def see(self, u: Tensor) -> None:
        flat = u.detach().reshape(-1)
        self.largest = torch.maximum(self.largest.to(flat.device, flat.dtype), flat.abs().max())
        self.samples.append(flat[:: max(1, flat.numel() // _SAMPLE)])

    def best_scale(self) -> Tensor:
        """The scale, among those that cover the sample from a twentieth of its range to all of it."""
        if not self.samples:
            raise InputError(f"site {self.name!r} was never reached: no batch went through it")
        sample = torch.cat(self.samples)
        if not torch.isfinite(self.largest):
            raise InputError(f"site {self.name!r} saw values that are not finite; check the model and the batches")
        top = float(self.largest)
        if top == 0:
            return sample.new_tensor(1 / self.hi)
        reach = max(-self.lo, self.hi) if self.lo < 0 else self.hi
        best, best_error = top / reach, float("inf")
        for i in range(1, _CANDIDATES + 1):
            scale = sample.new_tensor(top / reach * (0.05 + 0.95 * i / _CANDIDATES))
            error = float((rounding.code(sample, scale, self.lo, self.hi) * scale - sample).square().mean())
            if error < best_error:
                best, best_error = float(scale), error
        return sample.new_tensor(best)
