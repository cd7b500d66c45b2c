"""One rounding rule: the fast path equals the reference, and the reference equals exact arithmetic."""

from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from spikezip.ops import rounding
from spikezip.ops.rounding import fast, reference

RANGES = [(-2, 1), (-16, 15), (-128, 127), (0, 1), (0, 31), (0, 255)]

signed = st.integers(2, 128).map(lambda half: (-half, half - 1))
unsigned = st.integers(2, 256).map(lambda levels: (0, levels - 1))
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
# Subnormal scales too: quotients then overflow float32, which the clamp must absorb.
scales = st.floats(min_value=2.0**-149, max_value=2.0**100, width=32)


def random_scales(count: int, seed: int) -> Tensor:
    """Scales with random mantissas over ten orders of magnitude: a short mantissa would make every tie exact."""
    generator = torch.Generator().manual_seed(seed)
    return (10 ** (torch.rand(count, generator=generator) * 10 - 6)).float()


def near_ties(scale: Tensor, lo: int, hi: int) -> Tensor:
    """The float32 numbers closest to the boundaries s·(k + 1/2), and two neighbours on either side of each."""
    boundary = ((torch.arange(lo - 2, hi + 2) + 0.5).double() * scale.double()).float()
    up, down = torch.full_like(boundary, torch.inf), torch.full_like(boundary, -torch.inf)
    above, below = torch.nextafter(boundary, up), torch.nextafter(boundary, down)
    return torch.cat([boundary, above, below, torch.nextafter(above, up), torch.nextafter(below, down)])


def exact(u: Tensor, scale: Tensor, lo: int, hi: int) -> Tensor:
    s = Fraction(scale.item())
    return torch.tensor([float(min(max((Fraction(v) / s + Fraction(1, 2)).__floor__(), lo), hi)) for v in u.tolist()])


@pytest.mark.parametrize(("lo", "hi"), RANGES)
def test_reference_is_exact_at_near_ties(lo: int, hi: int) -> None:
    wrong_in_float32 = 0
    for scale in random_scales(10, seed=1):
        u = near_ties(scale, lo, hi)
        right = exact(u, scale, lo, hi)
        assert torch.equal(reference.code(u, scale, lo, hi), right)
        wrong_in_float32 += int(((u / scale + 0.5).floor().clamp(lo, hi) != right).sum())
    assert wrong_in_float32 > 0  # the inputs are hard: deciding in float32 fails on them


@pytest.mark.parametrize(("lo", "hi"), RANGES)
def test_fast_equals_reference_at_near_ties(lo: int, hi: int) -> None:
    for scale in random_scales(200, seed=2):
        u = near_ties(scale, lo, hi)
        assert torch.equal(fast.code(u, scale, lo, hi), reference.code(u, scale, lo, hi))


@settings(max_examples=300, deadline=None)
@given(st.lists(finite, min_size=1, max_size=40), scales, signed | unsigned)
@example([0.0, 1.0], 2.0**-149, (-2, 1))  # 1/s is infinite, and 0 times that is no number
def test_fast_equals_reference_and_exact_arithmetic(values: list[float], s: float, limits: tuple[int, int]) -> None:
    u, scale = torch.tensor(values), torch.tensor(s)
    codes = fast.code(u, scale, *limits)
    assert torch.equal(codes, reference.code(u, scale, *limits))
    assert torch.equal(codes, exact(u, scale, *limits))


@pytest.mark.parametrize(("lo", "hi"), RANGES)
def test_huge_values_saturate(lo: int, hi: int) -> None:
    largest = torch.finfo(torch.float32).max
    u = torch.tensor([largest, -largest, 1e30, -1e30])
    expected = torch.tensor([hi, lo, hi, lo]).float()
    for scale in random_scales(20, seed=3):
        assert torch.equal(fast.code(u, scale, lo, hi), expected)
        assert torch.equal(reference.code(u, scale, lo, hi), expected)


def test_layout_does_not_matter() -> None:
    scale = torch.tensor(0.0371)
    plain = torch.cat([near_ties(scale, -16, 15)] * 3).view(3, -1)[:, :160].reshape(3, 20, 8).contiguous()
    expected = reference.code(plain, scale, -16, 15)
    transposed = plain.transpose(0, 2)
    assert torch.equal(fast.code(transposed, scale, -16, 15), expected.transpose(0, 2))
    assert torch.equal(fast.code(plain[:, ::3, 1:6], scale, -16, 15), expected[:, ::3, 1:6])
    assert torch.equal(fast.code(plain[:1, :1].expand(4, 20, 8), scale, -16, 15), expected[:1, :1].expand(4, 20, 8))
    assert torch.equal(fast.code(plain[0, 0, 0], scale, -16, 15), expected[0, 0, 0])


def test_input_is_left_alone() -> None:
    u = torch.linspace(-3, 3, 101)
    before = u.clone()
    fast.code(u, torch.tensor(0.25), -4, 3)
    reference.code(u.double(), torch.tensor(0.25), -4, 3)
    assert torch.equal(u, before)


def test_many_values_at_once() -> None:
    """More than fit into one block of the fast path, near-ties in each."""
    scale = torch.tensor(0.0371)
    u = near_ties(scale, -16, 15).repeat(1000)
    assert torch.equal(fast.code(u, scale, -16, 15), reference.code(u, scale, -16, 15))


def test_values_that_carry_gradients() -> None:
    """A quantized network in eval() without torch.no_grad() passes such values."""
    u = torch.linspace(-3, 3, 101, requires_grad=True)
    codes = rounding.code(u, torch.tensor(0.25), -4, 3)
    assert torch.equal(codes, reference.code(u.detach(), torch.tensor(0.25), -4, 3))


@pytest.mark.parametrize(("lo", "hi"), RANGES)
def test_float64_input_keeps_its_precision(lo: int, hi: int) -> None:
    for scale in random_scales(5, seed=4):
        # Exact ties in float64, and a neighbour that float32 could not tell from the tie.
        ties = (torch.arange(lo, hi) + 0.5).double() * scale.double()
        below = ties - ties.abs() * 2.0**-40
        for u in (ties, below):
            codes = rounding.code(u, scale, lo, hi)
            assert codes.dtype == torch.float64
            assert torch.equal(codes, exact(u, scale, lo, hi).double())
        assert not torch.equal(rounding.code(ties, scale, lo, hi), rounding.code(below, scale, lo, hi))


@pytest.mark.parametrize(("lo", "hi"), RANGES)
def test_scale_per_row(lo: int, hi: int) -> None:
    scale = random_scales(6, seed=5)[:, None]
    u = torch.stack([near_ties(s, lo, hi) for s in scale])
    rows = torch.stack([exact(row, s, lo, hi) for row, s in zip(u, scale, strict=True)])
    assert torch.equal(rounding.code(u, scale, lo, hi), rows)
