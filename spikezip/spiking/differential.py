"""Elementwise functions as differential operators: GELU, SiLU, tanh."""

import torch
from torch import Tensor, nn

# Functions whose float32 result was found not to depend on where an element lies in its tensor; tests check it again.
# Others differ on the CPU between the vector loop and its remainder (SiLU, the tanh form of GELU) or between libraries
# that serve one layout and not another (GELU): those are evaluated in float64 and rounded.
PLACE_INDEPENDENT = frozenset({"ReLU", "Tanh", "Identity"})


class Differential(nn.Module):
    """A function `f` of the running sum, evaluated so that equal inputs give equal outputs wherever they lie.

    Example:
        >>> Differential(nn.SiLU()).eval()(torch.tensor([0.0, 1.0]))
        tensor([0.0000, 0.7311])
    """

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.function_name = type(function).__name__

    def forward(self, x: Tensor) -> Tensor:
        if self.training or self.function_name in PLACE_INDEPENDENT:
            return self.function(x)
        return self.function(x.to(torch.float64)).to(x.dtype)
