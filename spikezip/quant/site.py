"""A site of the quantized network: a neuron whose scale is learned (LSQ) or calibrated."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from spikezip.errors import CalibrationError
from spikezip.quant.lsq import initial_scale, lsq
from spikezip.spiking.neuron import Neuron


class Observer(Protocol):
    """What calibration puts into a site: it sees what arrives there."""

    def see(self, u: Tensor) -> None: ...


class Site(Neuron):
    """In `train()`: fake quantization with gradients. In `eval()`: codes, by the same rule the neuron follows.

    Example:
        >>> site = Site("site", lo=-4, hi=3)
        >>> site.train()(torch.tensor([1.0, -3.0])).requires_grad, bool(site.initialized)
        (True, True)
    """

    initialized: Tensor

    def __init__(self, name: str, lo: int, hi: int, entry: bool = False, like: Tensor | None = None) -> None:
        start = torch.ones(()) if like is None else torch.ones((), dtype=like.dtype, device=like.device)
        super().__init__(name, start, lo, hi, entry)
        del self.scale
        self.scale = nn.Parameter(start)
        self.register_buffer("initialized", torch.zeros((), dtype=torch.bool, device=start.device))
        self.observer: Observer | None = None
        self._ready = False  # mirrors `initialized` without asking the device for it in every forward pass

    def is_ready(self) -> bool:
        """Whether the scale was set by calibration, by training or from a checkpoint."""
        if not self._ready:
            self._ready = bool(self.initialized)
        return self._ready

    @torch.no_grad()
    def set_scale(self, scale: Tensor) -> None:
        self.scale.copy_(scale)
        self.initialized.fill_(True)
        self._ready = True

    def on_grid(self) -> bool:
        """Whether this site computes codes now, rather than training or observing floats."""
        if self.training or self.observer is not None:
            return False
        if not self.is_ready():
            raise CalibrationError(
                f"site {self.name!r} has no scale yet: call spikezip.calibrate(qann, batches) or train the network"
            )
        return True

    def forward(self, u: Tensor) -> Tensor:
        if self.observer is not None:
            self.observer.see(u)
            return u
        if not self.training:
            self.on_grid()
            return super().forward(u)
        if not self.is_ready():
            self.set_scale(initial_scale(u, self.hi))
        return lsq(u, self.scale, self.lo, self.hi)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._ready = False
        super()._load_from_state_dict(*args, **kwargs)
