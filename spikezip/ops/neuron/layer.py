"""A layer of neurons made ready for compiled steps, alone or with the product that it reads; room for what it does.

Which token a row belongs to makes no difference: behind a product, rows go through the steps on their own, and a step
costs neither a call nor memory for its sums. Only inputs that changed cost work. On CPUs without int8 units their
weights are added up faster than a dense product is made, even where most inputs fire.
"""

from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spikezip.errors import SpikezipError
from spikezip.ops.rounding.fast import has_inverse, tie_margin

_FURTHEST = 255  # from one int8 code to another
_LONGEST, _SHORTEST = 2048, 64  # neurons of a run: what is computed of them stays in the first cache, in vector code
_WORD = 8  # inputs that are compared at once


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
            length = _run_length(rows, length)
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
        from spikezip.ops.neuron import compiled  # only where it is used: importing the library must not need numba

        codes, counts = track.rows(first, first + len(at))
        late = compiled.fire_steps(
            sums.numpy(), np.array(at), self.length, self.table, self.limits, held, awake, codes, counts
        )
        return _is_late(late)


class Walk:
    """Inputs `[rows, in]`, int8 weights `[out, in]`, and the layer that reads the sums `[rows, out]`.

    Ask `suits` before.

    Example:
        >>> from spikezip.ops.compiled import numba_is_here
        >>> weight, sums = torch.ones(2, 8, dtype=torch.int8), torch.zeros(1, 2, dtype=torch.int32)
        >>> inputs = torch.zeros(2, 1, 8, dtype=torch.int8)  # before, and after the first step
        >>> inputs[1, 0, :2] = 1
        >>> track = Track(2, sums, samples=1)
        >>> if numba_is_here():
        ...     layer = Layer(Source((1, 1, 2), torch.ones(2)), torch.tensor(1.0), lo=-4, hi=3, max_spike=1)
        ...     assert Walk.suits(layer, weight)
        ...     late = Walk(layer, weight).follow(track, 0, inputs, [True, False], sums, held=0, awake=True)
        ...     assert (late, track.codes[1:].tolist(), sums.tolist()) == (False, [[1, 1], [2, 2]], [[2, 2]])
    """

    def __init__(self, layer: Layer, weight: Tensor) -> None:
        self.table, self.limits = layer.table, layer.limits
        self.columns = weight.t().contiguous().numpy()

    @staticmethod
    def suits(layer: Layer, weight: Tensor) -> bool:
        """Whether weights are int8, inputs come in words of 8, and the layer has constants for each of the outputs.

        Example:
            >>> layer = Layer(Source((3, 1, 2)), torch.ones(2), -4, 3, max_spike=1)
            >>> [Walk.suits(layer, torch.ones(2, inputs, dtype=torch.int8)) for inputs in (8, 7)]
            [True, False]
        """
        outputs, inputs = weight.shape
        return weight.dtype == torch.int8 and inputs % _WORD == 0 and layer.channels == outputs

    def follow(
        self, track: Track, first: int, inputs: Tensor, changed: list[bool], sums: Tensor, held: int, awake: bool
    ) -> bool:
        """Take as many steps as `changed` has, from `first` on; returns whether some neuron is behind its code then.

        `inputs` `[1 + changes, rows, in]` are those that the int32 `sums` `[rows, out]` were made of, and what they
        change to; sums are brought up to date. `held` and `awake` as in `Layer.follow`.
        """
        from spikezip.ops.neuron import compiled

        codes, counts = track.rows(first, first + len(changed))
        late = compiled.walk(
            inputs.numpy(), np.array(changed), self.columns, sums.numpy(), self.table, self.limits, held, awake, codes,
            counts,
        )  # fmt: skip
        return _is_late(late)


def _is_late(late: int) -> bool:
    if late < 0:
        raise not_a_number()
    return bool(late)


def not_a_number() -> SpikezipError:
    return SpikezipError(
        "what reaches a neuron is not a number; check the input (is it normalised?), the weights and the scales"
    )


@cache
def _run_length(rows: int, length: int) -> int:
    """How many neurons of a sample, in whole rows, make up a run: all of them, where that would be very few."""
    most = _LONGEST // length
    found = length * max((k for k in range(1, min(rows, most) + 1) if rows % k == 0), default=1)
    return found if found >= _SHORTEST else rows * length
