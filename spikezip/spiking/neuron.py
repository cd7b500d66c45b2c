"""A layer of ST-BIF+ neurons, as a module: scale (the threshold) and range of the tracer."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from spikezip.errors import CoverageError
from spikezip.execution import current
from spikezip.ops import rounding

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

    def __init__(self, name: str, scale: Tensor, lo: int, hi: int, entry: bool = False) -> None:
        super().__init__()
        self.name = name
        self.lo = lo
        self.hi = hi
        self.entry = entry
        self.register_buffer("scale", scale)

    @property
    def step_size(self) -> Tensor:
        """The scale s: a neuron's threshold, a quantizer's step."""
        return rounding.representable(self.scale.detach())

    @property
    def levels(self) -> int:
        return self.hi - self.lo + 1

    @property
    def largest(self) -> int:
        """The largest magnitude of a code."""
        return max(abs(self.lo), abs(self.hi))

    def codes(self, u: Tensor) -> Tensor:
        """The codes for the running input `u`, as a float tensor of integers."""
        return current().codes(self, u)

    def forward(self, u: Tensor) -> Tensor:
        codes = self.codes(u)
        values = codes * self.step_size
        if not values.is_inference():
            _kept[values] = self, values._version, codes
        return values

    def read(self, values: Tensor) -> Tensor:
        """The bare codes in `values` that came from this site, whatever glue moved them on the way."""
        site, version, kept = _kept.get(values, (None, 0, values))
        if site is self and version == values._version and not _checking.get():
            return kept
        codes = (values / self.step_size).round_()
        if _checking.get() and not torch.equal(codes * self.step_size, values):
            raise CoverageError(
                f"a product reads site {self.name!r}, but its input does not lie on that site's grid: "
                "the model computes something between the two. Give the product an input site in the model's table."
            )
        return codes

    def extra_repr(self) -> str:
        return f"{self.name!r}, {self.lo}…{self.hi}"
