"""LSQ: the reference against formulas by hand; the CPU path and the GPU kernels against the reference, bit for bit."""

import math
import os

import interpreted
import pytest
import torch
from torch import Tensor

from spikezip.errors import ConfigError, InputError
from spikezip.ops import lsq
from spikezip.ops.lsq import fast, reference
from spikezip.quant.lsq import lsq as trained

RANGES = [(-16, 15), (0, 1), (-128, 127), (0, 255), (-2, 1)]
# Whether Triton interprets is decided when it is first imported: without a GPU, a process of its own runs these tests.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
kernel = pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="runs in a process with Triton's interpreter")


def same(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Equal in dtype, shape, device and every value; a NaN equals a NaN."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True)


def hard_values(shape: tuple[int, ...], scale: Tensor, lo: int, hi: int) -> Tensor:
    """Values of all sizes; a third of them are float32 neighbours of half-way points or of the ends of the range."""
    u = torch.randn(shape) * scale * max(hi, 1)
    k = torch.randint(lo - 2, hi + 3, shape) + torch.where(torch.rand(shape) < 0.7, 0.5, 0.0)
    tie = (scale.double() * k).float()
    for towards in (math.inf, -math.inf):
        tie = torch.where(torch.rand(shape) < 0.3, torch.nextafter(tie, torch.tensor(towards)), tie)
    u = torch.where(torch.rand(shape) < 0.35, tie, u)
    u = torch.where(torch.rand(shape) < 0.05, u * 1e6, u)  # saturated
    return torch.where(torch.rand(shape) < 0.05, torch.tensor(-0.0), u)


def make_scale(channels: int | None) -> Tensor:
    return torch.rand(()) * 0.3 + 0.01 if channels is None else torch.rand(channels) * 0.3 + 0.01


# The reference


@pytest.mark.parametrize(("lo", "hi"), RANGES)
@pytest.mark.parametrize("channels", [None, 7])
def test_gradients_by_hand(lo: int, hi: int, channels: int | None) -> None:
    scale, grad = make_scale(channels), torch.randn(5, 3, 7)
    u = torch.randn(5, 3, 7) * scale * hi
    grad_u, grad_scale = reference.backward(grad, u, scale, lo, hi)

    total = [0.0] * (channels or 1)
    magnitude = [0.0] * (channels or 1)
    for i, (value, g, passed) in enumerate(zip(*(t.flatten().tolist() for t in (u, grad, grad_u)), strict=True)):
        c = i % 7 if channels else 0
        q = value / float(scale.flatten()[c])
        inside = lo <= q <= hi
        assert min(abs(q - lo), abs(q - hi)) > 1e-5, "at an end of the range either slope is right: take another seed"
        assert passed == (g if inside else 0.0)
        total[c] += g * (math.floor(q + 0.5) - q if inside else (lo if q < lo else hi))
        magnitude[c] += abs(g) * (abs(q) + 1)
    per_scale = u.numel() // (channels or 1)
    for c, got in enumerate(grad_scale.flatten().tolist()):
        share = 1 / math.sqrt(hi * per_scale)
        # Float32 rounds the quotient, the slope, the share and the result, each by at most 2^-24 of its size.
        assert abs(got - total[c] * share) <= 4 * 2.0**-24 * magnitude[c] * share
    assert grad_scale.shape == scale.shape


def test_gradients_without_rounding() -> None:
    """Powers of two and small integers: nothing rounds, so the sum by hand is the sum."""
    scale, (lo, hi) = torch.tensor(0.25), (-4, 4)
    u, grad = torch.randint(-40, 41, (64, 64)) / 32, torch.randint(-8, 9, (64, 64)).float()
    q = u * 4
    inside = (q >= lo) & (q <= hi)
    slope = torch.where(inside, torch.floor(q + 0.5).clamp(lo, hi) - q, q.clamp(lo, hi))
    expected = (grad * slope).double().sum().float() / 128  # sqrt(4 · 4096)
    same(reference.backward(grad, u, scale, lo, hi), (grad * inside, expected))
    same(fast.backward(grad, u, scale, lo, hi), (grad * inside, expected))


def test_gradients_are_those_of_autograd() -> None:
    """Straight-through written with `detach`, in float64."""
    lo, hi = -8, 7
    u = (torch.randn(40, 9, dtype=torch.float64) * 3).requires_grad_()
    scale = torch.tensor(0.37, requires_grad=True).double().detach().requires_grad_()
    grad = torch.randn(40, 9, dtype=torch.float64)
    limited = (u / scale).clamp(lo, hi)
    rounded = limited + (torch.floor(limited + 0.5).clamp(lo, hi) - limited).detach()
    (rounded * scale).backward(grad)
    assert u.grad is not None
    assert scale.grad is not None
    grad_u, grad_scale = lsq.backward(grad, u.detach(), scale.detach(), lo, hi)
    # Autograd multiplies and divides by the scale: float64, but rounded elsewhere; and the share is a float32 number.
    torch.testing.assert_close(grad_u, u.grad, rtol=1e-12, atol=0)
    torch.testing.assert_close(grad_scale, scale.grad / math.sqrt(hi * 360), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("lo", "hi"), RANGES)
def test_training_uses_it(lo: int, hi: int) -> None:
    scale = make_scale(None).requires_grad_()
    u, grad = hard_values((3, 500), scale.detach(), lo, hi).requires_grad_(), torch.randn(3, 500)
    values = trained(u, scale, lo, hi)
    values.backward(grad)
    assert u.grad is not None
    assert scale.grad is not None
    same((values.detach(),), reference.quantize(u, scale, lo, hi)[:1])
    same((u.grad, scale.grad), reference.backward(grad, u.detach(), scale.detach(), lo, hi))


def test_the_order_of_the_sum() -> None:
    """As README.md tells it, with Python's floats; another order gives other bits here."""

    def chunk(terms: list[float]) -> float:
        tile = [0.0, 0.0, 0.0, 0.0]
        for i, term in enumerate(terms):
            tile[i % 4] += term
        return (tile[0] + tile[1]) + (tile[2] + tile[3])

    terms = torch.randn(83, dtype=torch.float64) * 10.0 ** torch.randint(-6, 7, (83,))
    chunks = [chunk(terms[i : i + 8].tolist()) for i in range(0, 83, 8)]
    assert float(reference.ordered_sum(terms, tile=4, tiles=2)) == chunk(chunks)
    others = {float(reference.ordered_sum(terms[torch.randperm(83)], tile=4, tiles=2)) for _ in range(20)}
    assert len(others) > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_codes_in_a_narrow_dtype_are_the_codes(dtype: torch.dtype) -> None:
    u, scale = torch.randn(300) * 40, torch.tensor(0.3)
    codes = lsq.forward(u, scale, -128, 127, dtype)
    assert codes.dtype == dtype
    assert torch.equal(codes.float(), lsq.forward(u, scale, -128, 127))


def test_what_does_not_fit_is_refused() -> None:
    u = torch.zeros(2, 3)
    for dtype, lo, hi in [
        (torch.int8, 0, 128),
        (torch.int8, -129, 0),
        (torch.bfloat16, 0, 257),
        (torch.float16, 0, 4095),
    ]:
        with pytest.raises(ConfigError, match=r"do not fit into torch"):
            lsq.quantize(u, torch.tensor(1.0), lo, hi, dtype)
    with pytest.raises(ConfigError, match=r"codes cannot be torch\.int64"):
        lsq.forward(u, torch.tensor(1.0), 0, 1, torch.int64)
    for shape in [(2,), (1, 3), (2, 3)]:
        with pytest.raises(InputError, match=r"give one element or \[3\]"):
            lsq.forward(u, torch.ones(shape), 0, 1)
    with pytest.raises(InputError, match="give one element"):
        lsq.backward(torch.tensor(1.0), torch.tensor(1.0), torch.ones(3), 0, 1)
    for scale in (torch.ones(()), torch.ones(3)):
        with pytest.raises(InputError, match=r"a gradient of shape \[3\]"):
            lsq.backward(torch.ones(3), u, scale, 0, 1)


# The CPU path


@pytest.mark.parametrize(("lo", "hi"), RANGES)
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (3, 5, 7), (fast.PIECE,), (2 * fast.PIECE + 17,)])
def test_cpu_equals_reference(shape: tuple[int, ...], lo: int, hi: int) -> None:
    scale = make_scale(None)
    u, grad = hard_values(shape, scale, lo, hi), torch.randn(shape)
    same(fast.quantize(u, scale, lo, hi), reference.quantize(u, scale, lo, hi))
    same(fast.backward(grad, u, scale, lo, hi), reference.backward(grad, u, scale, lo, hi))


def test_cpu_keeps_what_is_not_finite() -> None:
    u = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    for scale in (torch.tensor(0.5), torch.tensor([2.0**-140])):
        same(fast.quantize(u, scale, -2, 1), reference.quantize(u, scale, -2, 1))
        same(fast.backward(u, u, scale, -2, 1), reference.backward(u, u, scale, -2, 1))
    same(fast.backward(torch.ones(3), u[1:], scale, -2, 1), reference.backward(torch.ones(3), u[1:], scale, -2, 1))


# The kernels


def test_kernels_without_a_gpu() -> None:
    pytest.importorskip("triton")
    if DEVICE == "cuda" or INTERPRETED:
        pytest.skip("the kernel tests run in this process")
    interpreted.check_tests(__file__, "kernel")


SHAPES = [(), (1,), (3, 37), (1024,), (4, 1025), (2, 3, 2100)]
CHANNEL_SHAPES = [(1, 2), (7, 128), (65, 129), (3, 50, 40)]


@kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [*SHAPES, *CHANNEL_SHAPES])
def test_kernel_equals_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from spikezip.ops.lsq import triton

    # A GPU tries all ranges; the interpreter is slow, and tries each with some of the shapes.
    number = len(shape) + sum(shape) + [torch.float32, torch.bfloat16, torch.float16].index(dtype)
    for lo, hi in RANGES if DEVICE == "cuda" else [RANGES[number % 5]]:
        scale = make_scale(shape[-1] if shape in CHANNEL_SHAPES else None)
        u = hard_values(shape, scale, lo, hi).to(dtype).to(DEVICE)
        # Triton's interpreter cuts float32 to bfloat16 where a GPU rounds: there only gradients that need neither.
        grad = torch.randn(shape).to(dtype if INTERPRETED else torch.float32).float().to(DEVICE)
        scale = scale.to(DEVICE)
        for codes_dtype in (torch.float32, torch.float16, torch.bfloat16, *([torch.int8] if hi <= 127 else [])):
            same(triton.quantize(u, scale, lo, hi, codes_dtype), reference.quantize(u, scale, lo, hi, codes_dtype))
        same(
            triton.quantize(u, scale, lo, hi, with_values=False),
            reference.quantize(u, scale, lo, hi, with_values=False),
        )
        same(triton.backward(grad, u, scale, lo, hi), reference.backward(grad, u, scale, lo, hi))
        low = grad.to(dtype)
        same(triton.backward(low, u, scale, lo, hi), reference.backward(low, u, scale, lo, hi))


@kernel
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, which interprets, remarks on NaN and infinity
def test_kernel_keeps_what_is_not_finite() -> None:
    from spikezip.ops.lsq import triton

    u = torch.tensor([[math.nan, math.inf], [-math.inf, 1.0], [2.0**-149, -(2.0**-126)]], device=DEVICE)
    grad = torch.tensor([[1.0, math.inf], [2.0, math.nan], [-0.0, 3.0]], device=DEVICE)
    for scale in (torch.tensor(0.5), torch.tensor([0.5]), torch.tensor([2.0**-140, 0.25])):
        step = scale.to(DEVICE)
        for rows in (slice(0, 3), slice(1, 3), slice(2, 3)):
            same(triton.quantize(u[rows], step, -2, 1), reference.quantize(u[rows], step, -2, 1))
            actual, expected = (f.backward(grad[rows], u[rows], step, -2, 1) for f in (triton, reference))
            same(actual, expected)


@kernel
def test_kernel_takes_strided_and_empty_tensors() -> None:
    from spikezip.ops.lsq import triton

    base, grads = torch.randn(6, 5, 34, device=DEVICE), torch.randn(5, 6, 17, device=DEVICE)
    u = base.transpose(0, 1)[..., ::2]
    same_order = torch.randn(1, 1, 17, device=DEVICE).expand(5, 6, 17)
    for scale in (torch.tensor([0.2], device=DEVICE), torch.rand(34, device=DEVICE)[::2] + 0.1):
        for grad in (grads, same_order):
            same(triton.quantize(u, scale, -8, 7), reference.quantize(u, scale, -8, 7))
            same(triton.backward(grad, u, scale, -8, 7), reference.backward(grad, u, scale, -8, 7))
        for shape in [(0, 17), (3, 0, 17)]:
            empty = torch.zeros(shape, device=DEVICE)
            same(triton.quantize(empty, scale, -8, 7), reference.quantize(empty, scale, -8, 7))
            same(triton.backward(empty, empty, scale, -8, 7), reference.backward(empty, empty, scale, -8, 7))


@kernel
def test_kernel_refuses_what_does_not_fit() -> None:
    from spikezip.ops.lsq import triton

    with pytest.raises(ConfigError, match="do not fit"):
        triton.quantize(torch.zeros(2), torch.tensor(1.0), 0, 128, torch.int8)
    with pytest.raises(InputError, match="does not fit values"):
        triton.backward(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2), 0, 1)
    with pytest.raises(InputError, match="a gradient of shape"):
        triton.backward(torch.zeros(3), torch.zeros(2, 3), torch.ones(3), 0, 1)


@kernel
@pytest.mark.skipif(DEVICE == "cpu", reason="too large to interpret")
@pytest.mark.parametrize("channels", [None, 384])
def test_kernel_at_the_size_of_a_network(channels: int | None) -> None:
    scale = make_scale(channels)
    u = hard_values((64, 197, 384), scale, -16, 15).to(DEVICE)
    grad, step = torch.randn(64, 197, 384, device=DEVICE), scale.to(DEVICE)
    same(lsq.quantize(u, step, -16, 15, torch.bfloat16), reference.quantize(u, step, -16, 15, torch.bfloat16))
    first, again = (lsq.backward(grad, u, step, -16, 15) for _ in range(2))
    same(first, again)
    same(first, reference.backward(grad, u, step, -16, 15))
