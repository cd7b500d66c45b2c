"""The operations that a program may hold besides products: an allow-list, and how each is evaluated in floats.

A function gives the same bits for the same numbers: wherever they lie in a tensor, however large the batch is, on every
device and with every instruction set. Those for which that does not hold are `WIDE`; a network with such a function is
not portable (`program/analysis.py`).
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spikezip.errors import CoverageError
from spikezip.ops import grid, sums
from spikezip.program.arithmetic import FUNCTIONS
from spikezip.program.nodes import Convolution, Function, Linear, Matmul, Node, Ref, Rows, map_arguments
from spikezip.program.sizes import Bindings, Size


class Kind(Enum):
    """What a function does, and with it why its result does not depend on where and by whom it is computed.

    MOVE: elements are moved, repeated or dropped, never changed; zeros may come in. It works on codes as on values.
    SELECT: as MOVE, but some elements are left out.
    IEEE: single IEEE operations (+ − × ÷ √, comparisons, roundings) and whole numbers: they have one right result.
    SUM: sums, means and what is made of them, taken as sums of integers, which have no order.
    CURVE: transcendental functions of our own, made of IEEE operations (`spikezip/ops/elementary`).
    WIDE: anything else, evaluated by torch in float64 and rounded. Its last bits may depend on the machine.
    """

    MOVE = "move"
    SELECT = "select"
    IEEE = "ieee"
    SUM = "sum"
    CURVE = "curve"
    WIDE = "wide"


def operators(names: str) -> list[str]:
    """The full names of operators, given as `name` or `name.overload`.

    Example:
        >>> operators("relu add.Tensor")
        ['aten.relu.default', 'aten.add.Tensor']
    """
    return [f"aten.{name}" if "." in name else f"aten.{name}.default" for name in names.split()]


_MOVE = operators(
    "reshape flatten.using_ints unflatten.int transpose.int permute unsqueeze squeeze squeeze.dim "
    "squeeze.dims expand t numpy_T movedim.int movedim.intlist swapaxes expand_as view_as reshape_as "
    "repeat tile repeat_interleave.self_int roll flip unfold pixel_shuffle pixel_unshuffle channel_shuffle im2col "
    "atleast_2d dropout alpha_dropout feature_dropout broadcast_to pad"
)
_SELECT = operators(
    "slice.Tensor select.int index_select gather index.Tensor narrow diagonal triu tril take_along_dim constant_pad_nd"
)
_IEEE = operators(
    "add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar rsub.Tensor mul.Tensor mul.Scalar div.Tensor div.Scalar "
    "div.Tensor_mode div.Scalar_mode true_divide.Tensor reciprocal sqrt rsqrt neg abs relu relu6 hardtanh clamp "
    "clamp.Tensor clamp_min clamp_min.Tensor clamp_max clamp_max.Tensor maximum minimum max.other min.other where.self "
    "where.ScalarOther where.ScalarSelf where.Scalar masked_fill.Scalar masked_fill.Tensor eq.Scalar eq.Tensor "
    "ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar gt.Tensor ge.Scalar ge.Tensor "
    "__and__.Tensor __or__.Tensor __xor__.Tensor __and__.Scalar __or__.Scalar bitwise_and.Tensor bitwise_or.Tensor "
    "bitwise_xor.Tensor bitwise_not bitwise_and.Scalar bitwise_or.Scalar logical_and logical_or logical_not "
    "logical_xor floor ceil round trunc frac sign sgn isnan isinf isfinite floor_divide floor_divide.Scalar "
    "remainder.Scalar remainder.Tensor fmod.Scalar fmod.Tensor any any.dim any.dims "
    "all all.dim amax amin max max.dim min min.dim "
    "argmax argmin sort sort.stable argsort argsort.stable topk max_pool1d max_pool2d max_pool3d adaptive_max_pool1d "
    "adaptive_max_pool2d max_pool2d_with_indices prelu leaky_relu threshold hardsigmoid hardswish hardshrink "
    "softshrink addcmul addcdiv lerp.Scalar lerp.Tensor diff prod prod.dim_int cumprod "
    "upsample_nearest1d upsample_nearest1d.vec upsample_nearest2d upsample_nearest2d.vec upsample_nearest3d.vec "
    "cat stack to.dtype type_as zeros_like ones_like full_like empty_like fill.Scalar fill.Tensor "
    "arange arange.start arange.start_step zeros ones full scalar_tensor eye eye.m new_zeros new_ones new_full "
    "new_empty empty.memory_format linspace tril_indices triu_indices embedding index_put scatter.src scatter.value "
    "slice_scatter select_scatter index_copy index_fill.int_Scalar masked_scatter bucketize.Tensor "
    "searchsorted.Tensor one_hot meshgrid.indexing meshgrid bitwise_left_shift.Tensor_Scalar "
    "bitwise_right_shift.Tensor_Scalar __lshift__.Scalar __rshift__.Scalar split.Tensor split.sizes split_with_sizes "
    "chunk unbind.int tensor_split.sections real imag view_as_real view_as_complex square isin.Tensor_Tensor "
    "_is_all_true _is_any_true cummax cummin nan_to_num complex conj batch_norm"
)
_SUM = operators(
    "sum sum.dim_IntList mean mean.dim cumsum var.correction var.dim var std.correction std.dim std "
    "var_mean.correction norm.ScalarOpt_dim norm.Scalar linalg_vector_norm softmax.int _softmax log_softmax.int "
    "logsumexp layer_norm group_norm instance_norm rms_norm avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
    "adaptive_avg_pool2d adaptive_avg_pool3d scatter_add index_add"
)
_CURVE = operators(
    "exp exp2 expm1 log log1p log2 log10 sin cos tan sinh cosh tanh sigmoid erf erfc gelu silu mish softplus elu selu "
    "celu log_sigmoid glu pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar"
)
_WIDE = operators(
    "erfinv asin acos atan atan2 hypot logaddexp upsample_bilinear2d upsample_bilinear2d.vec upsample_bicubic2d "
    "upsample_bicubic2d.vec upsample_linear1d upsample_linear1d.vec upsample_trilinear3d.vec _upsample_bilinear2d_aa "
    "_upsample_bicubic2d_aa grid_sampler cosine_similarity cdist dist scatter_reduce.two fft_fft fft_fftn fft_fft2 "
    "fft_rfft fft_rfft2 fft_rfftn fft_ifft fft_ifftn fft_irfft fft_irfft2 fft_irfftn polar col2im linalg_norm "
    "_weight_norm native_group_norm"
)

KINDS: dict[str, Kind] = {
    **dict.fromkeys(_MOVE, Kind.MOVE),
    **dict.fromkeys(_SELECT, Kind.SELECT),
    **dict.fromkeys(_IEEE, Kind.IEEE),
    **dict.fromkeys(_SUM, Kind.SUM),
    **dict.fromkeys(_CURVE, Kind.CURVE),
    **dict.fromkeys(_WIDE, Kind.WIDE),
    "getitem": Kind.IEEE,
    "causal_mask": Kind.IEEE,
    "spikezip.hadamard": Kind.IEEE,
    "spikezip.channels": Kind.SELECT,
}

# Activations that are no ReLU: a spiking network computes them again whenever their input has changed.
ACTIVATIONS = frozenset(
    operators("gelu silu mish softplus elu selu celu tanh sigmoid hardswish hardsigmoid leaky_relu prelu erf")
)
_FOR_FLOATS = frozenset(operators("im2col pad"))
# These make tensors from nothing: they are told on which device. Of whole numbers, any device makes the same.
_FACTORIES = frozenset(
    operators("arange arange.start arange.start_step zeros ones full scalar_tensor eye eye.m linspace tril_indices "
           "triu_indices empty.memory_format")
)  # fmt: skip


def kind_of(op: str, where: str) -> Kind:
    """How a function is evaluated; a `CoverageError` if it is not on the list."""
    if op not in KINDS:
        raise CoverageError(
            f"{op} in {where or 'the model'} is not supported: it is neither a product nor a known function. "
            "Write the model without it, or add it to spikezip/program/functions.py"
        )
    return KINDS[op]


def torch_operator(op: str) -> Callable[..., Any]:
    """The operator of torch that an allowed name stands for."""
    _, name, overload = op.split(".")
    found: Callable[..., Any] = getattr(getattr(torch.ops.aten, name), overload)
    return found


def evaluate(op: str, args: Any, kwargs: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """The result of a function on tensors and numbers; `dtype` is that of its result.

    Example:
        >>> evaluate("aten.silu.default", (torch.tensor([0.0, 1.0]),), {}, torch.float32, torch.device("cpu"))
        tensor([0.0000, 0.7311])
    """
    own = FUNCTIONS.get(op)
    if op in _FACTORIES:
        fractions = "arange" in op and any(isinstance(x, float) and not x.is_integer() for x in args)
        if own is None and not fractions:
            return torch_operator(op)(*args, **kwargs, device=device)
        return (own or torch_operator(op))(*args, **kwargs).to(device)  # by one and the same device
    if own is not None:
        return own(*args, **kwargs)
    if op == "causal_mask":
        return _causal_mask(dtype, device, *args)
    if KINDS[op] is Kind.WIDE:
        return _rounded(torch_operator(op), args, kwargs, dtype)
    if op in _FOR_FLOATS and not args[0].is_floating_point():  # torch moves no integers here
        return torch_operator(op)(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
    return torch_operator(op)(*args, **kwargs)


def is_differentiable(op: str, args: Any) -> bool:
    """Whether gradients go through `evaluate`; for other functions they are those of torch's own operator.

    Example:
        >>> [is_differentiable(f"aten.{name}", ()) for name in ("relu.default", "softmax.int", "gelu.default")]
        [True, True, False]
    """
    squares = op == "aten.pow.Tensor_Scalar" and args[1] == 2
    return squares or op in _DIFFERENTIABLE or (op not in FUNCTIONS and KINDS[op] is not Kind.WIDE)


_DIFFERENTIABLE = frozenset(
    operators("softmax.int layer_norm to.dtype div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode dropout "
              "alpha_dropout feature_dropout")
) | {"getitem", "spikezip.hadamard", "spikezip.channels"}  # fmt: skip


def _causal_mask(dtype: torch.dtype, device: torch.device, queries: int, keys: int) -> Tensor:
    """Where a query may not look: the lowest number; elsewhere 0."""
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device).tril()
    return torch.zeros(queries, keys, dtype=dtype, device=device).masked_fill_(~seen, torch.finfo(dtype).min)


def _rounded(function: Callable[..., Any], args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    def widen(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.to(_WIDER.get(x.dtype, x.dtype))
        if isinstance(x, torch.dtype):
            return _WIDER.get(x, x)
        if isinstance(x, dict):
            return {k: widen(v) for k, v in x.items()}
        return type(x)(map(widen, x)) if isinstance(x, (tuple, list)) else x

    result = function(*widen(args), **widen(kwargs))
    if isinstance(result, Tensor):
        return result.to(dtype)
    return tuple(x.to(_NARROW[dtype].get(x.dtype, x.dtype)) for x in result)


_WIDER = {torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64}
_WIDER[torch.complex64] = torch.complex128
# What a wide result of several tensors becomes again, by the dtype of the node: in a float64 network it stays.
_NARROW: dict[torch.dtype, dict[torch.dtype, torch.dtype]] = {
    torch.float32: {torch.float64: torch.float32, torch.complex128: torch.complex64},
    torch.float64: {},
}


# --- the values of nodes in floats: how a network computes before it is quantized


def function_value(node: Function, values: Mapping[str, Any], sizes: Bindings, device: torch.device) -> Any:
    """The value of a function, given those of all nodes that it reads and what the symbols stand for."""

    def bound(x: Any) -> Any:
        if isinstance(x, Ref):
            return values[x.name]
        return x.at(sizes) if isinstance(x, Size) else x

    args, kwargs = map_arguments(node.args, bound), map_arguments(node.kwargs, bound)
    return evaluate(node.op, args, kwargs, node.dtype, device)


def float_value(node: Node, values: Mapping[str, Any], sizes: Bindings, device: torch.device) -> Any:
    """The value of a function or of a product of floats, which is summed without an order.

    A convolution of floats is summed by torch in float64: its last bits may depend on the machine.
    """
    if isinstance(node, Function):
        return function_value(node, values, sizes, device)
    if isinstance(node, Rows):
        rows = values[node.x]
        codes, scale = grid.weight_grid(rows.reshape(-1, rows.shape[-1]), node.bits)
        return (codes * scale[:, None]).view(rows.shape)
    if isinstance(node, Matmul):
        y = sums.matmul(values[node.a], values[node.b])
        return (y if node.scaling == 1 else y * node.scaling).to(node.dtype)
    if isinstance(node, Linear):
        x = values[node.x]
        y = sums.matmul(torch.atleast_2d(x), values[node.weight].T).view(*x.shape[:-1], -1)
        return (y if node.bias is None else y + _in_double(values[node.bias])).to(node.dtype)
    return plain_product(node, lambda name: _in_double(values[name])).to(node.dtype)


def _in_double(x: Tensor) -> Tensor:
    return x.to(torch.float64) if x.is_floating_point() else x


def plain_product(node: Node, value: Callable[[str], Tensor]) -> Tensor:
    """A product in the dtype of its operands, by torch's own kernels."""
    if isinstance(node, Matmul):
        y = torch.matmul(value(node.a), value(node.b))
        return y if node.scaling == 1 else y * node.scaling
    assert isinstance(node, (Linear, Convolution))
    x, weight = value(node.x), value(node.weight)
    bias = None if node.bias is None else value(node.bias)
    if isinstance(node, Linear):
        return F.linear(x, weight, bias)
    pads = [p for pair in reversed(node.padding) for p in pair]
    x = F.pad(x, pads) if any(pads) else x
    function: Any = (F.conv1d, F.conv2d, F.conv3d)[len(node.stride) - 1]
    result: Tensor = function(x, weight, bias, node.stride, 0, node.dilation, node.groups)
    return result
