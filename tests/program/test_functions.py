"""The allow-list: every operation is of one kind, and what is said of the kind holds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from spikezip.ops import norm
from spikezip.program import functions
from spikezip.program.arithmetic import FUNCTIONS
from spikezip.program.functions import KINDS, Kind, evaluate, operators, torch_operator

LISTS = [functions._MOVE, functions._SELECT, functions._IEEE, functions._SUM, functions._CURVE, functions._WIDE]
WEIGHT, BIAS = torch.linspace(0.5, 1.5, 6), torch.linspace(-1, 1, 6)
INDEX = torch.tensor([0, 2, 2, 1, 0, 2])

# Arguments behind the first, which is `[4, 6]` or as said; every function of our own that has a kind SUM or CURVE.
ARGUMENTS: dict[str, Any] = {
    "sum.dim_IntList": ([1],),
    "mean.dim": ([0], True),
    "cumsum.default": (1,),
    "var.correction": ([1],),
    "var.dim": ([1], False),
    "std.correction": ([1],),
    "std.dim": ([1],),
    "var_mean.correction": ([1],),
    "norm.ScalarOpt_dim": (2, [1]),
    "norm.Scalar": (3,),
    "linalg_vector_norm.default": (1, [1]),
    "softmax.int": (1,),
    "_softmax.default": (0, False),
    "log_softmax.int": (1,),
    "logsumexp.default": ([1],),
    "layer_norm.default": ([6], WEIGHT, BIAS),
    "rms_norm.default": ([6], WEIGHT, 1e-6),
    "group_norm.default": (3, WEIGHT, BIAS),
    "instance_norm.default": (WEIGHT, BIAS, None, None, True, 0.1, 1e-5, False),
    "batch_norm.default": (WEIGHT, BIAS, BIAS * 0.1, WEIGHT, False, 0.1, 1e-5, False),
    "avg_pool1d.default": ([3], [2], [1]),
    "avg_pool2d.default": ([3, 2], [2, 1], [1, 0], True, False),
    "avg_pool3d.default": ([2], [1]),
    "adaptive_avg_pool1d.default": ([4],),
    "adaptive_avg_pool2d.default": ([2, 3],),
    "adaptive_avg_pool3d.default": ([1, 2, 2],),
    "scatter_add.default": (1, INDEX.expand(4, 6), torch.linspace(-2, 2, 24).view(4, 6)),
    "index_add.default": (1, INDEX, torch.linspace(-2, 2, 24).view(4, 6)),
    "gelu.default": (),
    "glu.default": (1,),
    "elu.default": (1.3,),
    "celu.default": (1.3,),
    "softplus.default": (1.5, 3.0),
    "pow.Tensor_Scalar": (3,),
    "pow.Tensor_Tensor": (torch.linspace(-2, 2, 24).view(4, 6),),
}
SHAPES = {
    "group_norm.default": (2, 6, 5),
    "instance_norm.default": (2, 6, 5),
    "batch_norm.default": (2, 6, 5),
    "avg_pool1d.default": (2, 3, 9),
    "avg_pool2d.default": (2, 3, 9, 8),
    "avg_pool3d.default": (2, 3, 4, 4, 5),
    "adaptive_avg_pool1d.default": (2, 3, 9),
    "adaptive_avg_pool2d.default": (2, 3, 9, 8),
    "adaptive_avg_pool3d.default": (2, 3, 4, 4, 5),
}
POSITIVE = {"log.default", "log2.default", "log10.default", "log1p.default", "pow.Tensor_Tensor"}
OWN = [op.removeprefix("aten.") for op, kind in KINDS.items() if kind in (Kind.SUM, Kind.CURVE)]


def numbers(name: str, rows: int = 4, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SHAPES.get(name, (rows, 6)), generator=generator) * scale
    return x.abs() + 0.01 if name in POSITIVE else x


def result(name: str, x: Tensor) -> Tensor:
    dtype = x.dtype
    if name == "pow.Scalar":
        found = evaluate(f"aten.{name}", (2.5, x), {}, dtype, x.device)
    else:
        found = evaluate(f"aten.{name}", (x, *ARGUMENTS.get(name, ())), {}, dtype, x.device)
    return found[0] if isinstance(found, tuple) else found


def test_every_operation_has_one_kind() -> None:
    named = [op for each in LISTS for op in each]
    assert len(named) == len(set(named)), sorted({op for op in named if named.count(op) > 1})
    assert set(KINDS) == {*named, "getitem", "causal_mask", "spikezip.hadamard", "spikezip.channels"}


@pytest.mark.parametrize("kind", Kind)
def test_operations_exist_and_are_evaluated_as_their_kind_says(kind: Kind) -> None:
    """Sums and curves are our own. What is left to torch in float64 is nothing else."""
    for op in (op for op, of in KINDS.items() if of is kind and op.startswith("aten.")):
        assert isinstance(torch_operator(op), torch._ops.OpOverload)
        if kind in (Kind.SUM, Kind.CURVE):
            assert op in FUNCTIONS, op
        if kind is Kind.WIDE:
            assert op not in FUNCTIONS, op
    assert set(FUNCTIONS) <= set(KINDS)


FACTORIES = {
    "arange": (5,), "arange.start": (1, 5), "arange.start_step": (1, 9, 2), "zeros": ((2,),), "ones": ((2,),),
    "full": ((2,), 1.5), "scalar_tensor": (3,), "eye": (2,), "eye.m": (2, 3), "linspace": (0.0, 1.0, 5),
    "tril_indices": (3, 3), "triu_indices": (3, 3), "empty.memory_format": ((2,),),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTORIES)
def test_tensors_that_are_made_lie_on_the_device_that_is_asked_for(name: str) -> None:
    """And what counts whole numbers is made there: a CUDA graph cannot hold a copy from the host."""
    (op,) = operators(name)
    assert evaluate(op, FACTORIES[name], {}, torch.float32, torch.device("meta")).is_meta
    assert evaluate("causal_mask", (3, 4), {}, torch.float32, torch.device("meta")).is_meta


@pytest.mark.parametrize("name", OWN)
def test_values_are_those_of_torch(name: str) -> None:
    """Within one unit in the last place of float32 of torch's value in float64, beside what cancels in a sum."""
    x = numbers(name)
    found = result(name, x)

    def widened(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    arguments = [widened(value) for value in ARGUMENTS.get(name, ())]
    given = (2.5, x.double()) if name == "pow.Scalar" else (x.double(), *arguments)
    expected = torch_operator(f"aten.{name}")(*given)
    expected = expected[0] if isinstance(expected, tuple) else expected
    # LayerNorm and softmax are made of several float32 operations, each of which is rounded.
    several = 8 if name in ("layer_norm.default", "softmax.int", "_softmax.default") else 1
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    assert torch.allclose(found.double(), expected, rtol=several * 2.0**-23, atol=several * 2.0**-24)
    # In float64: sums are taken at a 2^-40 of the largest value.
    assert torch.allclose(result(name, x.double()), expected, rtol=2.0**-38, atol=2.0**-38)


@pytest.mark.parametrize("name", OWN)
def test_values_do_not_depend_on_place_and_company(name: str) -> None:
    """The same sample alone, among others, in another layout and behind an offset."""
    x = numbers(name, rows=4)
    if name in SHAPES:
        whole = result(name, x)
        assert torch.equal(result(name, x[1:2]), whole[1:2])
        assert torch.equal(result(name, x.transpose(0, 1).contiguous().transpose(0, 1)), whole)
        return
    if not name.startswith(("scatter", "index", "pow.Tensor_Tensor")):
        more = torch.cat([x * 0.1, x, x * 1e6])
        columns = name.startswith(("mean.dim", "_softmax", "sum.default", "mean.default", "var.default", "std.default"))
        if not columns and name != "norm.Scalar":
            assert torch.equal(result(name, more)[4:8], result(name, x))
    turned = x.t().contiguous().t()
    padded = torch.cat([torch.zeros(4, 1), x], dim=1)[:, 1:]
    assert torch.equal(result(name, turned), result(name, x))
    assert torch.equal(result(name, padded), result(name, x))


@pytest.mark.parametrize("name", ["sum.dim_IntList", "linalg_vector_norm.default", "cumsum.default"])
def test_zeros_and_order_leave_sums_as_they_are(name: str) -> None:
    x = torch.randn(50, 300, generator=torch.Generator().manual_seed(0)) * torch.logspace(-8, 8, 50)[:, None]
    turn = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    longer = torch.cat([x, torch.zeros(50, 77)], dim=1)
    last = (lambda y: y[:, -1]) if name.startswith("cumsum") else (lambda y: y)
    assert torch.equal(last(result(name, x[:, turn])), last(result(name, x)))
    assert torch.equal(last(result(name, longer)), last(result(name, x)))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("max.dim", lambda x: x.max(1)),
        ("min.dim", lambda x: x.min(1)),
        ("argmax.default", lambda x: (x.argmax(1),)),
        ("argmin.default", lambda x: (x.argmin(1),)),
        ("sort.default", lambda x: torch.sort(x, dim=1, stable=True)),
        ("topk.default", lambda x: x.topk(4, 1)),
    ],
)
def test_of_equal_values_the_first_counts(name: str, function: Callable[[Tensor], Any]) -> None:
    """Values are torch's; among equal ones torch leaves the place open."""
    x = torch.randint(0, 3, (40, 9), generator=torch.Generator().manual_seed(0)).float()
    given = (x, 4, 1) if name == "topk.default" else (x, 1)
    found = evaluate(f"aten.{name}", given, {}, x.dtype, x.device)
    values, places = (None, found) if isinstance(found, Tensor) else found
    expected = function(x)
    if values is not None:
        assert torch.equal(values, expected[0])
        assert torch.equal(x.gather(1, places.view(40, -1)), values.view(40, -1))
    first = places.view(40, -1)[:, 0]
    best = x.gather(1, first[:, None])
    assert not bool(((x == best) & (torch.arange(9) < first[:, None])).any())


def test_rows_without_a_largest_value_behave_as_in_torch() -> None:
    """Masked out in full, with an infinity, with a NaN."""
    lowest = float("-inf")
    x = torch.tensor([[lowest] * 4, [0.0, lowest, 1.0, lowest], [0.0, 1.0, float("inf"), 2.0], [float("nan"), 0, 1, 2]])
    found = result("softmax.int", x)
    expected = torch.softmax(x, 1)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.allclose(found[1], expected[1], rtol=1e-6)
    assert found[1, 1] == 0
    assert torch.equal(result("sum.dim_IntList", x).isnan(), x.sum(1).isnan())
    assert torch.equal(result("mean.dim", x.t()).isinf(), x.t().mean(0, keepdim=True).isinf())


def test_layer_norm_gives_no_zeros_where_it_overflows() -> None:
    """A variance beyond float32 has no result, in the reference as in the compiled loop."""
    x = torch.linspace(-1, 1, 32)[None] * torch.tensor([[1.0], [1e18], [1e30], [2e38]])
    for layer_norm in (norm.layer_norm, norm.reference.layer_norm):
        found = layer_norm(x, None, None, 1e-5)
        assert found.isnan().all(1).tolist() == [False, False, True, True]
        assert torch.allclose(found[:2].double(), torch.nn.functional.layer_norm(x[:2].double(), (32,)), rtol=1e-6)
        # The sum of these would overflow in float32; their mean does not, and nothing is left of them beside it.
        assert torch.equal(layer_norm(torch.full((1, 32), 3e38), None, None, 1e-5), torch.zeros(1, 32))


@pytest.mark.parametrize("length", [1, 5, 197, 1024, 4096])
def test_softmax_is_accurate_for_rows_of_any_length(length: int) -> None:
    """Within 1e-6 of itself; hard rows hold one large value and many that hardly count."""
    x = (
        torch.randn(30, length, generator=torch.Generator().manual_seed(0))
        * torch.tensor([0.1, 1, 5, 20, 60])[torch.arange(30) % 5, None]
    )
    # Those of the last two are half a unit of the sum, and just below: all are rounded to the same side.
    x[0], x[1], x[2], x[3], x[4] = 0.0, -21.5, -15.0, -22.8738, -22.8743
    x[1:5, 0] = 0.0
    found, expected = result("softmax.int", x), torch.softmax(x.double(), 1)
    seen = expected > 1e-37
    assert torch.allclose(found.double()[seen], expected[seen], rtol=1e-6, atol=0)
