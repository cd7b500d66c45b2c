"""Elementary functions: how near they are to the true values, and that every implementation has the same bits."""

import hashlib
import inspect
import re
from collections.abc import Callable
from functools import cache
from math import inf, isinf, ldexp, nan, nextafter
from typing import Any

import interpreted
import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import spikezip
from spikezip.ops import elementary
from spikezip.ops.bits import power_of_two
from spikezip.ops.elementary import reference

QUICK = ("exp", "log", "root", "inverse_root", "tanh", "sigmoid", "silu", "erf", "gelu", "gelu_tanh", "softplus")
FLOAT32, FLOAT64 = torch.float32, torch.float64

HIGH = mpmath.mp.clone()
HIGH.prec = 200  # bits; where its arguments are large, the sine takes more of itself


def logistic(x: Any) -> Any:
    return 1 / (1 + HIGH.exp(-x))


def log1p_exp(x: Any) -> Any:
    return HIGH.log1p(HIGH.exp(x)) if x < 0 else x + HIGH.log1p(HIGH.exp(-x))


# Each function in high precision, and in torch: there in a form that stays exact in float64 wherever its result is
# small (torch's own gelu, for one, is a difference of numbers near 1).
TRUE: dict[str, tuple[Callable[[Any], Any], Callable[[Tensor], Tensor]]] = {
    "exp": (HIGH.exp, torch.exp),
    "expm1": (HIGH.expm1, torch.expm1),
    "exp2": (lambda x: HIGH.exp(x * HIGH.ln2), torch.exp2),
    "log": (HIGH.log, torch.log),
    "log1p": (HIGH.log1p, torch.log1p),
    "log2": (lambda x: HIGH.log(x) / HIGH.ln2, torch.log2),
    "log10": (lambda x: HIGH.log(x) / HIGH.ln10, torch.log10),
    "root": (HIGH.sqrt, torch.sqrt),
    "inverse_root": (lambda x: 1 / HIGH.sqrt(x), torch.rsqrt),
    "tanh": (HIGH.tanh, torch.tanh),
    "sigmoid": (logistic, torch.sigmoid),
    "erf": (HIGH.erf, torch.erf),
    "erfc": (HIGH.erfc, torch.erfc),
    "sin": (HIGH.sin, torch.sin),
    "cos": (HIGH.cos, torch.cos),
    "tan": (HIGH.tan, torch.tan),
    "sinh": (HIGH.sinh, torch.sinh),
    "cosh": (HIGH.cosh, torch.cosh),
    "silu": (lambda x: x * logistic(x), F.silu),
    "gelu": (
        lambda x: x / 2 * HIGH.erfc(-x * HIGH.sqrt(HIGH.mpf(0.5))),
        lambda x: x * 0.5 * torch.erfc(-x * 0.5**0.5),
    ),
    "gelu_tanh": (
        lambda x: x * logistic(HIGH.sqrt(8 / HIGH.pi) * (x + HIGH.mpf("0.044715") * x**3)),
        lambda x: x * torch.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x)),
    ),
    "softplus": (lambda x: x if x > 20 else log1p_exp(x), F.softplus),
    "log_sigmoid": (lambda x: -log1p_exp(-x), F.logsigmoid),
    "mish": (lambda x: x * HIGH.tanh(log1p_exp(x)), F.mish),
    "elu": (lambda x: x if x > 0 else HIGH.expm1(x), F.elu),
}
POSITIVE = ("log", "log2", "log10", "root", "inverse_root")


def narrow(value: float) -> float:
    return float(torch.tensor(value, dtype=FLOAT64).to(FLOAT32))


@cache
def hard_points(name: str) -> tuple[float, ...]:
    """Float32 numbers where functions are easily wrong, each with its neighbours."""
    centres = [ldexp(1.0, e) for e in range(-30, 8, 2)]  # 1 + x, x − x³ and the like lie next to half-way points
    centres += [ldexp(1.5, e) for e in (-149, -140, -127, -100, -60)]
    centres += [(k + 0.5) * 0.6931471805599453 for k in (0, 1, 2, 9, 60, 126, 127)]  # where exp changes its k
    centres += [88.72284, 87.33655, 103.97208, 104.0, 127.0, 128.0, 149.0, 150.0]  # the ends of exp and of exp2
    centres += [0.5, 0.70710678, 1.41421356, 1.0, 2.0, 3.0, 10.0, 1000.0]  # logarithms and roots
    centres += [0.75, 4.0, 5.3, 9.1, 10.05, 13.0, 14.2, 16.0, 20.0]  # tanh, erf, erfc, gelu and softplus
    if name in ("sin", "cos", "tan"):
        centres += [k * 1.5707963267948966 for k in (0.5, 1, 1.5, 2, 3, 22, 355, 10**4 + 1, 600001)]
        centres += [2.0**20, 2.0**20 * 1.1, 2.0**24 - 1, 2.0**40 * 1.7, 2.0**100 * 1.3, 2.0**127 * 1.9, 5.3e12, 1e30]
    if name in (*POSITIVE, "log1p", "softplus", "elu"):
        centres += [2.0**-149, 2.0**-126, 2.0**-126 * 1.7, 2.0**60 * 1.3, 2.0**127 * 1.9]
    points = []
    for centre in map(narrow, centres):
        here = torch.tensor([centre] * 3)
        towards = torch.tensor([centre, inf, -inf])
        points += torch.nextafter(here, towards).tolist()
    points = [p for p in points if not isinf(p)]
    if name not in POSITIVE:
        points += [-p for p in points if name != "log1p" or p < 1]
    return tuple(dict.fromkeys(points))


@cache
def true_values(name: str) -> tuple[tuple[float, Any], ...]:
    return tuple((p, HIGH.mpf(TRUE[name][0](HIGH.mpf(p)))) for p in hard_points(name) if p != 0)


@pytest.mark.parametrize("name", TRUE)
def test_float32_results_are_half_a_unit_from_the_true_value(name: str) -> None:
    """The float64 result is off by little, and rounding that by half a unit in the last place: 0.501 in all."""
    cases = true_values(name)
    results = getattr(elementary, name)(torch.tensor([p for p, _ in cases])).tolist()
    assert len(cases) > 100
    for (p, true), result in zip(cases, results, strict=True):
        if isinf(result):
            assert abs(true) >= 2.0**128 * (1 - 2.0**-25), p
            continue
        unit = ldexp(1.0, max(int(HIGH.frexp(true)[1]) - 24, -149)) if true else 2.0**-149
        assert abs(result - true) <= 0.501 * unit, (p, result, true)


@pytest.mark.parametrize("name", TRUE)
def test_float64_results(name: str) -> None:
    """Within 1e-13 of themselves.

    That is some hundred units in the last place: the argument of an exponential has an error of 2^-53 of itself, and
    that is what the exponential makes of it when its argument is a few hundred. Those of gelu are products of more
    factors. Results that no normal float64 can hold, and sigmoids that underflow with the exponential, are not looked
    at.
    """
    allowed = 4e-13 if name in ("gelu", "gelu_tanh") else 1e-13
    # Points that no float32 can hold, and large ones.
    points = [nextafter(p, inf) * (1 - 2.0**-40) for p in hard_points(name) if p != 0]
    nearest = 6381956970095103 * 2.0**797  # no float64 comes nearer to a multiple of π/2, relative to itself
    for p in (5e-324, 1e-310, 0.1, 26.5, 36.5, 300.1, 600.3, 707.1, 1e17 / 3, 1e200 / 3, 2.0**1023 * 1.3, nearest):
        points += [p] if name in (*POSITIVE, "log1p") else [p, -p]
    points = [p for p in points if name != "log1p" or p > -1]
    compared = 0
    for p, result in zip(points, getattr(elementary, name)(torch.tensor(points, dtype=FLOAT64)).tolist(), strict=True):
        if name not in (*POSITIVE, "log1p", "sin", "cos", "tan") and abs(p) > 708:
            continue
        true = TRUE[name][0](HIGH.mpf(p))
        if 1e-300 < abs(true) < 1e307:
            assert abs(result - true) <= allowed * abs(true), (p, result, true)
            compared += 1
    assert compared > 100


@cache
def patterns() -> Tensor:
    """Float32 numbers of all exponents, infinite ones and NaN among them: a million patterns of bits."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(-(2**31), 2**31, (1_000_000,), generator=generator).to(torch.int32).view(FLOAT32)
    drawn[:5] = torch.tensor([0.0, -0.0, inf, -inf, nan])
    moderate = torch.randn(133_000, 3, generator=generator) * torch.tensor([0.1, 2.0, 30.0])
    drawn[5 : 5 + moderate.numel()] = moderate.view(-1)
    return drawn


@cache
def expected(name: str, *given: float) -> Tensor:
    result: Tensor = getattr(reference, name)(patterns(), *given)
    return result


def same_bits(actual: Tensor, wanted: Tensor) -> bool:
    """Equal, zeros with their signs; one NaN is as good as another."""
    assert actual.dtype == wanted.dtype
    assert actual.shape == wanted.shape
    equal = ((actual == wanted) & (actual.signbit() == wanted.signbit())) | (actual.isnan() & wanted.isnan())
    return bool(equal.all())


def near(found: Tensor, wide: Tensor) -> bool:
    """Whether float32 results are float64 ones, rounded: within 0.501 units in the last place, or both overflow."""
    other = (found != wide.float()) & ~(found.isnan() & wide.isnan())
    found, wide = found[other].double(), wide[other]
    unit = power_of_two((torch.frexp(wide)[1] - 24).clamp(min=-149), FLOAT64)
    return bool(((found - wide).abs() <= unit * 0.501).all())


@pytest.mark.parametrize("name", TRUE)
def test_a_million_points_beside_float64_of_torch(name: str) -> None:
    """Torch's float64 functions are off by a few float64 units: nothing beside a thousandth of a float32's."""
    wide = TRUE[name][1](patterns().double())
    finite = patterns().isfinite()
    assert near(expected(name)[finite], wide[finite])
    assert int(wide.isfinite().sum()) > 300_000


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("name", TRUE)
def test_special_values_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    of_torch = {"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}.get(name, TRUE[name][1])
    x = torch.tensor([0.0, -0.0, inf, -inf, nan], dtype=FLOAT64)
    found, wanted = getattr(elementary, name)(x.to(dtype)), of_torch(x).to(dtype)
    if name == "log_sigmoid":  # of infinity it is −0
        found, wanted = found + 0.0, wanted + 0.0
    assert same_bits(found, wanted)


def test_powers_have_the_special_cases_of_torch() -> None:
    bases = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.7, -1.3, 3.1, 1e-3, inf, -inf, nan, 1e-310, 1e300]
    exponents = [0, 1, -1, 2, 3, -2, -3, 7, 63, 64, -64, 65, -65, 66, 0.3, -0.3, 1.5, 1e20, -1e20, inf, -inf, nan]
    x = torch.tensor(bases, dtype=FLOAT64)
    for y in exponents:
        found, wanted = elementary.power(x, y), torch.pow(x, y)
        # An error of 2^-53 in y·log x, which is some hundreds at most, is one of 1e-13 in its exponential.
        assert torch.allclose(found, wanted, rtol=2e-13, atol=0, equal_nan=True), y
        assert torch.equal(found.signbit()[~found.isnan()], wanted.signbit()[~wanted.isnan()]), y
    many = torch.tensor([*exponents, 0.5, -0.5], dtype=FLOAT64)
    rows = torch.stack([elementary.power(x, float(y)) for y in many], dim=1)
    assert same_bits(elementary.power(x[:, None], many), rows)


@pytest.mark.parametrize("y", [2.0, 3.0, -1.0, 0.5, -0.5, 0.3, -2.5, 64.0])
def test_powers_of_many_points(y: float) -> None:
    x = patterns()[:100_000].abs()
    assert near(elementary.power(x, y), torch.pow(x.double(), y))
    if abs(y) == 0.5:
        assert same_bits(elementary.power(x, y), (elementary.root if y > 0 else elementary.inverse_root)(x))


def test_variants() -> None:
    """Arguments beside x, and integers, which count as float32."""
    x = patterns()[:200_000]
    x = x[x.isfinite()]
    wide = x.double()
    for beta, threshold in ((1.0, 20.0), (0.37, 5.0), (3.0, inf)):
        found = elementary.softplus(x, beta, threshold)
        y = wide * beta
        # Not torch's: without a threshold that overflows.
        wanted = torch.where(y > threshold, wide, (y.clamp(min=0) + torch.log1p(torch.exp(-y.abs()))) / beta)
        assert near(found, wanted)
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    assert near(elementary.elu(x, alpha, scale), F.selu(wide))
    assert near(elementary.elu(x, 0.3, 1.0, 1 / 0.3), F.celu(wide, 0.3))
    whole = torch.tensor([-3, 0, 2])
    for name in TRUE:
        assert same_bits(getattr(elementary, name)(whole), getattr(elementary, name)(whole.float()))
    assert same_bits(elementary.power(whole, 2), torch.tensor([9.0, 0.0, 4.0]))


# --- the same bits everywhere


@pytest.fixture(params=["compiled", "reference"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With numba and without."""
    if request.param == "compiled":
        pytest.importorskip("numba")
    monkeypatch.setattr(elementary, "numba_is_here", lambda: request.param == "compiled")
    return str(request.param)


@pytest.mark.parametrize("name", QUICK)
def test_compiled_loops_equal_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    from spikezip.ops.elementary import compiled

    for given in ((1.0, 20.0), (0.37, 5.0)) if name == "softplus" else ((),):
        wanted = expected(name, *given)
        assert same_bits(compiled.compute(name, patterns(), *given), wanted)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert same_bits(compiled.compute(name, patterns()[:200_001], *given), wanted[:200_001])
    assert same_bits(getattr(reference, name)(patterns()[:200_001], *given), wanted[:200_001])


@pytest.mark.parametrize("name", [name for name in QUICK if name != "root"])
def test_compiled_loops_equal_the_reference_before_they_round(name: str) -> None:
    """To the last bit of a float64: rounded to float32, few points of a billion would tell one order from another."""
    pytest.importorskip("numba")
    from spikezip.ops.elementary import compiled

    given = (0.37, 5.0) if name == "softplus" else ()
    x = patterns()[patterns().abs() < 20][:200_000]  # the exponentials of these are normal float64 numbers
    found = torch.empty(len(x), dtype=FLOAT64)
    compiled._LOOPS[name](x.numpy(), found.numpy(), *given)
    assert same_bits(found, getattr(reference, name)(x.double(), *given))


@pytest.mark.parametrize("name", QUICK)
def test_place_and_layout_do_not_matter(name: str, implementation: str) -> None:
    function, x, wanted = getattr(elementary, name), patterns()[:4096], expected(name)[:4096]
    for length in range(68):  # every number of values behind the last whole vector, from every place
        assert same_bits(function(x[length : 2 * length]), wanted[length : 2 * length])
    cube = (16, 32, 8)
    layouts: list[Callable[[Tensor], Tensor]] = [
        lambda t: t.view(cube).permute(2, 0, 1),
        lambda t: t.view(cube).transpose(0, 1)[:, None],
        lambda t: t.view(cube)[::2, 3:, ::3],
        lambda t: t[7].expand(3, 5),
        lambda t: t[:12].view(3, 4).t().expand(2, 4, 3),
        lambda t: t[11],
        lambda t: t.view(cube)[:, :0],
    ]
    for layout in layouts:
        before = layout(x).clone()
        assert same_bits(function(layout(x)), layout(wanted))
        assert same_bits(layout(x), before)
    assert function(x.view(64, 64).t()).stride() == (1, 64)  # without a copy
    assert not function(x.clone().requires_grad_()).requires_grad


OTHERS = tuple(name for name in (*TRUE, "power") if name not in QUICK)


@pytest.mark.parametrize("name", OTHERS)
def test_layout_does_not_matter_to_what_the_reference_computes(name: str) -> None:
    given = (0.3,) if name == "power" else ()
    function = getattr(elementary, name)
    wanted = function(patterns()[:4096], *given)
    x, wanted = patterns()[:4096].view(16, 32, 8), wanted.view(16, 32, 8)
    for permuted in ((2, 0, 1), (1, 0, 2)):
        assert same_bits(function(x.permute(permuted), *given), wanted.permute(permuted))
    assert same_bits(function(x[::2, 3:, ::3], *given), wanted[::2, 3:, ::3])
    assert same_bits(function(x[3, 4, 5], *given), wanted[3, 4, 5])
    assert function(x[:, :0], *given).shape == (16, 0, 8)
    # More than fits into a block, in memory's order and with gaps.
    row = patterns()[:100_002].view(2, -1)
    assert same_bits(function(row.t(), *given), torch.stack([function(part, *given) for part in row], dim=1))
    assert same_bits(function(patterns()[:140_000:2], *given), function(patterns()[:140_000], *given)[::2])


def mixed(device: str) -> Tensor:
    """Patterns of bits, and numbers of moderate size: made without a function that might differ between processors."""
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randint(-(2**31), 2**31, (3000,), generator=generator).to(torch.int32).view(torch.float32)
    return torch.cat([drawn, torch.arange(-1500, 1500) * 0.0123]).to(device)


def digest(names: tuple[str, ...]) -> str:
    """The bits of all results of the reference on the CPU."""
    found = hashlib.sha256()
    for x in (mixed("cpu"), mixed("cpu").double() * 1.1):
        for result in [getattr(reference, name)(x) for name in names] + [reference.power(x, 0.3)]:
            found.update(torch.where(result.isnan(), 7.0, result).numpy().tobytes())
    return found.hexdigest()


# In other processes only the functions are imported: the whole library takes longer than the test.
ALONE = f"""
import hashlib, sys, types
package = types.ModuleType("spikezip")
package.__path__ = {spikezip.__path__!r}
sys.modules["spikezip"] = package
import torch
from torch import Tensor
from spikezip.ops.elementary import reference

{inspect.getsource(mixed)}
{inspect.getsource(digest)}
"""
KERNEL = f"""
from spikezip.ops.elementary import triton

x = mixed("cuda" if torch.cuda.is_available() else "cpu")
for name in {QUICK!r}:
    given = (0.7, 5.0) if name == "softplus" else ()
    expected = getattr(reference, name)(x, *given)
    found = triton.compute(name, x.view(60, 100).t(), *given)
    assert found.stride() == (1, 100)
    found = found.t().reshape(-1)
    same = (found == expected) & (found.signbit() == expected.signbit()) | (found.isnan() & expected.isnan())
    assert bool(same.all()), name
    for length in (0, 1, 7):
        part = triton.compute(name, x[length : 2 * length], *given)
        assert torch.equal(part.nan_to_num(7.0), expected[length : 2 * length].nan_to_num(7.0)), name
    if name != "root":  # before it is rounded, too: of numbers whose exponentials are normal float64 numbers
        part = x[x.abs() < 20]
        found, wide = torch.empty_like(part, dtype=torch.float64), triton._wide(given, x.device)
        triton._kernel[(6,)](part, found, wide, len(part), name=name, block=1024, enable_fp_fusion=False)
        assert torch.equal(found.nan_to_num(7.0), getattr(reference, name)(part.double(), *given).nan_to_num(7.0)), name
assert triton.compute("exp", x[5]).shape == ()
"""


@pytest.mark.parametrize(("capability", "kernel"), [("default", KERNEL), ("avx2", "")], ids=["default", "avx2"])
def test_kernel_and_other_processors(capability: str, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel equals the reference, and that is the same with other instructions than the best that there are."""
    names = tuple(TRUE)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
    program = f"""
import platform
assert platform.machine() != "x86_64" or torch.backends.cpu.get_cpu_capability().lower() == {capability!r}
assert digest({names!r}) == {digest(names)!r}
"""
    interpreted.check(ALONE + program + kernel, alone=True)


@pytest.mark.parametrize("name", QUICK)
def test_the_kernel_fuses_nothing(name: str) -> None:
    """In the code for GPUs constants are float64, and operations say how they are rounded: so they stay apart."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from spikezip.ops.elementary.triton import _kernel

    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "wide_ptr": "*fp64", "size": "i32"}
    constants = {"name": name, "block": 32}
    source = ASTSource(_kernel, {**signature, **dict.fromkeys(constants, "constexpr")}, constants)
    for capability in (80, 90) if name in ("gelu", "softplus") else (80,):
        target = GPUTarget("cuda", capability, 32)
        code = triton.compile(source, target=target, options={"enable_fp_fusion": False, "num_warps": 1}).asm["ptx"]
        operations = re.findall(r"^\s+(?:@%p\d+ )?((?:fma|mad|add|sub|mul|div|rcp|sqrt)\.\S*f(?:32|64))", code, re.M)
        assert operations
        assert {operation.split(".")[1] for operation in operations} == {"rn"}
        assert not re.search(r"\bfma\.|\.ftz|\.approx|\bcall", code)
        if name != "root":  # which is rounded to float32 at once
            assert all(operation.endswith("f64") for operation in operations)
            # A float32 zero stands in for what is not loaded.
            assert set(re.findall(r"\b0f[0-9A-Fa-f]{8}\b", code)) <= {"0f00000000"}
