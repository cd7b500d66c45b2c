"""The integer grid: weights, bounds, accumulators, and products that no order of summation can change."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spikezip.errors import ConfigError
from spikezip.ops import grid
from spikezip.ops.grid import fast, reference

TOP = {8: 127, 16: 32639}


def integers(low: int, high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(low, high + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.parametrize("bits", [8, 16])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 9), width=st.integers(1, 40), power=st.integers(-30, 30))
def test_weights_lie_on_the_grid(bits: int, seed: int, rows: int, width: int, power: int) -> None:
    weight = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 2.0**power
    codes, scale = grid.weight_grid(weight, bits)
    assert torch.equal(codes, codes.round())
    assert torch.equal(codes.abs().amax(1), torch.full((rows,), float(TOP[bits])))  # the largest gets the top code
    largest = weight.abs().argmax(1, keepdim=True)
    assert torch.equal(codes.gather(1, largest).sign(), weight.gather(1, largest).sign())
    # Codes times scale and the difference are exact in float64 (24 + 16 bits): half a step is meant literally.
    error = (codes.double() * scale.double()[:, None] - weight.double()).abs()
    assert (error <= scale.double()[:, None] / 2).all()


@pytest.mark.parametrize("bits", [8, 16])
def test_zero_rows_and_kernels_of_any_rank(bits: int) -> None:
    weight = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    weight[2] = 0
    codes, scale = grid.weight_grid(weight, bits)
    assert codes.shape == weight.shape
    assert not codes[2].any()
    assert (scale > 0).all()
    flat, _ = grid.weight_grid(weight.flatten(1), bits)
    assert torch.equal(codes.flatten(1), flat)


def test_halves_recombine() -> None:
    codes = torch.arange(-TOP[16], TOP[16] + 1).float()
    high, low = grid.halves(codes)
    assert torch.equal(256 * high + low, codes)
    for half in (high, low):
        assert torch.equal(half.to(torch.int8).float(), half)  # whole numbers that int8 holds


def test_bound_is_attained_and_never_passed() -> None:
    weight, largest = integers(-127, 127, 9, 50), 31
    bound = grid.linear_bound(weight, largest)
    assert float(reference.linear(weight.sign() * largest, weight, torch.float64).abs().max()) == bound
    codes = integers(-largest, largest, 200, 50, seed=1)
    assert float(reference.linear(codes, weight, torch.float64).abs().max()) <= bound


def test_accumulator_around_the_limits() -> None:
    assert grid.accumulator(2**24 - 1, "it") == torch.float32
    assert grid.accumulator(2**24, "it") == torch.float64
    assert grid.accumulator(2**53 - 1, "it") == torch.float64
    with pytest.raises(ConfigError, match="the layer"):
        grid.accumulator(2**53, "the layer")


@pytest.mark.parametrize("largest", [128, 255])
def test_order_of_summation(largest: int) -> None:
    """Below the bound float32 gives the integer in every order; above it float32 fails, and float64 is chosen."""
    weight, codes = torch.full((1, 1025), 127.0), torch.full((1025,), float(largest))
    codes[-1] = 1  # makes the total odd: above 2^24 float32 does not even have that number
    total = int((weight[0].long() * codes.long()).sum())
    dtype = grid.accumulator(grid.linear_bound(weight[:, :-1], largest), "it")
    assert dtype == (torch.float32 if largest == 128 else torch.float64)
    products, sums = (weight[0] * codes).to(dtype), []
    for seed in range(5):
        shuffled = products[torch.randperm(1025, generator=torch.Generator().manual_seed(seed))]
        sums += [shuffled.sum(), shuffled.cumsum(0)[-1], shuffled.view(25, 41).sum(0).sum(), shuffled.flip(0).sum()]
    assert {int(s) for s in sums} == {total}
    assert int(reference.linear(codes, weight, dtype)) == total
    assert (int(reference.linear(codes, weight, torch.float32)) == total) == (dtype == torch.float32)


SHAPES = [(1,), (3, 5), (63,), (64,), (65,), (7, 11), (2, 3, 17)]  # around the number of rows that opens int8


@pytest.mark.parametrize("rows", SHAPES, ids=str)
@pytest.mark.parametrize(("lo", "hi"), [(-1, 1), (-16, 15), (-127, 127), (-128, 128), (0, 255), (-300, 300)])
def test_fast_linear_equals_reference(rows: tuple[int, ...], lo: int, hi: int) -> None:
    for i, (width, out) in enumerate([(1, 1), (3, 7), (17, 5), (64, 33), (129, 64)]):
        codes = integers(lo, hi, *rows, width, seed=i)
        codes[..., 0] = lo if i % 2 else hi  # the ends of the range, where a narrow type would wrap around
        weight = integers(-128, 127, out, width, seed=i + 10).to(torch.int8)
        largest = max(-lo, hi)
        dtype = grid.accumulator(grid.linear_bound(weight, largest), "it")
        result = fast.linear(codes, weight, dtype, largest)
        assert result.dtype == dtype
        assert torch.equal(result, reference.linear(codes, weight, dtype))
        strided = fast.linear(codes.flip(0), weight, dtype, largest)
        assert torch.equal(strided, reference.linear(codes, weight, dtype).flip(0))


def test_fast_linear_above_int32() -> None:
    """A sum beyond 2^31 is still below the bound of float64: int32 sums must not be taken there."""
    width = 2**31 // (127 * 127) + 1
    codes, weight = torch.full((64, 1), 127.0).expand(64, width), torch.full((1, width), 127, dtype=torch.int8)
    dtype = grid.accumulator(grid.linear_bound(weight, 127), "it")
    assert fast.linear(codes, weight, dtype, 127).unique().tolist() == [width * 127 * 127]


def test_fast_linear_on_processors_without_wide_int8_units() -> None:
    """Older processors add pairs of int8 products in 16 bits, with saturation. ONEDNN_MAX_CPU_ISA stands in for one."""
    script = (
        "import torch; from spikezip.ops.grid import fast\n"
        "codes, weight = torch.full((64, 32), 127.0), torch.full((3, 32), 127, dtype=torch.int8)\n"
        "print(fast.linear(codes, weight, torch.float32, 127).unique().tolist())"
    )
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([32 * 127 * 127.0])


@pytest.mark.parametrize("faster", [True, False])
def test_int8_products_are_taken_where_they_are_faster(faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries without int8 units go through the products one by one: exact, and many times slower than floats."""
    taken, product = [], torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: taken.append(len(a)) or product(a, b))
    monkeypatch.setattr(fast, "_int8_products_are_faster", lambda: faster)
    fast.int8_products_pay.cache_clear()
    try:
        expected = faster and fast._int8_products_are_exact()
        assert fast.int8_products_pay() == expected
        taken.clear()
        codes, weight = integers(-127, 127, 70, 32), integers(-127, 127, 3, 32, seed=1)
        found = fast.linear(codes, weight.to(torch.int8), torch.float32, 127)
        assert torch.equal(found.long(), codes.long() @ weight.long().t())
        assert bool(taken) == expected
    finally:
        fast.int8_products_pay.cache_clear()


def test_fast_matmul_equals_reference() -> None:
    a, b = integers(-128, 127, 2, 3, 9, 13), integers(0, 255, 2, 3, 13, 5, seed=1)
    exact = a.long() @ b.long()
    assert torch.equal(fast.matmul(a, b, torch.float32, 255).long(), exact)
    assert torch.equal(fast.matmul(a, b, torch.float64, 255), exact.double())


def test_fixed_point() -> None:
    x = torch.randn(100, generator=torch.Generator().manual_seed(0))
    fixed = grid.fixed_point(x, bound=1000, what="the input")
    assert torch.equal(fixed, fixed.round())
    assert ((fixed * 2.0**-16 - x.double()).abs() <= 2.0**-17).all()
    on_grid = torch.arange(-500, 500) / 2**16
    assert torch.equal(grid.fixed_point(on_grid, 1, "it"), torch.arange(-500, 500).double())
    limit = torch.tensor([2.0**20])  # 2^36 units, so that sums of 2^17 of them reach 2^53
    grid.fixed_point(limit, bound=2**17 - 1, what="it")
    with pytest.raises(ConfigError, match="the pixels"):
        grid.fixed_point(limit, bound=2**17, what="the pixels")
    assert grid.fixed_point(torch.zeros(0, 3), 1, "it").shape == (0, 3)


@pytest.mark.parametrize(("int8", "plain", "faster"), [(12.0, 0.3, False), (2.0, 1.0, False), (0.2, 1.0, True)])
def test_which_product_is_faster_does_not_depend_on_other_work(
    monkeypatch: pytest.MonkeyPatch, int8: float, plain: float, faster: bool
) -> None:
    """It counts what one thread computes, not how long it waits; and leaves the number of threads as it was."""
    work, used = [0.0], set()

    def taking(seconds: float) -> Callable[..., None]:
        def product(*_: object) -> None:
            used.add(torch.get_num_threads())
            work[0] += seconds

        return product

    monkeypatch.setattr(fast.time, "thread_time", lambda: work[0])
    monkeypatch.setattr(torch, "_int_mm", taking(int8))
    monkeypatch.setattr(fast.reference, "linear", taking(plain))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert fast._int8_products_are_faster() == faster
        assert used == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
