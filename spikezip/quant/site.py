"""A site of the quantized network: a neuron whose scale is learned (LSQ) or calibrated."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from spikezip.errors import CalibrationError
from spikezip.execution import current
from spikezip.quant.lsq import carried_codes, initial_scale, quantize
from spikezip.spiking.neuron import Neuron


class Observer(Protocol):
    """What calibration puts into a site: it sees what arrives there."""

    def see(self, u: Tensor) -> None: ...


class Site(Neuron):
    """In `train()`: codes with gradients. In `eval()`: codes, by the same rule the neuron follows.

    The scale is a vector of one element, or of one per channel: sharded training (FSDP) takes no parameter without
    dimensions.

    Example:
        >>> site = Site("site", lo=-4, hi=3)
        >>> site.train()(torch.tensor([1.0, -3.0])).requires_grad, bool(site.initialized)
        (True, True)
    """

    initialized: Tensor

    def __init__(
        self, name: str, lo: int, hi: int, entry: bool = False, like: Tensor | None = None, by_channel: bool = False
    ) -> None:
        start = torch.ones(1) if like is None else like.new_ones(1)
        super().__init__(name, start, lo, hi, entry, by_channel)
        del self.scale
        self.scale = nn.Parameter(start)
        self.register_buffer("initialized", torch.zeros((), dtype=torch.bool, device=start.device))
        self.observer: Observer | None = None
        self._ready = False  # mirrors `initialized` without asking the device for it in every forward pass
        self.notes_scale = False  # in sharded training the scale is at hand only while the site's own block runs
        self._noted: Tensor | None = None

    def is_ready(self) -> bool:
        """Whether the scale was set by calibration, by training or from a checkpoint."""
        if not self._ready:
            self._ready = bool(self.initialized)
        return self._ready

    @property
    def step_size(self) -> Tensor:
        return super().step_size if self._noted is None else self._noted

    @property
    def per_channel(self) -> bool:
        return super().per_channel if self._noted is None else self._noted.ndim > 0

    def note_scale(self) -> None:
        """Keep the scale for products that read this site later in this forward pass, when it may be sharded again."""
        self._noted = None
        self._noted = self.step_size.clone()

    def codes(self, u: Tensor) -> Tensor:
        if self.notes_scale:
            self.note_scale()
        return super().codes(u)

    def values(self, u: Tensor) -> tuple[Tensor, Tensor]:
        if self.notes_scale:
            self.note_scale()
        return super().values(u)

    @torch.no_grad()
    def set_scale(self, scale: Tensor) -> None:
        """Start from this scale: one number, or one per channel for a site that has one per channel."""
        self.take_shape(scale)
        self.scale.copy_(scale.expand_as(self.scale))
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
            if self.lo == 0:  # an unsigned site is also the ReLU before it
                u = u.clamp(min=0)
            self.observer.see(u)
            return u
        if not self.training:
            self.on_grid()
            return super().forward(u)
        values, codes = self.learn(u)
        return self.keep(values, codes)

    def learn(self, u: Tensor, bare: bool = False) -> tuple[Tensor, Tensor]:
        """Values, with gradients to `u` and the scale, and codes: a step of training.

        `bare` is for readers of the codes alone: what stands for the values then has a gradient, and no content.
        """
        self.make_ready(u)
        values, codes = (carried_codes if bare else quantize)(u, self.scale, self.lo, self.hi)
        current().learned(self, codes)
        return values, codes

    def make_ready(self, u: Tensor) -> None:
        """In training: start from a scale that suits the first input `u`, if there is none yet."""
        if not self.is_ready():
            if self.by_channel:  # an optimizer may hold the parameter by now: it must not change its shape
                raise CalibrationError(f"site {self.name!r} has a scale per channel: call spikezip.calibrate first")
            self.set_scale(initial_scale(u, self.hi))
        if self.notes_scale:
            self.note_scale()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._ready = False
        super()._load_from_state_dict(*args, **kwargs)
