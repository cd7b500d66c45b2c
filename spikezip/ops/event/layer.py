"""A layer of neurons made ready for compiled steps: its constants, and room for what it does."""

from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spikezip.ops.neuron.fast import not_a_number
from spikezip.ops.rounding.fast import has_inverse, tie_margin

_FURTHEST = 255  # from one int8 code to another
_LONGEST = 2048  # neurons of a run: what is computed of them stays in the first cache


class Track:
    """Room for steps of a layer: its codes `[1 + steps, neurons]`, those before the steps first, and who fired.

    `counts` are the spikes `[steps, samples]`.

    Example:
        >>> track = Track(2, torch.tensor([[3, -1]], dtype=torch.int8), samples=1)
        >>> track.codes.shape, track.codes[0].tolist(), track.counts.tolist()
        (torch.Size([3, 2]), [3, -1], [[0], [0]])
    """

    def __init__(self, steps: int, before: Tensor, samples: int) -> None:
        self.codes = torch.empty(1 + steps, before.numel(), dtype=torch.int8)
        self.codes[0] = before.reshape(-1)
        self.counts = np.zeros((steps, samples), np.int64)

    def rows(self, first: int, last: int) -> tuple[Any, Any]:
        """Arrays of the steps `first … last`, for compiled loops: codes with those before them, and counts."""
        return self.codes[first : last + 1].view(-1).numpy(), self.counts[first:last]


class Source(NamedTuple):
    """Running inputs as `sums · factor + bias`, for sums of a shape `[samples, rows, channels]`.

    Factor and bias have one number for each channel, or one for all.
    """

    shape: tuple[int, int, int]
    factor: Tensor | None = None
    bias: Tensor | None = None


class Layer:
    """Neurons in the order of the sums that they read. Their scale is one, or one for each channel.

    Ask `suits` before.

    Example:
        >>> from spikezip.ops.compiled import numba_is_here
        >>> sums, track = torch.tensor([[2.0, -1.0, 0.0]]), Track(2, torch.zeros(3, dtype=torch.int8), samples=1)
        >>> if numba_is_here():
        ...     layer = Layer(Source((1, 1, 3)), torch.tensor(1.0), lo=-4, hi=3, max_spike=1)
        ...     assert not layer.follow(track, 0, sums, [0, 0], held=0, awake=True)
        ...     assert track.codes[1:].tolist() == [[1, -1, 0], [2, -1, 0]]
        ...     assert track.counts.tolist() == [[2], [1]]
    """

    def __init__(self, source: Source, scale: Tensor, lo: int, hi: int, max_spike: int) -> None:
        (_, rows, length), factor, bias = source
        step = scale.reshape(-1).numpy()
        constants = (1.0 if factor is None else factor.numpy(), -0.0 if bias is None else bias.numpy(), 1 / step, step)
        self.channels = max(np.size(row) for row in constants)
        if self.channels == 1:  # runs of several rows, of one sample
            length *= _divisor(rows, _LONGEST // length)
        self.length = length
        self.table = np.empty((4, length), np.float32)
        for number, row in enumerate(constants):
            self.table[number] = row
        most = min(max_spike, _FURTHEST)
        self.limits = (np.float32(lo), np.float32(hi), most, np.float32(0.5 - tie_margin(lo, hi)))

    @staticmethod
    def suits(source: Source, scale: Tensor, lo: int, hi: int) -> bool:
        """Whether there are neurons, their codes fit into int8, scales have an inverse, and channels are the same.

        Example:
            >>> sums, one = Source((2, 5, 3)), torch.tensor(1.0)
            >>> Layer.suits(sums, one, -4, 3), Layer.suits(sums, one, 0, 255), Layer.suits(sums, torch.ones(5), -4, 3)
            (True, False, False)
        """
        shape, factor, bias = source
        if lo < -128 or hi > 127 or not prod(shape) or not has_inverse(scale):
            return False
        return all(x is None or x.numel() in (1, shape[-1]) for x in (factor, bias, scale))

    def follow(self, track: Track, first: int, sums: Tensor, at: list[int], held: int, awake: bool) -> bool:
        """Take as many steps as `at` has, from `first` on; returns whether some neuron is behind its code then.

        Sums of the first of them are number `at[0]` of `sums` `[…, neurons]`, and so on. Before the first sums it is
        −1, if the layer is at rest. In the first `held` of them nothing fires. `awake`: some neuron may be behind
        before.
        """
        from spikezip.ops.event import compiled  # only where it is used: importing the library must not need numba

        codes, counts = track.rows(first, first + len(at))
        late = compiled.fire_steps(
            sums.numpy(), np.array(at), self.length, self.table, self.limits, held, awake, codes, counts
        )
        if late < 0:
            raise not_a_number()
        return bool(late)


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number up to a limit, at least 1."""
    return max((k for k in range(1, min(number, most) + 1) if number % k == 0), default=1)
