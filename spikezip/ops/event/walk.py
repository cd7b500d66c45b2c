"""A product with integer weights and the neurons that read its sums, through many steps in one compiled loop.

Which token a row belongs to makes no difference: rows go through the steps on their own,
and a step costs neither a call nor memory for its sums. Only inputs that changed cost work. On CPUs without int8 units
their weights are added up faster than a dense product is made, even where most inputs fire.
"""

import numpy as np
import torch
from torch import Tensor

from spikezip.ops.event.layer import Layer, Track
from spikezip.ops.grid import fast as grid
from spikezip.ops.neuron.fast import not_a_number

_WORD = 8  # inputs that are compared at once


def walks_pay() -> bool:
    """Whether walks are faster on this CPU than steps with dense products: where these run on float units.

    Example:
        >>> walks_pay() in (True, False)
        True
    """
    return not grid.int8_products_pay()


class Walk:
    """Inputs `[rows, in]`, int8 weights `[out, in]`, and the layer that reads the sums `[rows, out]`.

    Ask `suits` before.

    Example:
        >>> from spikezip.ops.compiled import numba_is_here
        >>> from spikezip.ops.event.layer import Source
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
            >>> from spikezip.ops.event.layer import Source
            >>> layer = Layer(Source((3, 1, 2)), torch.ones(2), -4, 3, max_spike=1)
            >>> [Walk.suits(layer, torch.ones(2, inputs, dtype=torch.int8)) for inputs in (8, 7)]
            [True, False]
        """
        outputs, inputs = weight.shape
        return weight.dtype == torch.int8 and inputs % _WORD == 0 and layer.channels == outputs

    def follow(
        self,
        track: Track,
        first: int,
        inputs: Tensor,
        changed: list[bool],
        sums: Tensor,
        held: int,
        awake: bool,
    ) -> bool:
        """Take as many steps as `changed` has, from `first` on; returns whether some neuron is behind its code then.

        `inputs` `[1 + changes, rows, in]` are those that the int32 `sums` `[rows, out]` were made of, and what they
        change to; sums are brought up to date. `held` and `awake` as in `Layer.follow`.
        """
        from spikezip.ops.event import compiled  # only where it is used: importing the library must not need numba

        steps = len(changed)
        codes, counts = track.rows(first, first + steps)
        late = compiled.walk(
            inputs.numpy(), np.array(changed), self.columns, sums.numpy(), self.table, self.limits, held, awake, codes,
            counts,
        )  # fmt: skip
        if late < 0:
            raise not_a_number()
        return bool(late)
