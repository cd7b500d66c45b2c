"""A product with integer weights and the neurons that read its sums, through many steps in one compiled loop.

Which token a row belongs to makes no difference: rows go through the steps on their own, so that threads share them,
and a step costs neither a call nor memory for its sums. This is for CPUs without int8 units: there the weights of what
fired are added up faster than a dense product is made, even where most inputs fire.
"""

from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spikezip.ops.compiled import share
from spikezip.ops.event.fast import columns_of
from spikezip.ops.event.layer import Layer, Track, Walked
from spikezip.ops.grid import fast as grid
from spikezip.ops.neuron.fast import not_a_number

_WORD = 8  # inputs that are compared at once

# Products that a step has to make for a walk to be worth it: dense ones take 10 µs then, about as long as the calls of
# a step. Less is over soon in any way, and steps one by one leave a layer alone as soon as it rests.
LEAST = 1 << 20

_NO_VALUES = np.empty(0, np.float32)
_LOCK = Lock()  # for the counts, which threads add up


def walks_pay() -> bool:
    """Whether walks are faster on this CPU than steps with dense products: where these run on float units.

    Example:
        >>> walks_pay() in (True, False)
        True
    """
    return not grid.int8_products_pay()


class Walk:
    """Inputs `[rows, in]`, int8 weights `[out, in]`, and a layer that reads each of the sums `[rows, out]` once.

    Ask `suits` before.

    Example:
        >>> from spikezip.ops.compiled import numba_is_here
        >>> from spikezip.ops.event.layer import Source
        >>> weight, sums = torch.ones(2, 8, dtype=torch.int8), torch.zeros(1, 2, dtype=torch.int32)
        >>> source = Source(sums, sums, torch.ones(2))
        >>> if numba_is_here():
        ...     layer = Layer(source, torch.tensor(1.0), lo=-4, hi=3, max_spike=1)
        ...     assert Walk.suits(layer, weight, rows=1, samples=1)
        ...     inputs = torch.zeros(2, 1, 8, dtype=torch.int8)  # before, and after the first step
        ...     inputs[1, 0, :2] = 1
        ...     found = Walk(layer, weight, samples=1).go(inputs, [True, False], sums, sums.to(torch.int8))
        ...     assert found.codes.tolist() == [[[1, 1]], [[2, 2]]]
    """

    def __init__(self, layer: Layer, weight: Tensor, samples: int) -> None:
        from spikezip.ops.event import compiled  # only where it is used: importing the library must not need numba

        self.weight, self.samples, self.table = weight, samples, layer.table
        self.limits = layer.limits
        self.places, self.sample_of = _places(layer, len(weight), samples)
        self.steps = compiled.walk
        self.columns: Any = None  # the weights as [in, out], once they are needed

    @staticmethod
    def suits(layer: Layer, weight: Tensor, rows: int, samples: int) -> bool:
        """Whether inputs come in words of 8, each sum has a neuron, and each row is of one sample.

        Example:
            >>> from spikezip.ops.compiled import numba_is_here
            >>> from spikezip.ops.event.layer import Source
            >>> plain = Source.plain(torch.zeros(3, 2))
            >>> if numba_is_here():
            ...     layer = Layer(plain, torch.ones(2), -4, 3, max_spike=1)
            ...     assert Walk.suits(layer, torch.ones(2, 8, dtype=torch.int8), rows=3, samples=3)
            ...     assert not Walk.suits(layer, torch.ones(2, 7, dtype=torch.int8), rows=3, samples=3)
        """
        outputs, inputs = weight.shape
        if weight.dtype != torch.int8 or inputs % _WORD or layer.channels != outputs:
            return False
        whole = np.arange(0, rows * outputs, layer.length)
        if outputs % layer.length or not np.array_equal(np.sort(layer.starts), whole):
            return False
        places, sample_of = _places(layer, outputs, samples)
        return bool(np.all(places * samples // layer.neurons == sample_of[:, None]))

    def follow(
        self,
        track: Track,
        first: int,
        inputs: Tensor,
        changed: list[bool],
        sums: Tensor,
        held: int,
        awake: bool,
        threads: int,
    ) -> bool:
        """Take as many steps as `changed` has, from `first` on; returns whether some neuron is behind its code then.

        `inputs` `[1 + changes, rows, in]` are those that the int32 `sums` `[rows, out]` were made of, and what they
        change to; sums are brought up to date. `held` and `awake` as in `Layer.follow`. `threads` share the rows.
        """
        steps = len(changed)
        codes, counts = track.rows(first, first + steps)
        if self.columns is None:
            self.columns = self.weight.t().contiguous().numpy()
        given = (
            inputs.numpy(), np.array(changed), self.columns, sums.numpy(), self.places, self.sample_of, self.table,
            self.limits, held, awake, codes, _NO_VALUES,
        )  # fmt: skip
        late: list[int] = []

        def work(begin: int, end: int) -> None:
            own = counts if threads == 1 else np.zeros_like(counts)
            late.append(self.steps(*given, own, begin, end))
            if own is not counts:
                with _LOCK:
                    np.add(counts, own, out=counts)

        share(work, len(sums), steps * sums.numel(), threads)
        if min(late) < 0:
            raise not_a_number()
        return max(late) > 0

    def go(
        self,
        inputs: Tensor,
        changed: list[bool],
        sums: Tensor,
        before: Tensor,
        *,
        held: int = 0,
        awake: bool = True,
        wants_values: bool = False,
        threads: int | None = None,
    ) -> Walked:
        """As many steps as `changed` has, from the tracer `before` and int32 sums, which are brought up to date.

        `inputs` `[1 + changes, rows, in]` are those that the sums were made of, and what they change to.
        `threads` share the rows, by default as many as torch uses.
        """
        steps, rows = len(changed), inputs.shape[1]
        codes = torch.empty(1 + steps, before.numel(), dtype=torch.int8)
        codes[0] = before.reshape(-1)
        values = torch.empty(steps, before.numel()) if wants_values else None
        given = (
            inputs.numpy(), np.array(changed), columns_of(self.weight), sums.view(rows, -1).numpy(), self.places,
            self.sample_of, self.table, self.limits, held, awake, codes.view(-1).numpy(),
            _NO_VALUES if values is None else values.view(-1).numpy(),
        )  # fmt: skip
        counts: list[Any] = []
        late: list[int] = []

        def work(first: int, last: int) -> None:
            own = np.zeros((steps, self.samples), np.int64)
            counts.append(own)
            late.append(self.steps(*given, own, first, last))

        share(work, rows, steps * before.numel(), threads)
        if min(late) < 0:
            raise not_a_number()
        shape = (steps, *before.shape)
        return Walked(codes[1:].view(shape), None if values is None else values.view(shape), sum(counts), max(late) > 0)


def _places(layer: Layer, outputs: int, samples: int) -> tuple[Any, Any]:
    """Where each row of the sums has its neurons, `[rows, pieces]`, and the sample of a row."""
    order = np.argsort(layer.starts, kind="stable")
    places = np.ascontiguousarray(order.reshape(-1, outputs // layer.length) * layer.length)
    return places, places[:, 0] * samples // layer.neurons
