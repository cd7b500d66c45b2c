"""LSQ as plain tensor operations: codes, values, and both gradients, with the order of every sum written down."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from spikezip.errors import ConfigError, InputError
from spikezip.ops.rounding import reference as rounding

# The scale's gradient is summed in tiles of this many rows; a chunk of that many tiles is added up before chunks meet.
# A scale for the whole tensor sees single values as its rows. These numbers are part of the definition (README.md).
TILE = 1024
TILES = 4
CHANNEL_TILE = 8
CHANNEL_TILES = 8

# The integers up to this magnitude are exact in each dtype that codes may have (int8 reaches one further below zero).
_EXACT = {
    torch.int8: 127,
    torch.bfloat16: 256,
    torch.float16: 2048,
    torch.float32: 2**24,
    torch.float64: 2**53,
}


def check_codes_dtype(dtype: torch.dtype, lo: int, hi: int) -> None:
    """Raise unless every code in lo … hi is exact in `dtype`.

    Example:
        >>> check_codes_dtype(torch.int8, 0, 255)
        Traceback (most recent call last):
        spikezip.errors.ConfigError: codes 0 … 255 do not fit into torch.int8: use torch.bfloat16, torch.float16, ...
    """
    if dtype not in _EXACT:
        raise ConfigError(f"codes cannot be {dtype}: use {_names(_EXACT)}")
    if hi > _EXACT[dtype] or -lo > _EXACT[dtype] + (dtype == torch.int8):
        wide = [other for other, largest in _EXACT.items() if max(-lo, hi) <= largest]
        raise ConfigError(f"codes {lo} … {hi} do not fit into {dtype}: use {_names(wide)}")


def check_shapes(u: Tensor, scale: Tensor, grad: Tensor | None = None) -> None:
    """Raise unless `scale` holds one element, or one for each channel (the last dimension of `u`), and `grad` fits `u`.

    Example:
        >>> check_shapes(torch.zeros(2, 3), torch.ones(2))
        Traceback (most recent call last):
        spikezip.errors.InputError: a scale of shape [2] does not fit values of shape [2, 3]: give one element or [3]
    """
    if scale.numel() != 1 and (u.ndim == 0 or list(scale.shape) != [u.shape[-1]]):
        channels = f" or [{u.shape[-1]}]" if u.ndim else ""
        raise InputError(
            f"a scale of shape {list(scale.shape)} does not fit values of shape {list(u.shape)}: "
            f"give one element{channels}"
        )
    if grad is not None and grad.shape != u.shape:
        raise InputError(f"a gradient of shape {list(grad.shape)} does not fit values of shape {list(u.shape)}")


def work_dtype(u: Tensor) -> torch.dtype:
    """In what values and quotients are computed: float64 for float64, float32 for everything narrower.

    Example:
        >>> work_dtype(torch.zeros(1, dtype=torch.bfloat16))
        torch.float32
    """
    return torch.float64 if u.dtype == torch.float64 else torch.float32


def quantize(
    u: Tensor, scale: Tensor, lo: int, hi: int, codes_dtype: torch.dtype = torch.float32, with_values: bool = True
) -> tuple[Tensor, Tensor]:
    """The values `code · scale`, with one rounding, and the codes, by the one rounding rule; or the codes twice."""
    check_shapes(u, scale)
    check_codes_dtype(codes_dtype, lo, hi)
    dtype = work_dtype(u)
    codes = rounding.code(u.detach().to(dtype), _spread(scale), lo, hi).to(codes_dtype)
    return codes.to(dtype) * _spread(scale).to(dtype) if with_values else codes, codes


def backward(grad: Tensor, u: Tensor, scale: Tensor, lo: int, hi: int) -> tuple[Tensor, Tensor]:
    """The gradients for `u`, in its dtype, and for the scale, from the gradient for the values."""
    check_shapes(u, scale, grad)
    grad_u, terms = slopes(grad, u, scale, lo, hi)
    if scale.numel() == 1:
        total = ordered_sum(terms.reshape(-1), TILE, TILES)
    else:
        total = ordered_sum(terms.reshape(-1, len(scale)), CHANNEL_TILE, CHANNEL_TILES)
    return grad_u, finish(total, scale, share(u, scale, hi))


def slopes(grad: Tensor, u: Tensor, scale: Tensor, lo: int, hi: int) -> tuple[Tensor, Tensor]:
    """Element by element: the gradient for `u`, and what each adds to the gradient of the scale, in float64.

    Example:
        >>> slopes(torch.ones(3), torch.tensor([0.25, 0.75, -7.0]), torch.tensor(1.0), -4, 3)
        (tensor([1., 1., 0.]), tensor([-0.2500,  0.2500, -4.0000], dtype=torch.float64))
    """
    dtype = work_dtype(u)
    wide, step = u.to(dtype), _spread(scale).to(dtype)
    quotient = wide / step
    inside = (quotient >= lo) & (quotient <= hi)
    slope = torch.where(inside, (quotient + 0.5).floor() - quotient, quotient.clamp(lo, hi))
    grad_u = torch.where(inside, grad, torch.zeros_like(grad)).to(u.dtype)
    return grad_u, grad.to(torch.float64) * slope.to(torch.float64)


def share(u: Tensor, scale: Tensor, hi: int) -> float:
    """By what the scale's gradient is multiplied: `1/sqrt(hi · values per scale)`, as a float32 number."""
    return share_of(u.numel() // scale.numel() if scale.numel() else 0, hi)


def share_of(count: int, hi: int) -> float:
    """`share` for so many values per scale.

    Example:
        >>> share_of(32, 2), share_of(0, 2)
        (0.125, 0.0)
    """
    return float(np.float32(1.0 / math.sqrt(hi * count))) if count else 0.0


def finish(total: Tensor, scale: Tensor, share: float) -> Tensor:
    """The scale's gradient from the float64 sum: one product in float64, one rounding to the scale's dtype."""
    return total.mul(share).to(scale.dtype).view_as(scale)


def ordered_sum(terms: Tensor, tile: int, tiles: int) -> Tensor:
    """The sum over dimension 0, in an order that does not depend on device or library.

    Example:
        >>> ordered_sum(torch.arange(5.0), tile=2, tiles=1)
        tensor(10.)
    """
    return last_sum(chunk_sums(terms, tile, tiles), tile)


def last_sum(partial: Tensor, tile: int) -> Tensor:
    """The sum of all chunks, as one chunk."""
    return chunk_sums(partial, tile, max(1, -(-len(partial) // tile)))[0]


def chunk_sums(terms: Tensor, tile: int, tiles: int) -> Tensor:
    """Sums of chunks of `tiles` tiles along dimension 0: tiles one after another, then neighbours within the tile.

    Example:
        >>> chunk_sums(torch.tensor([1.0, 2.0, 10.0, 20.0, 100.0]), tile=2, tiles=2)
        tensor([ 33., 100.])
    """
    if len(terms) <= tile:  # what is left out below are zeros, added to zeros or to a term: they change nothing
        tile, tiles = 1 << max(0, len(terms) - 1).bit_length(), 1
    chunks = max(1, -(-len(terms) // (tile * tiles)))
    padding = terms.new_zeros(chunks * tile * tiles - len(terms), *terms.shape[1:])
    return halve(add_tiles(torch.cat([terms, padding]).view(chunks, tiles, tile, *terms.shape[1:])))


def add_tiles(parts: Tensor) -> Tensor:
    """`[chunks, tiles, tile, …]` to `[chunks, tile, …]`: tiles one after another.

    Example:
        >>> add_tiles(torch.tensor([[[1.0, 2.0], [10.0, 20.0]]]))
        tensor([[11., 22.]])
    """
    total = parts[:, 0].clone()
    for t in range(1, parts.shape[1]):
        total += parts[:, t]
    return total


def halve(total: Tensor) -> Tensor:
    """`[chunks, tile, …]` to `[chunks, …]`: neighbours are added until one is left. `tile` is a power of two.

    Example:
        >>> halve(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([10.])
    """
    while total.shape[1] > 1:
        total = total[:, 0::2] + total[:, 1::2]
    return total[:, 0]


def _spread(scale: Tensor) -> Tensor:
    """The scale as what broadcasts over values: a scalar, or one per channel."""
    return scale.detach().reshape(()) if scale.numel() == 1 else scale.detach()


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(map(str, dtypes))
