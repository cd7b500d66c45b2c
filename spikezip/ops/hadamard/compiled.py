"""The transform as a compiled loop over some rows at a time, which lie side by side so that they become vectors."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from spikezip.ops.compiled import jit, share
from spikezip.ops.hadamard import reference

_TOGETHER = 16


@jit
def _butterflies(work, block):
    half = 1
    while half < block:
        for first in range(0, len(work), 2 * half):
            for i in range(first, first + half):
                for r in range(_TOGETHER):
                    a, b = work[i, r], work[i + half, r]
                    work[i, r] = a + b
                    work[i + half, r] = a - b
        half *= 2


@jit
def _rows(x, signs, block, out, first, last):
    work = np.zeros((x.shape[1], _TOGETHER), x.dtype)
    for start in range(first, last, _TOGETHER):
        count = min(_TOGETHER, last - start)
        for r in range(count):
            for c in range(x.shape[1]):
                work[c, r] = x[start + r, c] * signs[c] if signs[c] != 0 else 0
        _butterflies(work, block)
        for r in range(count):
            for c in range(x.shape[1]):
                out[start + r, c] = work[c, r]


@lru_cache(maxsize=1024)
def _signs(channels: int, block: int, skip: tuple[int, ...]) -> np.ndarray:
    found: np.ndarray = reference.signs(channels, block, skip).numpy()
    return found


def hadamard(x: Tensor, block: int, skip: Sequence[int] = ()) -> Tensor:
    """As `reference.hadamard`, for floats on the CPU that need no gradient."""
    rows = x.detach().reshape(-1, x.shape[-1])
    out = torch.empty_like(rows)
    given, found, signs = rows.numpy(), out.numpy(), _signs(x.shape[-1], block, tuple(skip))
    share(lambda first, last: _rows(given, signs, block, found, first, last), len(rows), rows.numel())
    return out.view(x.shape)
