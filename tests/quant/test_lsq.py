"""The quantizer that trains: one rounding rule forward, LSQ's gradients backward."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from spikezip.ops import grid
from spikezip.ops.rounding import reference
from spikezip.quant.lsq import initial_scale, lsq, on_grid

RANGES = [(-4, 3), (-16, 15), (0, 7), (0, 255)]


def sample(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize(("lo", "hi"), RANGES)
def test_forward_is_scale_times_code(lo: int, hi: int) -> None:
    scale = torch.tensor(0.137, requires_grad=True)
    ties = (torch.arange(lo - 1, hi + 2) + 0.5).mul(0.137).float()
    u = torch.cat([sample(500), ties])
    codes = reference.code(u, scale.detach(), lo, hi)
    assert torch.equal(lsq(u, scale, lo, hi), codes * scale.detach())


@pytest.mark.parametrize(("lo", "hi"), RANGES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), s=st.floats(1 / 16, 2, width=32), shape=st.sampled_from([(1,), (40,), (3, 5, 7)]))
def test_gradients_are_those_of_lsq(lo: int, hi: int, seed: int, s: float, shape: tuple[int, ...]) -> None:
    u, scale = sample(*shape, seed=seed).requires_grad_(), torch.tensor(s, requires_grad=True)
    grad = sample(*shape, seed=seed + 1)
    # At an end of the range itself both slopes are right: which one is taken is left to rounding.
    ends = torch.tensor([lo, hi]).double()
    assume(((u.detach().double().view(-1, 1) / s - ends).abs() > 1e-4).all())
    lsq(u, scale, lo, hi).backward(grad)
    assert u.grad is not None
    assert scale.grad is not None

    # Written out by hand, element by element: ∂v/∂s = code − u/s inside, lo or hi outside; times 1/sqrt(hi·N).
    expected_u, expected_s, magnitude = [], 0.0, 0.0
    for value, g in zip(u.detach().flatten().tolist(), grad.flatten().tolist(), strict=True):
        quotient = value / s
        inside = lo <= quotient <= hi
        expected_u.append(g if inside else 0.0)
        slope = math.floor(quotient + 0.5) - quotient if inside else (lo if quotient < lo else hi)
        expected_s += g * slope
        magnitude += abs(g) * (abs(slope) + abs(quotient))
    share = 1 / math.sqrt(hi * u.numel())
    assert u.grad.flatten().tolist() == expected_u
    # Float32 rounds each term, and their sum at most once per term: N·2^-23 of the sum of magnitudes covers both.
    assert abs(float(scale.grad) - expected_s * share) <= (u.numel() + 4) * 2.0**-23 * magnitude * share
    assert scale.grad.shape == scale.shape


def test_scale_gradient_moves_towards_the_data() -> None:
    """All values above the range: the error falls when the scale grows, so its gradient is negative."""
    u, scale = torch.full((10,), 50.0), torch.tensor(0.5, requires_grad=True)
    (lsq(u, scale, -4, 3) - u).square().sum().backward()
    assert scale.grad is not None
    assert float(scale.grad) < 0


def test_initial_scale() -> None:
    u = sample(400)
    assert float(initial_scale(u, hi=16)) == pytest.approx(2 * sum(abs(v) for v in u.tolist()) / 400 / 4, rel=1e-5)
    assert float(initial_scale(torch.zeros(5), hi=8)) == 1 / 8  # no signal, and still a usable threshold
    assert not initial_scale(u.requires_grad_(), hi=16).requires_grad


@pytest.mark.parametrize("shape", [(6, 10), (4, 3, 2, 2)])
@pytest.mark.parametrize("bits", [8, 16])
def test_training_sees_the_weights_of_conversion(bits: int, shape: tuple[int, ...]) -> None:
    weight = sample(*shape).requires_grad_()
    codes, scale = grid.weight_grid(weight, bits)
    seen = on_grid(weight, bits)
    assert torch.equal(seen, codes * scale.view(-1, *[1] * (len(shape) - 1)))
    assert not torch.equal(seen, weight)
    grad = sample(*shape, seed=1)
    seen.backward(grad)
    assert weight.grad is not None
    assert torch.equal(weight.grad, grad)


def test_float_weights_pass_untouched() -> None:
    weight = sample(3, 4)
    assert on_grid(weight, None) is weight
