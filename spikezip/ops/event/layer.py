"""A layer of neurons made ready for compiled steps: its constants, where its sums lie, and room for its events."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spikezip.ops.neuron.fast import not_a_number
from spikezip.ops.rounding.fast import has_inverse, tie_margin

_LONGEST = 2048  # neurons of a run: what is computed of them stays in the first cache
_NO_VALUES = np.empty(0, np.float32)


class Events(NamedTuple):
    """Who fired in a step: places in a layer, as numbers in the order of its tensor, and the spikes there.

    Example:
        >>> Events.none().at.size
        0
    """

    at: Any
    by: Any

    @staticmethod
    def none() -> "Events":
        return Events(np.empty(0, np.int64), np.empty(0, np.int16))


class Fired(NamedTuple):
    """A step of a layer: codes and values after it, spikes, whether neurons are behind their codes, few events."""

    codes: Tensor
    values: Tensor | None
    spikes: int
    behind: bool
    events: Events | None  # None if these are too many


class Walked(NamedTuple):
    """Steps of a layer: codes and values after each, spikes `[steps, samples]`, whether some are behind their codes.

    Values of a step are there if something fired in it.
    """

    codes: Tensor
    values: Tensor | None
    counts: Any
    behind: bool


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
    """Running inputs as `sums · factor + bias`, seen through views: `read` is a view of the sums, in the inputs' shape.

    Factor and bias have one number for each channel of the sums, their last dimension, or one for all. If sums are not
    contiguous, `read` is a contiguous copy, and so they will be read.
    """

    sums: Tensor
    read: Tensor
    factor: Tensor | None = None
    bias: Tensor | None = None

    @staticmethod
    def plain(u: Tensor) -> "Source":
        """Inputs as they are.

        Example:
            >>> Source.plain(torch.zeros(2, 3).t()).read.is_contiguous()
            True
        """
        return Source(u, u.contiguous())


class Layer:
    """Neurons in the order of their tensor. Their scale is one, or one for each element of the last dimension.

    Ask `suits` before.

    Example:
        >>> from spikezip.ops.compiled import numba_is_here
        >>> sums, still = torch.tensor([2, -1, 0], dtype=torch.int32), torch.zeros(3, dtype=torch.int8)
        >>> if numba_is_here():
        ...     layer = Layer(Source.plain(sums), torch.tensor(1.0), lo=-4, hi=3, max_spike=1)
        ...     fired = layer.fire(sums, still, np.zeros(1, np.int64))
        ...     assert (fired.codes.tolist(), fired.spikes, fired.behind) == ([1, -1, 0], 2, True)
    """

    def __init__(self, source: Source, scale: Tensor, lo: int, hi: int, max_spike: int) -> None:
        from spikezip.ops.event import compiled  # only where it is used: importing the library must not need numba

        sums, read, factor, bias = source
        *leading, length = read.shape
        offset = read.storage_offset() - sums.storage_offset() if sums.is_contiguous() else 0
        starts = np.full(1, offset, np.int64)
        for size, stride in zip(leading, read.stride(), strict=False):
            starts = np.add.outer(starts, np.arange(size) * stride).reshape(-1)
        step = scale.reshape(-1).numpy()
        rows = (1.0 if factor is None else factor.numpy(), -0.0 if bias is None else bias.numpy(), 1 / step, step)
        self.channels = max(x.numel() for x in (factor, bias, scale) if x is not None)
        if self.channels == 1 and read.is_contiguous():
            together = _divisor(len(starts) // len(read), _LONGEST // length)  # of one sample
            starts, length = np.ascontiguousarray(starts[::together]), length * together
        self.starts, self.length, self.neurons = starts, length, starts.size * length
        self.table = np.empty((4, max(self.channels, length)), np.float32)
        for number, row in enumerate(rows):
            self.table[number] = row
        limit = np.float32(0.5 - tie_margin(lo, hi))
        self.limits = (np.float32(lo), np.float32(hi), min(max_spike, hi - lo), limit)
        self.step = compiled.fire
        self.room = Events.none()
        self.last: Any = (None, None)  # codes that it made, as a tensor and as an array

    @staticmethod
    def suits(source: Source, scale: Tensor, lo: int, hi: int) -> bool:
        """Whether codes fit into int8, scales have an inverse, and neurons side by side are so in the sums.

        Example:
            >>> sums, one = torch.zeros(2, 3), torch.tensor(1.0)
            >>> Layer.suits(Source(sums, sums), one, -4, 3), Layer.suits(Source(sums, sums.t()), one, -4, 3)
            (True, False)
        """
        _, read, factor, bias = source
        if lo < -128 or hi > 127 or not read.numel() or not has_inverse(scale):
            return False
        length = read.shape[-1]
        if length > 1 and read.stride(-1) != 1:
            return False
        widths = {x.numel() for x in (factor, bias, scale) if x is not None and x.numel() > 1}
        if not widths:
            return True
        channels = max(widths)
        return len(widths) == 1 and channels % length == 0 and (scale.numel() == 1 or channels == length)

    def list_events(self, share: float) -> None:
        """Have events listed from now on, up to a share of the neurons."""
        room = int(share * self.neurons)
        if room > len(self.room.at):
            self.room = Events(np.empty(room, np.int64), np.empty(room, np.int16))

    def fire(self, sums: Tensor, before: Tensor, counts: Any, wants_values: bool = False) -> Fired:
        """One step from the tracer `before`. Spikes are added to `counts`, which has a number for each sample."""
        codes = torch.empty_like(before)
        old = self.last[1] if self.last[0] is before else before.numpy().reshape(-1)
        new = codes.numpy().reshape(-1)
        values = torch.empty_like(before, dtype=torch.float32) if wants_values else None
        spikes, behind, found = self.step(
            sums.numpy().reshape(-1), self.starts, self.length, self.table, self.channels, *self.limits,
            self.neurons // len(counts), old, new,
            _NO_VALUES if values is None else values.numpy().reshape(-1), counts, *self.room,
        )  # fmt: skip
        if found == -2:
            raise not_a_number()
        if spikes:
            self.last = codes, new
        events = None if found < 0 else Events(self.room.at[:found].copy(), self.room.by[:found].copy())
        return Fired(codes, values, spikes, behind != 0, events)

    def follow(self, track: Track, first: int, sums: Tensor, at: list[int], held: int, awake: bool) -> bool:
        """Take as many steps as `at` has, from `first` on; returns whether some neuron is behind its code then.

        Sums of the first of them are number `at[0]` of `sums` `[…, size]`, and so on. Before the first sums it is −1,
        if the layer is at rest. In the first `held` of them nothing fires. `awake`: some neuron may be behind before.
        """
        from spikezip.ops.event import compiled

        codes, counts = track.rows(first, first + len(at))
        late = compiled.fire_steps(
            sums.numpy(), np.array(at), self.starts, self.length, self.table, self.channels, *self.limits, held, awake,
            codes, _NO_VALUES, counts,
        )  # fmt: skip
        if late < 0:
            raise not_a_number()
        return bool(late)

    def fire_steps(
        self,
        sums: Tensor,
        at: list[int],
        before: Tensor,
        samples: int,
        *,
        held: int = 0,
        awake: bool = True,
        wants_values: bool = False,
    ) -> Walked:
        """As many steps as `at` has, from the tracer `before`: sums of step t are number `at[t]` of `sums` `[…, size]`.

        Before the first sums it is −1, if the layer is at rest. In the first `held` steps nothing fires.
        """
        from spikezip.ops.event import compiled

        codes = torch.empty(1 + len(at), before.numel(), dtype=torch.int8)
        codes[0] = before.reshape(-1)
        values = torch.empty(len(at), before.numel()) if wants_values else None
        counts = np.zeros((len(at), samples), np.int64)
        late = compiled.fire_steps(
            sums.numpy(), np.array(at), self.starts, self.length, self.table, self.channels, *self.limits, held, awake,
            codes.view(-1).numpy(), _NO_VALUES if values is None else values.view(-1).numpy(), counts,
        )  # fmt: skip
        if late < 0:
            raise not_a_number()
        shape = (len(at), *before.shape)
        return Walked(codes[1:].view(shape), None if values is None else values.view(shape), counts, late > 0)


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number up to a limit, at least 1."""
    return max((k for k in range(1, min(number, most) + 1) if number % k == 0), default=1)
