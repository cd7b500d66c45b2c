"""The functions of a program that are not left to torch: their results have the same bits everywhere.

Sums are sums of integers (`ops/sums`), curves are made of IEEE operations (`ops/elementary`); what lies between is
computed in float64, one operation at a time, and rounded once. Arguments are those of the operator of torch.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spikezip.ops import elementary, norm, softmax, sums
from spikezip.ops.hadamard import hadamard

Dims = int | Sequence[int] | None


def _wide(x: Tensor) -> Tensor:
    return x.detach().to(torch.float64)


def _dims(x: Tensor, dim: Dims) -> tuple[int, ...]:
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return tuple(range(x.ndim))
    return (dim,) if isinstance(dim, int) else tuple(dim)


# --- sums


def _sum(x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    if not x.is_floating_point():
        return x.sum(_dims(x, dim), keepdim=keepdim, dtype=dtype)
    return sums.total(x, _dims(x, dim), keepdim, _parts(x)).to(dtype or x.dtype)


def _mean(x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    return sums.mean(x, _dims(x, dim), keepdim, _parts(x)).to(dtype or x.dtype)


def _parts(x: Tensor) -> int:
    return 2 if x.dtype == torch.float64 else 1


def _cumsum(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return sums.running_total(x, dim).to(dtype or x.dtype) if x.is_floating_point() else x.cumsum(dim, dtype=dtype)


def _moments(x: Tensor, dim: Dims, correction: float | None, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Variance and mean, in float64."""
    dims = _dims(x, dim)
    mean = sums.mean(x, dims, keepdim=True)
    count = prod(x.shape[d] for d in dims)
    squares = sums.total((_wide(x) - mean).square(), dims, keepdim)
    variance = squares / torch.full_like(squares, max(count - (1 if correction is None else correction), 0))
    return variance, mean if keepdim else mean.squeeze(dims)


def _var(x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return _moments(x, dim, correction, keepdim)[0].to(x.dtype)


def _std(x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return elementary.root(_moments(x, dim, correction, keepdim)[0]).to(x.dtype)


def _var_mean(
    x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    variance, mean = _moments(x, dim, correction, keepdim)
    return variance.to(x.dtype), mean.to(x.dtype)


def _unbiased(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The older forms of `var` and `std`: `(x, unbiased)` or `(x, dim, unbiased, keepdim)`."""

    def older(x: Tensor, *given: Any, unbiased: bool = True, keepdim: bool = False) -> Tensor:
        if len(given) == 1 and isinstance(given[0], bool):
            return function(x, None, correction=int(given[0]))
        dim, *rest = given or (None,)
        flags = [*rest, *(unbiased, keepdim)[len(rest) :]]
        return function(x, dim, correction=int(flags[0]), keepdim=flags[1])

    return older


def _norm(
    x: Tensor, p: float | None = 2, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    dims, wide, p = _dims(x, dim), _wide(x).abs(), 2 if p is None else p
    if p in (float("inf"), -float("inf")):
        found = wide.amax(dims, keepdim) if p > 0 else wide.amin(dims, keepdim)
    elif p == 0:
        found = (wide != 0).sum(dims, keepdim=keepdim)
    elif p == 2:
        found = elementary.root(sums.total(wide * wide, dims, keepdim))
    else:
        found = sums.total(wide if p == 1 else elementary.power(wide, p), dims, keepdim)
        found = found if p == 1 else elementary.power(found, 1 / p)
    return found.to(dtype or x.dtype)


def _logsumexp(x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    dims, wide = _dims(x, dim), _wide(x)
    most = wide.amax(dims, keepdim=True)
    most = torch.where(most.isfinite(), most, 0)
    found = elementary.log(sums.total(elementary.exp(wide - most), dims, keepdim=True)) + most
    return (found if keepdim else found.squeeze(dims)).to(x.dtype)


def _log_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    wide = _wide(x)
    wide = wide - wide.amax(dim, keepdim=True)
    return (wide - elementary.log(sums.total(elementary.exp(wide), (dim,), keepdim=True))).to(dtype or x.dtype)


def _softmax(x: Tensor, dim: int, to: torch.dtype | None = None) -> Tensor:
    x = x if to is None else x.to(to)
    if dim % x.ndim != x.ndim - 1:
        return softmax.softmax(x.transpose(dim, -1)).transpose(dim, -1)
    return softmax.softmax(x)


def _half_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _softmax(x, dim, torch.float32 if half_to_float else None)


# --- norms


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    _: bool = True,
) -> Tensor:  # fmt: skip
    if len(shape) == 1:
        return norm.layer_norm(x, weight, bias, eps)
    flat_weight, flat_bias = (None if t is None else t.flatten() for t in (weight, bias))
    return norm.layer_norm(x.flatten(-len(shape)), flat_weight, flat_bias, eps).view(x.shape)


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    wide, dims = _wide(x), tuple(range(-len(shape), 0))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    y = wide / elementary.root(sums.mean(wide * wide, dims, keepdim=True) + eps)
    return (y if weight is None else y * _wide(weight)).to(x.dtype)


def _group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, _: bool = True
) -> Tensor:
    grouped = _wide(x).reshape(len(x), groups, -1)
    variance, mean = _moments(grouped, -1, 0, keepdim=True)
    y = ((grouped - mean) / elementary.root(variance + eps)).reshape(x.shape)
    return _per_channel(y, weight, bias).to(x.dtype)


def _instance_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, variance: Tensor | None, own: bool,
    momentum: float, eps: float, _: bool,
) -> Tensor:  # fmt: skip
    if own or mean is None or variance is None:
        return _group_norm(x, x.shape[1], weight, bias, eps)
    return _batch_norm(x, weight, bias, mean, variance, False, momentum, eps, False)


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, _: bool, momentum: float,
    eps: float, cudnn: bool,
) -> Tensor:  # fmt: skip
    """With the statistics of training: in evaluation there are no others."""
    shape = (1, -1, *(1,) * (x.ndim - 2))
    y = (_wide(x) - _wide(mean).view(shape)) / elementary.root(_wide(variance) + eps).view(shape)
    return _per_channel(y, weight, bias).to(x.dtype)


def _per_channel(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    shape = (1, -1, *(1,) * (y.ndim - 2))
    y = y if weight is None else y * _wide(weight).view(shape)
    return y if bias is None else y + _wide(bias).view(shape)


# --- pooling and sums by index


def _average_pool(dims: int) -> Callable[..., Tensor]:
    def pool(
        x: Tensor, size: Any, stride: Any = None, padding: Any = 0, ceil: bool = False, with_padding: bool = True,
        divisor: int | None = None,
    ) -> Tensor:  # fmt: skip
        size, padding = _each(size, dims), _each(padding, dims)
        steps = _each(stride or size, dims)
        whole, unit = sums.on_integers(x, tuple(range(-dims, 0)))
        summed = _window_sums(whole, size, steps, padding, ceil, 0)
        inside = torch.ones(x.shape[-dims:], dtype=torch.float64, device=x.device)
        count = _window_sums(inside, size, steps, padding, ceil, int(with_padding))
        count = count if divisor is None else torch.full_like(count, divisor)
        return (summed * unit / count).to(x.dtype)

    return pool


def _each(given: Any, dims: int) -> tuple[int, ...]:
    """One number for each dimension; one alone stands for all."""
    numbers = (given,) if isinstance(given, int) else tuple(given)
    return numbers * dims if len(numbers) == 1 else numbers


def _window_sums(x: Tensor, size: Any, steps: Any, padding: Any, ceil: bool, outside: float) -> Tensor:
    """Sums over windows of whole numbers, with `outside` in the padding; past it, where `ceil` reaches, are zeros."""
    dims, lengths = len(size), x.shape[-len(size) :]
    x = F.pad(x, [p for p in reversed(padding) for _ in range(2)], value=outside)
    for i, (length, width, step, pad) in enumerate(zip(lengths, size, steps, padding, strict=True)):
        places = (length + 2 * pad - width + (step - 1 if ceil else 0)) // step + 1
        places -= ceil and (places - 1) * step >= length + pad  # windows begin inside, or in the padding before
        missing = max((places - 1) * step + width - (length + 2 * pad), 0)
        dim = x.ndim - dims + i
        x = F.pad(x, [0, 0] * (dims - 1 - i) + [0, missing]).narrow(dim, 0, (places - 1) * step + width)
        whole = x.unfold(dim, width, step)  # the window becomes the last dimension
        finite = whole.isfinite()
        summed = torch.where(finite, whole, 0).to(torch.int64).sum(-1).to(torch.float64)
        x = summed + torch.where(finite, 0, whole).sum(-1)
    return x


def _adaptive_average_pool(dims: int) -> Callable[..., Tensor]:
    def pool(x: Tensor, size: Any) -> Tensor:
        whole, unit = sums.on_integers(x, tuple(range(-dims, 0)))
        count = torch.ones((), dtype=torch.float64, device=x.device)
        for i, places in enumerate(_each(size, dims)):
            dim = whole.ndim - dims + i
            length = whole.shape[dim]
            places = length if places is None else places
            bounds = [(j * length // places, -(-(j + 1) * length // places)) for j in range(places)]
            pieces = [whole.narrow(dim, first, last - first) for first, last in bounds]
            whole = torch.stack([sums.total(piece, (dim,)) for piece in pieces], dim)
            j = torch.arange(places, device=x.device)
            widths = -(-(j + 1) * length // places) - j * length // places
            count = count[..., None] * widths.to(torch.float64)
        return (whole * unit / count).to(x.dtype)

    return pool


def _scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _added_by_index(x, dim, source, lambda whole, more: whole.scatter_add(dim, index, more))


def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    source = source if alpha == 1 else source * alpha
    return _added_by_index(x, dim, source, lambda whole, more: whole.index_add(dim, index, more))


def _added_by_index(x: Tensor, dim: int, source: Tensor, add: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Sums of some values of `source` at each place, taken as sums of whole numbers; then they are added to `x`."""
    if not x.is_floating_point():
        return add(x, source)
    whole, unit = sums.on_integers(source, (dim,))
    if unit.numel() > 1:  # one unit for all: what meets at a place may come from any row
        largest = unit.amax()
        whole, unit = (whole * (unit / largest)).round(), largest
    return (_wide(x) + add(torch.zeros_like(x, dtype=torch.float64), whole) * unit).to(x.dtype)


# --- curves, and single operations that torch does otherwise on some machine


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return elementary.gelu_tanh(x) if approximate == "tanh" else elementary.gelu(x)


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    value, gate = x.chunk(2, dim)
    return (_wide(value) * elementary.sigmoid(_wide(gate))).to(x.dtype)


def _celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return elementary.elu(x, alpha, 1.0, 1 / alpha)


def _selu(x: Tensor) -> Tensor:
    return elementary.elu(x, 1.6732632423543772, 1.0507009873554805)


def _power(x: Tensor | float, exponent: Tensor | float) -> Tensor:
    if isinstance(x, Tensor) and not isinstance(exponent, Tensor) and exponent == 2:  # one product; it has a gradient
        return x * x
    if not isinstance(x, Tensor):
        assert isinstance(exponent, Tensor)
        dtype = exponent.dtype if exponent.is_floating_point() else torch.get_default_dtype()
        base = torch.full((), x, dtype=torch.float64, device=exponent.device)
        return elementary.power(base, exponent.to(torch.float64)).to(dtype)
    if not x.is_floating_point():
        return torch.pow(x, exponent)
    return elementary.power(x, exponent)


def _divide(x: Tensor, y: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
    """A GPU would multiply with the reciprocal of a number that does not lie on it."""
    if isinstance(y, Tensor):
        y = y.to(x.device)
    elif x.is_cuda:
        kind = torch.result_type(x, y)
        kind = kind if kind.is_floating_point or rounding_mode else torch.get_default_dtype()
        y = torch.full((), y, dtype=kind, device=x.device)  # no copy from the host, which a CUDA graph could not hold
    return torch.div(x, y, rounding_mode=rounding_mode)


def _remainder(x: Tensor, y: Tensor | float) -> Tensor:
    if not x.is_floating_point():
        return torch.remainder(x, y)
    rest = torch.fmod(x, y)  # exact; torch would go on in another way on each device
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def _hardsigmoid(x: Tensor) -> Tensor:
    return _divide((x + 3).clamp(0, 6), 6.0)


def _hardswish(x: Tensor) -> Tensor:
    return _divide(x * (x + 3).clamp(0, 6), 6.0)


def _addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    return (_wide(x) + (_wide(a) * _wide(b)) * value).to(x.dtype)


def _addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    return (_wide(x) + (_wide(a) / _wide(b)) * value).to(x.dtype)


def _lerp(x: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    weight = _wide(weight) if isinstance(weight, Tensor) else weight
    return (_wide(x) + (_wide(end) - _wide(x)) * weight).to(x.dtype)


def _product(x: Tensor, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """From the first factor to the last: products are rounded, so they have an order."""
    if not x.is_floating_point():
        return x.prod(dtype=dtype) if dim is None else x.prod(dim, keepdim, dtype=dtype)
    flat = _wide(x.flatten() if dim is None else x)
    found = torch.ones_like(flat.select(dim or 0, 0)) if flat.numel() else flat.prod(dim or 0)
    for factor in flat.unbind(dim or 0):
        found = found * factor
    return (found.unsqueeze(dim or 0) if keepdim else found).to(dtype or x.dtype)


def _cumulative_product(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    found = list(_wide(x).unbind(dim))
    for i in range(1, len(found)):
        found[i] = found[i - 1] * found[i]
    return torch.stack(found, dim).to(dtype or x.dtype) if found else x.cumprod(dim)


def _linspace(start: float, end: float, steps: int, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    numbers = torch.arange(steps, dtype=torch.float64)
    apart = (float(end) - float(start)) / max(steps - 1, 1)
    found = torch.where(numbers < steps - 1, numbers * apart + float(start), float(end))
    return (found if steps > 1 else numbers + float(start)).to(dtype or torch.get_default_dtype())


# --- the first of equals


def _sort(x: Tensor, *given: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
    flags = [g for g in given if isinstance(g, bool)]
    numbers = [g for g in given if not isinstance(g, bool) and g is not None]
    return torch.sort(x, stable=True, dim=numbers[0] if numbers else dim, descending=flags[-1] if flags else descending)


def _argsort(x: Tensor, *given: Any, **named: Any) -> Tensor:
    indices: Tensor = _sort(x, *given, **named)[1]
    return indices


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, _: bool = True) -> tuple[Tensor, Tensor]:
    values, indices = torch.sort(x, stable=True, dim=dim, descending=largest)
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)


def _extreme(largest: bool) -> Callable[..., Any]:
    def find(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is None:
            return x.amax() if largest else x.amin()
        indices = _first(x, dim, keepdim, largest)
        values = x.gather(dim, indices if keepdim else indices.unsqueeze(dim))
        return values if keepdim else values.squeeze(dim), indices

    return find


def _argument(largest: bool) -> Callable[..., Tensor]:
    def find(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        return _first(x.flatten(), 0, False, largest) if dim is None else _first(x, dim, keepdim, largest)

    return find


def _first(x: Tensor, dim: int, keepdim: bool, largest: bool) -> Tensor:
    """The place of the first of the largest (or smallest) values; a NaN counts as such."""
    if x.dtype == torch.bool:
        x = x.to(torch.uint8)
    best = x.amax(dim, keepdim=True) if largest else x.amin(dim, keepdim=True)
    places = torch.arange(x.shape[dim], device=x.device).view(-1, *(1,) * (x.ndim - 1 - dim % x.ndim))
    return torch.where((x == best) | (x != x), places, x.shape[dim]).amin(dim, keepdim=keepdim)


# --- what leaves values as they are


def _cast(x: Tensor, to: torch.dtype) -> Tensor:
    return x.to(to)


def _same(x: Tensor, *_: Any) -> Tensor:
    return x  # only training drops anything


def _getitem(values: Any, index: int) -> Any:
    return values[index]


def _channels(x: Tensor, chosen: Sequence[int]) -> Tensor:
    """Some channels (last dimension), by their numbers."""
    return torch.stack([x[..., channel] for channel in chosen], dim=-1)


_NAMED: dict[str, Callable[..., Any]] = {
    "sum.default": _sum,
    "sum.dim_IntList": _sum,
    "mean.default": lambda x, dtype=None: _mean(x, dtype=dtype),
    "mean.dim": _mean,
    "cumsum.default": _cumsum,
    "var.correction": _var,
    "var.dim": _unbiased(_var),
    "var.default": _unbiased(_var),
    "std.correction": _std,
    "std.dim": _unbiased(_std),
    "std.default": _unbiased(_std),
    "var_mean.correction": _var_mean,
    "norm.ScalarOpt_dim": _norm,
    "norm.Scalar": _norm,
    "linalg_vector_norm.default": _norm,
    "softmax.int": _softmax,
    "_softmax.default": _half_softmax,
    "log_softmax.int": _log_softmax,
    "logsumexp.default": _logsumexp,
    "layer_norm.default": _layer_norm,
    "group_norm.default": _group_norm,
    "instance_norm.default": _instance_norm,
    "batch_norm.default": _batch_norm,
    "rms_norm.default": _rms_norm,
    **{f"avg_pool{dims}d.default": _average_pool(dims) for dims in (1, 2, 3)},
    **{f"adaptive_avg_pool{dims}d.default": _adaptive_average_pool(dims) for dims in (1, 2, 3)},
    "scatter_add.default": _scatter_add,
    "index_add.default": _index_add,
    **{
        f"{name}.default": getattr(elementary, name)
        for name in (
            "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "sinh", "cosh", "tanh",
            "sigmoid", "erf", "erfc", "silu", "mish", "softplus", "elu", "log_sigmoid",
        )
    },
    "sqrt.default": elementary.root,
    "rsqrt.default": elementary.inverse_root,
    "gelu.default": _gelu,
    "selu.default": _selu,
    "celu.default": _celu,
    "glu.default": _glu,
    "pow.Tensor_Scalar": _power,
    "pow.Tensor_Tensor": _power,
    "pow.Scalar": _power,
    **dict.fromkeys(("div.Tensor", "div.Scalar", "true_divide.Tensor", "div.Tensor_mode", "div.Scalar_mode"), _divide),
    "remainder.Scalar": _remainder,
    "remainder.Tensor": _remainder,
    "hardsigmoid.default": _hardsigmoid,
    "hardswish.default": _hardswish,
    "addcmul.default": _addcmul,
    "addcdiv.default": _addcdiv,
    "lerp.Scalar": _lerp,
    "lerp.Tensor": _lerp,
    "prod.default": lambda x, dtype=None: _product(x, dtype=dtype),
    "prod.dim_int": _product,
    "cumprod.default": _cumulative_product,
    "linspace.default": _linspace,
    "sort.default": _sort,
    "sort.stable": _sort,
    "argsort.default": _argsort,
    "argsort.stable": _argsort,
    "topk.default": _topk,
    "max.default": _extreme(True),
    "max.dim": _extreme(True),
    "min.default": _extreme(False),
    "min.dim": _extreme(False),
    "argmax.default": _argument(True),
    "argmin.default": _argument(False),
    "to.dtype": _cast,
    **dict.fromkeys(("dropout.default", "alpha_dropout.default", "feature_dropout.default"), _same),
}  # fmt: skip

FUNCTIONS: dict[str, Callable[..., Any]] = {f"aten.{name}": own for name, own in _NAMED.items()} | {
    "getitem": _getitem,
    "spikezip.hadamard": hadamard,
    "spikezip.channels": _channels,
}
