"""Differential operators hold the accumulated input and emit changes that add up to f(total), as far as floats can."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spikezip.ops import differential

STEPS, WIDTH = 40, 33


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, dim=-1)


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,))


def run(f: Callable[[Tensor], Tensor], inputs: Tensor) -> tuple[list[Tensor], differential.DifferentialState]:
    state, emitted = differential.DifferentialState(), []
    for x in inputs:
        delta, state = differential.step(f, x, state)
        emitted.append(delta)
    return emitted, state


def dyadic(dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Multiples of 1/64 below 2^8: the accumulated input is exact, so that only the differences round."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-64, 65, (STEPS, 50, WIDTH), generator=generator).to(dtype) / 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("f", [softmax, layer_norm, F.gelu], ids=["softmax", "layer_norm", "gelu"])
def test_deltas_add_up(f: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    inputs = dyadic(dtype)
    emitted, state = run(f, inputs)
    total = inputs.sum(0)
    assert state.accumulated is not None
    assert torch.equal(state.accumulated, total)
    # Let M bound |f|. A difference is at most 2M and is rounded once, by at most 2M·u, where u is the unit roundoff of
    # `dtype`; each of the float64 additions rounds a sum of about M, at most 2M, by at most 2M·2^-53. T steps of both.
    largest = max(float(f(accumulated).abs().max()) for accumulated in inputs.cumsum(0))
    unit = torch.finfo(dtype).eps / 2
    tolerance = STEPS * 2 * largest * (unit + 2.0**-53)
    gathered = torch.stack(emitted).double().sum(0)
    assert float((gathered - f(total).double()).abs().max()) <= tolerance


def test_deltas_do_not_telescope_exactly() -> None:
    """Why the engines pass f(X_t) itself to the next neuron: the gathered differences are another number."""
    inputs = dyadic(torch.float32)
    emitted, state = run(softmax, inputs)
    gathered = torch.zeros_like(inputs[0])
    for delta in emitted:
        gathered = gathered + delta
    assert not torch.equal(gathered, softmax(inputs.sum(0)))
    assert state.output is not None
    assert torch.equal(state.output, softmax(inputs.sum(0)))  # the state has the right one


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(-(2**12), 2**12), min_size=4, max_size=4), min_size=1, max_size=20))
def test_exact_functions_telescope_exactly(rows: list[list[int]]) -> None:
    inputs = torch.tensor(rows).float() / 64
    emitted, state = run(F.relu, inputs)
    assert torch.equal(torch.stack(emitted).sum(0), F.relu(inputs.sum(0)))
    assert state.output is not None
    assert torch.equal(state.output, F.relu(inputs.sum(0)))


def test_first_step_emits_f_itself() -> None:
    """f(0) need not be 0: the first step emits f(X_1), not f(X_1) − f(0)."""
    x = torch.tensor([[1.0, 2.0, 4.0]])
    delta, state = differential.step(softmax, x)
    assert torch.equal(delta, softmax(x))
    silent, _ = differential.step(softmax, torch.zeros_like(x), state)
    assert not silent.any()
