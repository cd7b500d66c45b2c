"""A layer of ST-BIF+ neurons, as a module: scale (the threshold) and range of the tracer."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from spikezip.errors import CoverageError
from spikezip.execution import current
from spikezip.ops import rounding
from spikezip.spiking.unscaled import Unscaled

_checking: ContextVar[bool] = ContextVar("spikezip_checking", default=False)

# Most products get the very tensor that a site returned: its codes are kept as long as it lives, and the product need
# not divide. The version says whether the tensor was changed since.
_kept = WeakTensorKeyDictionary()


@contextmanager
def checking_reads() -> Iterator[None]:
    """Inside the block every synapse checks that what it reads lies on the grid of the site it reads from."""
    token = _checking.set(True)
    try:
        yield
    finally:
        _checking.reset(token)


class Neuron(nn.Module):
    """Takes the running sum of its input, gives its running output `s·S`; what happens in between, an engine says.

    Between modules values travel, so that a model's own glue (slicing, residual sums, gates) stays as it is. A product
    wants bare codes and gets them back from the values with `read`: `fl(s·k)/s` is within `|k|·2^-23` of the integer k.

    Example:
        >>> neuron = Neuron("site", torch.tensor(0.5), lo=-4, hi=3)
        >>> neuron(torch.tensor([0.7, -9.0]))
        tensor([ 0.5000, -2.0000])
        >>> neuron.read(torch.tensor([0.5, -2.0]))
        tensor([ 1., -4.])
    """

    scale: Tensor

    def __init__(
        self, name: str, scale: Tensor, lo: int, hi: int, entry: bool = False, by_channel: bool = False
    ) -> None:
        super().__init__()
        self.by_channel = by_channel
        self.name = name
        self.lo = lo
        self.hi = hi
        self.entry = entry
        self.register_buffer("scale", scale)

    @property
    def step_size(self) -> Tensor:
        """The scale s: a neuron's threshold, a quantizer's step. One number, or one per channel (last dimension)."""
        scale = rounding.representable(self.scale.detach())
        return scale.view(()) if scale.numel() == 1 else scale

    @property
    def per_channel(self) -> bool:
        """Whether there is a scale per channel now; `by_channel` says whether there should be, once it is set."""
        return self.scale.numel() > 1

    def take_shape(self, scale: Tensor) -> None:
        """Make room for a scale per channel, where this site has one: how many channels, only data tells."""
        if self.by_channel and scale.numel() > 1 and self.scale.shape != scale.shape:
            room = torch.ones_like(scale, dtype=self.scale.dtype, device=self.scale.device)
            self.scale = nn.Parameter(room) if isinstance(self.scale, nn.Parameter) else room

    @property
    def levels(self) -> int:
        return self.hi - self.lo + 1

    @property
    def largest(self) -> int:
        """The largest magnitude of a code."""
        return max(abs(self.lo), abs(self.hi))

    @property
    def integers(self) -> torch.dtype:
        """The smallest type that holds the codes."""
        return torch.int8 if self.lo >= -128 and self.hi <= 127 else torch.int16

    def codes(self, u: Tensor) -> Tensor:
        """The codes for the running input `u`: integers, as floats or in int8."""
        return current().codes(self, u)

    def values(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """What the neuron passes on for the running input `u`, and its codes."""
        return current().values(self, u)

    def forward(self, u: Tensor) -> Tensor:
        return self.keep(*self.values(u))

    def keep(self, values: Tensor, codes: Tensor) -> Tensor:
        """Remember the codes of `values` for the products that read them; returns the values."""
        if not isinstance(values, Unscaled) and not values.is_inference():
            _kept[values] = self, values._version, codes
        return values

    def kept(self, values: Tensor) -> Tensor | None:
        """The codes of `values`, if that is what this site returned, as it was or in another shape."""
        if values.is_inference():
            return None
        # A model's `reshape` of a whole tensor is a view: its base is what the site returned.
        base = values if values in _kept else values._base
        if base is None or base not in _kept or base.numel() != values.numel() or not values.is_contiguous():
            return None
        site, version, codes = _kept[base]
        return codes.view(values.shape) if site is self and version == values._version else None

    def read(self, values: Tensor) -> Tensor:
        """The bare codes in `values` that came from this site, whatever glue moved them on the way."""
        if isinstance(values, Unscaled):
            if values.site is self and not values.changed and not _checking.get():
                return values.total()
            values = values.scaled()
        if not _checking.get():
            codes = self.kept(values)
            if codes is not None:
                return codes
        codes = (values / self.step_size).round_()
        if _checking.get() and not torch.equal(codes * self.step_size, values):
            raise CoverageError(
                f"a product reads site {self.name!r}, but its input does not lie on that site's grid: "
                "the model computes something between the two. Give the product an input site in the model's table."
            )
        return codes

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        stored = state_dict.get(prefix + "scale")
        if stored is not None:
            self.take_shape(stored)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        return f"{self.name!r}, {self.lo}…{self.hi}"
