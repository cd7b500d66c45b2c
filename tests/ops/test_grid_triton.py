"""Integer weights and epilogues as GPU kernels against plain torch, bit for bit."""

import math
import os

import interpreted
import pytest
import torch
from torch import Tensor

from spikezip.errors import ConfigError
from spikezip.ops.grid import fast, reference

# Whether Triton interprets is decided when it is first imported: without a GPU, a process of its own runs these tests.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
kernel = pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="runs in a process with Triton's interpreter")

SHAPES = [(1, 1), (5, 37), (3, 1024), (2, 1025), (4, 3, 7, 7), (2, 5000), (0, 4)]


def same(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Equal in dtype, shape, device and every value; a NaN equals a NaN."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True)


def hard_weight(shape: tuple[int, ...], top: int) -> Tensor:
    """Rows of many sizes, with a third of the weights next to half-way points of their row's grid; one row of zeros."""
    weight = torch.randn(shape) * 10.0 ** torch.randint(-3, 3, (shape[0], *[1] * (len(shape) - 1)))
    if not weight.numel():
        return weight
    rows = weight.flatten(1)
    step = rows.abs().amax(dim=1, keepdim=True) / top
    tie = (step.double() * (torch.randint(-top + 1, top - 1, rows.shape) + 0.5)).float()
    for towards in (math.inf, -math.inf):
        tie = torch.where(torch.rand(rows.shape) < 0.3, torch.nextafter(tie, torch.tensor(towards)), tie)
    # Half-way points lie inside the row's range, so its largest weight stays, and so do the points.
    rows = torch.where((torch.rand(rows.shape) < 0.33) & (rows.abs() < rows.abs().amax(dim=1, keepdim=True)), tie, rows)
    if len(rows) > 2:
        rows[1] = 0.0
    return rows.view(shape)


def expected_grid(weight: Tensor, bits: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The reference, on the CPU: integer weights are the same wherever they are computed."""
    codes, scale = reference.weight_grid(weight.cpu(), bits)
    return codes.to(dtype).to(weight.device), scale.to(weight.device)


def test_kernels_without_a_gpu() -> None:
    pytest.importorskip("triton")
    if DEVICE == "cuda" or INTERPRETED:
        pytest.skip("the kernel tests run in this process")
    interpreted.check_tests(__file__, "kernel")


@kernel
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("bits", "dtypes"), [(8, (torch.float32, torch.bfloat16, torch.float16, torch.int8)), (16, (torch.float32,))]
)
def test_kernel_weight_grid(shape: tuple[int, ...], bits: int, dtypes: tuple[torch.dtype, ...]) -> None:
    from spikezip.ops.grid import triton

    weight = hard_weight(shape, reference.LARGEST_WEIGHT[bits]).to(DEVICE)
    if not weight.numel():  # the reference knows no largest weight of none
        codes, scale = triton.weight_grid(weight, bits)
        assert codes.shape == shape
        assert len(scale) == 0
        return
    for dtype in dtypes:
        same(triton.weight_grid(weight, bits, dtype), expected_grid(weight, bits, dtype))


@kernel
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, which interprets, remarks on NaN and infinity
def test_kernel_weight_grid_of_odd_rows(bits: int) -> None:
    from spikezip.ops.grid import triton

    tiny = 2.0**-149
    rows = [
        [0.0, -0.0, 0.0],
        [tiny, -tiny, 0.0],
        [100 * tiny, 3.0 * tiny, 0.0],
        [math.nan, 1.0, -2.6],
        [math.inf, 1.0, -3.0],
    ]
    rows += [[3e38, -3.4e38, 1.0], [1.0, 1.0, -1.0], [2.0**-126, 2.0**-127, 1e-40]]
    weight = torch.tensor(rows, device=DEVICE)
    same(triton.weight_grid(weight, bits), expected_grid(weight, bits, torch.float32))


@kernel
def test_kernel_weight_grid_of_strided_weights() -> None:
    from spikezip.ops.grid import triton

    weight = torch.randn(40, 30, device=DEVICE).t()  # as GPT-2 keeps them
    same(triton.weight_grid(weight, 8), expected_grid(weight, 8, torch.float32))
    same(triton.weight_grid(weight[:, ::3], 8), expected_grid(weight[:, ::3], 8, torch.float32))


@kernel
def test_kernel_refuses_what_does_not_fit() -> None:
    from spikezip.ops.grid import triton

    for bits, dtype in [(16, torch.int8), (16, torch.bfloat16), (16, torch.float16)]:
        with pytest.raises(ConfigError, match="do not fit"):
            triton.weight_grid(torch.zeros(2, 3), bits, dtype)


EPILOGUES = [(1, 1), (3, 5), (8, 128), (17, 129), (2, 9, 300), (0, 5)]


@kernel
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", EPILOGUES)
def test_kernel_epilogue(shape: tuple[int, ...], with_bias: bool) -> None:
    from spikezip.ops.grid import triton

    total = torch.randint(-(2**20), 2**20, shape, device=DEVICE).float()
    scale = torch.rand(shape[-1], device=DEVICE) * 1e-5
    bias = torch.randn(shape[-1], device=DEVICE) if with_bias else None
    u = total.mul(scale) if bias is None else total.mul(scale).add(bias)
    same((triton.scale_bias(total, scale, bias),), (u,))
    strided = total.transpose(0, -1).contiguous().transpose(0, -1)
    same((triton.scale_bias(strided, scale, bias),), (u,))


@kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (70, 130), (129, 7), (0, 4)])
def test_kernel_gradient(shape: tuple[int, int], dtype: torch.dtype) -> None:
    from spikezip.ops.grid import triton

    # Small whole numbers: their sums are exact in any order.
    grad = torch.randint(-9, 10, shape, device=DEVICE).float()
    scale = torch.rand(shape[1], device=DEVICE)
    low, total = triton.scaled_gradient(grad, scale, dtype, True)
    assert total is not None
    same((low, total), ((grad * scale).to(dtype), grad.sum(dim=0)))
    assert triton.scaled_gradient(grad, scale, dtype, False)[1] is None


def test_two_roundings_are_not_one() -> None:
    """The data of the test above does tell a fused multiply-add from two operations."""
    total = torch.randint(-(2**20), 2**20, (17, 129)).float()
    scale, bias = torch.rand(129) * 1e-5, torch.randn(129)
    once = (total.double() * scale.double() + bias.double()).float()
    assert not torch.equal(fast.scale_bias(total, scale, bias), once)


def test_choice_on_this_machine() -> None:
    """What the library calls, where it runs: a kernel on a GPU, torch elsewhere."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for weight in (torch.randn(5, 7, device=device), torch.randn(3, 2, 2, device=device)):
        same(fast.weight_grid(weight, 8, torch.int8), expected_grid(weight, 8, torch.int8))
    total, scale = torch.randn(5, 7, device=device) * 1000, torch.rand(7, device=device)
    for bias in (None, torch.randn(7, device=device)):
        u = total * scale if bias is None else total * scale + bias
        same((fast.scale_bias(total, scale, bias),), (u,))
