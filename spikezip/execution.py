"""Who computes: the arithmetic behind every site and every product of a network on the integer grid.

A quantized network in `eval()` mode and a spiking network are the same modules asking the same four questions:
which codes does a site hold, what is a product with weights, what is a product of two code tensors, what does an
input layer see. `Execution` answers for the quantized network, at once. The engines under `simulate/` answer for the
spiking network, over time. `executing` says who answers inside a `with` block.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from spikezip.ops import grid, norm, rounding


class SiteLike(Protocol):
    """What an execution needs to know of a site: its name, scale, range, and whether the input enters here."""

    name: str
    lo: int
    hi: int
    entry: bool

    @property
    def step_size(self) -> Tensor: ...


class Execution:
    """The quantized network's own arithmetic: no time, every site holds its final code."""

    watches = False  # whether `learned` wants to hear of every site
    keeps_sums = False  # whether `linear` and `matmul` return sums that they go on with, and that must not be changed

    def codes(self, site: SiteLike, u: Tensor) -> Tensor:
        """The codes of a site whose (running) input is `u`: integers, as floats or in int8."""
        return rounding.code(u, site.step_size, site.lo, site.hi)

    def values(self, site: SiteLike, u: Tensor) -> tuple[Tensor, Tensor]:
        """What a site passes on, `s·S`, and its codes."""
        codes = self.codes(site, u)
        return codes * site.step_size, codes

    def codes_of(self, inputs: Sequence[tuple[SiteLike, Tensor]]) -> list[Tensor] | None:
        """The codes of several sites that do not depend on one another, where they are computed together."""
        return None

    def takes_unscaled(self, total: Tensor) -> bool:
        """Whether sites may be given such a product before it has got its scale and bias."""
        return False

    def defers(self, codes: Tensor, weight: Tensor) -> bool:
        """Whether such a product may wait until it is known who reads it."""
        return False

    def attend(
        self, owner: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float
    ) -> tuple[Tensor, Tensor] | None:
        """All that follows the codes of `q`, `k` and `v` in the attention `owner`, where that is done in one piece."""
        return None

    def norm(self, owner: nn.LayerNorm, x: Tensor) -> Tensor:
        """LayerNorm of the running sums `x`."""
        return norm.layer_norm(x, owner.weight, owner.bias, owner.eps)

    def learned(self, site: SiteLike, codes: Tensor) -> None:
        """Told of the codes that a site has come to in a training step."""

    def linear(
        self, owner: nn.Module, tag: str, codes: Tensor, weight: Tensor, dtype: torch.dtype, largest: int
    ) -> Tensor:
        """`codes · weightᵀ` of the synapse `owner` (`tag` tells its halves apart), summed exactly in `dtype`."""
        return grid.linear(codes, weight, dtype, largest)

    def matmul(self, owner: nn.Module, tag: str, a: Tensor, b: Tensor, dtype: torch.dtype, largest: int) -> Tensor:
        """`a · b` of two code tensors in the attention `owner`, summed exactly in `dtype`."""
        return grid.matmul(a, b, dtype, largest)

    def inject(self, owner: nn.Module, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """The output of an input layer, which sees floats."""
        return layer(x)


_DIRECT = Execution()
_current: ContextVar[Execution | None] = ContextVar("spikezip_execution", default=None)


def current() -> Execution:
    """Who answers now; outside any `executing` block, the quantized network's own arithmetic."""
    return _current.get() or _DIRECT


@contextmanager
def executing(execution: Execution) -> Iterator[Execution]:
    """Let `execution` answer for every site and product inside the block."""
    token = _current.set(execution)
    try:
        yield execution
    finally:
        _current.reset(token)
