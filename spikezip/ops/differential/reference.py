"""The differential operator of the paper: hold the accumulated input, emit the change of the output."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class DifferentialState(NamedTuple):
    """The accumulated input `X_t` and the last output `f(X_t)`; None before the first step."""

    accumulated: Tensor | None = None
    output: Tensor | None = None


START = DifferentialState()


def step(
    f: Callable[[Tensor], Tensor], x: Tensor, state: DifferentialState = START
) -> tuple[Tensor, DifferentialState]:
    """One step: accumulate `x`, return `f(X_t) − f(X_{t−1})` and the next state.

    Example:
        >>> import torch
        >>> delta, state = step(torch.sigmoid, torch.tensor([1.0]))
        >>> more, state = step(torch.sigmoid, torch.tensor([-1.0]), state)
        >>> float(delta + more)
        0.5
    """
    accumulated = x if state.accumulated is None else state.accumulated + x
    output = f(accumulated)
    emitted = output if state.output is None else output - state.output
    return emitted, DifferentialState(accumulated, output)
