"""Powers of two, made from the bits of a float: library functions may round them."""

import torch
from torch import Tensor


def power_of_two(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """`2^exponent` for whole numbers, in float32 (from −126 to 127) or float64 (from −1022 to 1023).

    Example:
        >>> power_of_two(torch.tensor([-2, 0, 10]), torch.float32)
        tensor([2.5000e-01, 1.0000e+00, 1.0240e+03])
    """
    if dtype == torch.float32:
        return ((exponent.to(torch.int32) + 127) << 23).view(torch.float32)
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


def exponent_above(x: Tensor) -> Tensor:
    """The smallest whole number e with `|x| < 2^e`; 0 for zero, and for what is not finite.

    Example:
        >>> exponent_above(torch.tensor([0.0, 0.5, 0.75, 1.0, -3.0]))
        tensor([0, 0, 0, 1, 2], dtype=torch.int32)
    """
    _, exponent = torch.frexp(torch.where(x.isfinite(), x, 0))
    return exponent
