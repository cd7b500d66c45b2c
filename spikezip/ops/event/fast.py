"""Products from events, where few inputs fired; where many did, a dense product of the codes costs less."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from spikezip.ops.event.layer import Events
from spikezip.ops.grid.fast import int8_products_pay

# The share of inputs up to which events are cheaper than a dense product. Measured with 65 and 197 rows, 256 and 768
# columns: an event costs 0.04 to 0.06 ns per column, a dense product 0.0014 to 0.004 ns per input and column on int8
# units, 0.016 on float units. In attention an event goes over strided memory, 1 ns per sum.
SHARE_ON_INT8_UNITS = 0.03
SHARE_ON_FLOAT_UNITS = 0.2
SHARE_IN_ATTENTION = 0.015

_columns = WeakTensorKeyDictionary()  # weights [out, in] → version, the same numbers as [in, out]; while they live


@cache
def share_of_linear() -> float:
    """The share of inputs up to which `add_linear` is worth it on this machine.

    Example:
        >>> 0 < share_of_linear() < 1
        True
    """
    return SHARE_ON_INT8_UNITS if int8_products_pay() else SHARE_ON_FLOAT_UNITS


def share_of_matmul() -> float:
    """The share of inputs up to which `add_matmul` is worth it.

    Example:
        >>> 0 < share_of_matmul() < 1
        True
    """
    return SHARE_IN_ATTENTION


def linear_into(sums: Tensor, codes: Tensor, weight: Tensor) -> None:
    """`sums = codes · weightᵀ` on the int8 units, for two inputs or more, into int32 memory that is there already.

    It is the product that `grid.linear` takes where it returns int32. New memory must be mapped before it is written:
    with sums of a few MB the product took up to 1.8 times as long.

    Example:
        >>> sums, codes = torch.empty(1, 2, dtype=torch.int32), torch.tensor([[3, -1]], dtype=torch.int8)
        >>> linear_into(sums, codes, torch.tensor([[1, 2], [4, 5]], dtype=torch.int8))
        >>> sums.tolist()
        [[1, 7]]
    """
    rows = codes.reshape(-1, codes.shape[-1])
    torch._int_mm(rows, weight.t(), out=sums.view(-1, len(weight)))


def add_linear(sums: Tensor, events: Events, weight: Tensor, max_spike: int) -> None:
    """`sums += spikes · weightᵀ` in place, for int8 weights `[out, in]`; events are places in the codes `[…, in]`.

    Example:
        >>> import numpy as np
        >>> from spikezip.ops.compiled import numba_is_here
        >>> sums, weight = torch.zeros(2, 2, dtype=torch.int32), torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int8)
        >>> down = Events(np.array([4]), np.array([-1], np.int16))  # the second of three inputs, in the second row
        >>> if numba_is_here():
        ...     add_linear(sums, down, weight, max_spike=1)
        ...     assert sums.tolist() == [[0, 0], [-2, -5]]
    """
    from spikezip.ops.event import compiled  # only where it is used: importing the library must not need numba

    together = 32767 // (128 * min(max_spike, 255))  # so many products of a row can be added up in 16 bits
    rows = sums.view(-1, len(weight)).numpy()
    compiled.add_columns(*events, together, columns_of(weight), rows)


def add_matmul(sums: Tensor, of_a: Events, of_b: Events, a_before: Tensor, b: Tensor) -> None:
    """`sums += dA·B_t + A_{t−1}·dB` in place, for int8 codes: `a_before` `[…, M, K]` and `b` `[…, K, N]`.

    Codes are contiguous, or `b` is the transpose of what is; events are places in that.

    Example:
        >>> import numpy as np
        >>> from spikezip.ops.compiled import numba_is_here
        >>> before, b = torch.tensor([[[0, 2]]], dtype=torch.int8), torch.tensor([[[3, 4]]], dtype=torch.int8).mT
        >>> up, sums = Events(np.array([0]), np.array([1], np.int16)), torch.tensor([[[8.0]]])
        >>> if numba_is_here():
        ...     add_matmul(sums, up, Events.none(), before, b)  # (0, 2) has become (1, 2)
        ...     assert sums.item() == 11
    """
    from spikezip.ops.event import compiled

    left, right, totals = (x.flatten(0, -3).numpy() for x in (a_before, b, sums))
    compiled.add_left(*of_a, right, totals)
    compiled.add_right(*of_b, not b.is_contiguous(), left, totals)


def columns_of(weight: Tensor) -> Any:
    """Integer weights `[out, in]` as an array `[in, out]`, made once for each version of them.

    Example:
        >>> columns_of(torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int8)).tolist()
        [[1, 4], [2, 5], [3, 6]]
    """
    version = 0 if weight.is_inference() else weight._version
    made = _columns.get(weight)
    if made is None or made[0] != version:
        made = _columns[weight] = version, weight.t().contiguous().numpy()
    return made[1]
