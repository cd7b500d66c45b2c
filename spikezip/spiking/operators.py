"""Spike-Softmax and Spike-LayerNorm as the paper draws them: deltas in, deltas out, the accumulated input held inside.

For networks that are wired by hand, and to compare with. The engines hold running sums already and apply the function
to those, since deltas of floats do not add up exactly (`ops/differential/README.md`).
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from spikezip.ops import differential


class SpikeOperator(nn.Module):
    """A function of the accumulated input that emits its change in every step; `reset` before a new input.

    Example:
        >>> import torch
        >>> square = SpikeOperator(torch.square)
        >>> [float(square(torch.tensor(x))) for x in (1.0, 2.0)], float(square.state.accumulated)
        ([1.0, 8.0], 3.0)
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.reset()

    def reset(self) -> None:
        self.state = differential.DifferentialState()

    def forward(self, x: Tensor) -> Tensor:
        emitted, self.state = differential.step(self.function, x, self.state)
        return emitted


class SpikeSoftmax(SpikeOperator):
    """Spike-Softmax; holds n² values for n tokens.

    Example:
        >>> import torch
        >>> softmax = SpikeSoftmax()
        >>> softmax(torch.zeros(2)) + softmax(torch.tensor([1.0, 1.0]))
        tensor([0.5000, 0.5000])
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__(lambda x: F.softmax(x, dim=dim))


class SpikeLayerNorm(SpikeOperator):
    """Spike-LayerNorm of a given LayerNorm, whose epsilon it keeps; holds n·d values.

    Example:
        >>> import torch
        >>> norm = SpikeLayerNorm(nn.LayerNorm(2, eps=0.0))
        >>> norm(torch.tensor([1.0, 3.0]))
        tensor([-1.,  1.], grad_fn=<NativeLayerNormBackward0>)
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__(norm)
