"""Weights on an integer grid, the bound on what a product can reach, and the product itself."""

import torch
import torch.nn.functional as F
from torch import Tensor

from spikezip.errors import ConfigError, InputError
from spikezip.ops import rounding

# 16 bits stop at 127·256 + 127, so that both halves fit into int8.
LARGEST_WEIGHT = {8: 127, 16: 32639}
WEIGHT_BITS = tuple(LARGEST_WEIGHT)
INPUT_FRACTION_BITS = 16


def weight_grid(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Integer weights and their scale per output channel (dimension 0): `W ≈ W_int · s_w`.

    This is the one function that decides integer weights: training, evaluation and conversion all call it. Weights and
    scales are seen with the 24 bits of a float32, so that a network that was cast to float64 keeps its integers.

    Example:
        >>> codes, scale = weight_grid(torch.tensor([[0.5, -1.27], [0.0, 0.0]]), bits=8)
        >>> codes, scale
        (tensor([[  50., -127.],
                [   0.,    0.]]), tensor([0.0100, 1.0000]))
    """
    top = LARGEST_WEIGHT[bits]
    rows = rounding.representable(weight.detach().flatten(1))
    largest = rows.abs().amax(dim=1)
    # By a tensor: a GPU would multiply by the reciprocal of a plain number, and scales would differ by the last bit.
    scale = torch.where(largest > 0, largest / torch.full_like(largest, top), torch.ones_like(largest))
    scale = rounding.representable(scale)
    # `largest / top` may underflow to zero for denormal rows; those are zero for every purpose.
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    codes = rounding.reference.code(rows, scale[:, None], -top, top)
    return codes.view_as(weight), scale


def halves(codes: Tensor) -> tuple[Tensor, Tensor]:
    """16-bit weights as `256·high + low`, with `low` in −128 … 127.

    Example:
        >>> halves(torch.tensor([32639.0, -200.0]))
        (tensor([127.,  -1.]), tensor([127.,  56.]))
    """
    low = torch.remainder(codes + 128, 256) - 128
    return (codes - low) / 256, low


def linear_bound(weight: Tensor, largest_code: int) -> int:
    """The largest partial sum that `codes · weight` can reach, over all output channels.

    Example:
        >>> linear_bound(torch.tensor([[3.0, -4.0], [1.0, 1.0]]), largest_code=31)
        217
    """
    return int(weight.flatten(1).to(torch.float64).abs().sum(dim=1).max()) * largest_code


def accumulator(bound: int, what: str) -> torch.dtype:
    """The narrowest float type that holds every integer up to `bound`.

    Example:
        >>> accumulator(2**24 - 1, "a product"), accumulator(2**24, "a product")
        (torch.float32, torch.float64)
    """
    if bound < 2**24:
        return torch.float32
    if bound < 2**53:
        return torch.float64
    raise ConfigError(f"{what} can reach {bound:.3g}, beyond exact integers (2^53); use fewer levels or weight bits")


def linear(codes: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`codes · weightᵀ` summed in `dtype`."""
    return F.linear(codes.to(dtype), weight.to(dtype))


def matmul(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """`a · b` of two code tensors, summed in `dtype`."""
    return torch.matmul(a.to(dtype), b.to(dtype))


def fixed_point(x: Tensor, bound: float | None, what: str) -> Tensor:
    """A float input as integers in units of 2^-16 (float64), after checking that sums up to `bound·|x|` stay exact.

    Without a bound nothing is checked.

    Example:
        >>> fixed_point(torch.tensor([0.5, -1.0]), bound=100, what="the input")
        tensor([ 32768., -65536.], dtype=torch.float64)
    """
    integers = torch.floor(x.to(torch.float64) * 2**INPUT_FRACTION_BITS + 0.5)
    if bound is not None and x.numel() and float(integers.abs().max()) * bound >= 2**53:
        raise ConfigError(f"{what} holds values up to {float(x.abs().max()):.3g}: too large; normalise it")
    return integers


def check_channels(total: Tensor, scale: Tensor, bias: Tensor | None) -> None:
    """Raise unless scale and bias hold one element for each channel of the sums.

    Example:
        >>> check_channels(torch.zeros(2, 3), torch.ones(3), torch.zeros(2))
        Traceback (most recent call last):
        spikezip.errors.InputError: a bias of shape [2] does not fit sums of shape [2, 3]: give [3]
    """
    for name, given in (("scale", scale), ("bias", bias)):
        if given is not None and given.shape != total.shape[-1:]:
            raise InputError(
                f"a {name} of shape {list(given.shape)} does not fit sums of shape {list(total.shape)}: "
                f"give {list(total.shape[-1:])}"
            )
