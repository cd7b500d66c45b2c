"""A function of a program gives the same bits for the same number, wherever it lies in a tensor.

The folded engine lays time into the batch, so that a number lies elsewhere than in the quantized network. Vector
loops of the CPU treat remainders, single numbers and strided rows by other code; the results must not show it.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from spikezip.ops.norm import layer_norm
from spikezip.ops.softmax import softmax
from spikezip.program.functions import evaluate, torch_operator

FUNCTIONS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "relu": ("aten.relu.default", (), {}),
    "gelu": ("aten.gelu.default", (), {}),
    "tanh": ("aten.tanh.default", (), {}),
    "silu": ("aten.silu.default", (), {}),
    "sigmoid": ("aten.sigmoid.default", (), {}),
    "erf": ("aten.erf.default", (), {}),
    "exp": ("aten.exp.default", (), {}),
    "cube": ("aten.pow.Tensor_Scalar", (3,), {}),
    "gelu, tanh form": ("aten.gelu.default", (), {"approximate": "tanh"}),
}


class Operator:
    """A function of a program, called as torch's is."""

    def __init__(self, name: str) -> None:
        self.op, self.more, self.settings = FUNCTIONS[name]

    def __call__(self, x: Tensor) -> Tensor:
        found: Tensor = evaluate(self.op, (x, *self.more), self.settings, x.dtype, x.device)
        return found

    def function(self, x: Tensor) -> Tensor:
        found: Tensor = torch_operator(self.op)(x, *self.more, **self.settings)
        return found


# Large enough to be split over threads, odd enough to leave remainders.
ROWS, WIDTH = 1201, 257


def numbers() -> Tensor:
    """Mostly where activation functions bend; a few far out."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, WIDTH, generator=generator) * 2
    x[::50] *= 20
    return x


@pytest.fixture(params=FUNCTIONS)
def operator(request: pytest.FixtureRequest) -> Operator:
    return Operator(request.param)


def test_small_tensors(operator: Operator) -> None:
    """The same numbers alone, in every small size, at many offsets, copied to a fresh start or left in place."""
    flat = numbers().view(-1)
    whole = operator(flat)
    for size in range(2, 68):
        for offset in range(0, 2000, 97):
            piece = flat[offset : offset + size]
            assert torch.equal(operator(piece), whole[offset : offset + size]), (size, offset)
            assert torch.equal(operator(piece.clone()), whole[offset : offset + size]), (size, offset)


def test_single_numbers(operator: Operator) -> None:
    flat = numbers().view(-1)[:2000]
    assert torch.equal(torch.cat([operator(x.view(1)) for x in flat]), operator(flat))


def test_large_tensors(operator: Operator) -> None:
    """Other chunks for the threads: the boundaries between them fall on other numbers."""
    flat = numbers().view(-1)
    whole = operator(flat)
    for start, stop in [(0, 40_001), (1, 100_000), (13, 131_100), (32_767, 300_001), (5, flat.numel())]:
        assert torch.equal(operator(flat[start:stop]), whole[start:stop])
        assert torch.equal(operator(flat[start:stop].clone()), whole[start:stop])


def test_time_folded_into_the_batch(operator: Operator) -> None:
    x = numbers()[:1200].view(4, 300, WIDTH)
    assert torch.equal(operator(x), torch.stack([operator(step) for step in x]))
    assert torch.equal(operator(torch.cat([x, x])), torch.cat([operator(x)] * 2))


def test_views(operator: Operator) -> None:
    """Transposed, strided, cut or broadcast: a model may pass a view where another lays the numbers out."""
    x = numbers()
    whole = operator(x)
    assert torch.equal(operator(x.t()), whole.t())
    assert torch.equal(operator(x[:, 5:178]), whole[:, 5:178])
    assert torch.equal(operator(x[::2, ::3]), whole[::2, ::3])
    assert torch.equal(operator(x[:, :1].expand(ROWS, 9)), whole[:, :1].expand(ROWS, 9))


def test_number_of_threads(operator: Operator) -> None:
    x, threads = numbers(), torch.get_num_threads()
    whole = operator(x)
    try:
        torch.set_num_threads(1)
        assert torch.equal(operator(x), whole)
    finally:
        torch.set_num_threads(threads)


def test_precision_is_given_back(operator: Operator) -> None:
    """Computing in float64 shows neither in the dtype nor in the value, which stays within rounding of f."""
    x = numbers()
    result = operator(x)
    assert result.dtype == x.dtype
    assert torch.allclose(result, operator.function(x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("width", [1, 3, 8, 9, 17, 64, 65, 197, 257, 384])
@pytest.mark.parametrize("kind", ["softmax", "LayerNorm", "RMSNorm"])
def test_rows(kind: str, width: int) -> None:
    """Functions of whole rows: a row gives the same bits alone, among few and among many, in place or copied."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=generator) * 3 for shape in [(1500, width), (width,), (width,)])
    scaled = LlamaRMSNorm(width)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "softmax": softmax,
        "LayerNorm": lambda rows: layer_norm(rows, weight, bias, 1e-6),
        "RMSNorm": scaled,
    }
    function = functions[kind]
    with torch.no_grad():
        whole = function(x)
        for start, stop in [(0, 1), (1, 2), (5, 8), (13, 29), (100, 177), (1, 400), (37, 1499)]:
            for rows in (x[start:stop], x[start:stop].clone(), x[start:stop].view(1, stop - start, width)):
                assert torch.equal(function(rows).view(-1, width), whole[start:stop]), (start, stop)
