"""The Walsh–Hadamard transform with signs, in torch's own operators."""

from collections.abc import Sequence

import torch
from torch import Tensor


def signs(channels: int, block: int, skip: Sequence[int] = ()) -> Tensor:
    """What each channel is multiplied with before: in each block the Rudin–Shapiro sequence, −1 where the binary number
    of the channel in its block holds `11` an odd number of times; 0 for channels to be left out. As int8.

    Example:
        >>> signs(8, block=8, skip=[5]).tolist(), signs(8, block=4).tolist()
        ([1, 1, 1, -1, 1, 0, -1, 1], [1, 1, 1, -1, 1, 1, 1, -1])
    """
    found = [-1 if (c & c >> 1).bit_count() % 2 else 1 for c in range(block)] * (channels // block)
    for channel in skip:
        found[channel] = 0
    return torch.tensor(found, dtype=torch.int8)


def hadamard(x: Tensor, block: int, skip: Sequence[int] = ()) -> Tensor:
    """The transform of the last dimension in blocks, a power of two channels each; gradients go through it.

    Channels in `skip` count as zero. Applied to two vectors, it multiplies their product by `block`.

    Example:
        >>> hadamard(torch.tensor([1.0, 2.0, 3.0, 4.0]), block=4)
        tensor([ 2.,  6.,  4., -8.])
        >>> hadamard(torch.tensor([1.0, 2.0, 3.0, 4.0]), block=2)
        tensor([ 3., -1.,  7., -1.])
    """
    sign = signs(x.shape[-1], block, skip).to(x.device)
    y = torch.where(sign == 0, x.new_zeros(()), x * sign)
    half = 1
    while half < block:
        pairs = y.unflatten(-1, (-1, 2, half))
        first, second = pairs.unbind(-2)
        y = torch.stack((first + second, first - second), dim=-2).flatten(-3)
        half *= 2
    return y
