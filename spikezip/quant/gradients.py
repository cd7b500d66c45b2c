"""Products in training: forward on the grid, bit for bit what `eval()` computes; backward as the float product's.

So there is no gap between what is trained and what is evaluated. Codes and 8-bit weights are small integers: on a GPU
their products run on the tensor cores in bfloat16, exactly. Backward, under autocast, only the incoming gradient is
rounded to bfloat16; weights and codes need no rounding.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spikezip.engines.synapses import Part, _grouped, integer_parts, windows
from spikezip.ops import grid
from spikezip.ops.lsq import reference as lsq
from spikezip.program.nodes import Convolution, Linear, Matmul

if TYPE_CHECKING:
    from spikezip.ops.sesa.triton_training import Scales

Grads = tuple[Tensor | None, ...]
_UNIT = 2.0**-grid.INPUT_FRACTION_BITS


@dataclass(frozen=True)
class Learned:
    """Integers with their scale, and what takes their gradient: a site's output, or a weight.

    `values` are `step · codes`; where only products read them, they have a gradient and no content. Those of a weight
    are the weight itself, off its grid: gradients go straight through. A float weight is its own codes, and `largest`
    is 0. Behind dropout, which leaves the grid, `codes` is None.
    """

    values: Tensor
    codes: Tensor | None
    step: Tensor
    largest: int

    @property
    def on_grid(self) -> Tensor:
        """The values of a weight on its grid, with the gradient of the weight."""
        assert self.codes is not None
        return as_frozen(self.values, self.codes.to(self.step.dtype) * _rows(self.step, self.codes))


class _AsFrozen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plain: Tensor, exact: Tensor) -> Tensor:
        return exact

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        return grad, None


def as_frozen(plain: Tensor, exact: Tensor) -> Tensor:
    """The value `exact`, as the frozen network has it, with the gradient of `plain`.

    Example:
        >>> x = torch.tensor([0.3], requires_grad=True)
        >>> as_frozen(2 * x, torch.tensor([0.5])).backward()
        >>> x.grad
        tensor([2.])
    """
    result: Tensor = _AsFrozen.apply(plain, exact)
    return result


class _Synapse(torch.autograd.Function):
    """`y = (codes · W_intᵀ) · (s_in · s_w) + b`; backward through values, `x = s_in · codes`, `W` straight through.

    A raw input is read in fixed point, and is its own value backward. A scale per channel of the input is part of
    `W_int`, and not of `s_in`.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, codes: Learned | None, w: Learned, node: Any
    ) -> Tensor:
        assert w.codes is not None
        ctx.node, ctx.low, dtype = node, backward_dtype(x), w.step.dtype
        if codes is None or codes.codes is None:
            # No bound is checked, which would make a GPU wait: `eval()` refuses an input that is too large.
            seen, parts = grid.fixed_point(x, None, ""), [Part(w.codes.flatten(1).double(), torch.float64)]
            factor, largest, ones = w.step.double() * _UNIT, 0, torch.ones_like(w.step)
            ctx.save_for_backward(x, w.codes.to(dtype) * _rows(w.step, w.codes), ones, ones[0])
        else:
            seen, parts, largest = codes.codes, _parts(w, codes.largest, node.name), codes.largest
            factor = w.step if codes.step.ndim else codes.step * w.step
            ctx.save_for_backward(seen, w.codes, w.step, codes.step)
        with torch.autocast(x.device.type, enabled=False):
            rows = seen if isinstance(node, Linear) else windows(seen, node, w.codes.shape[2:])
            groups = 1 if isinstance(node, Linear) else node.groups
            totals = [
                grid.linear(rows, part.weight, part.dtype, largest) if groups == 1 else _grouped(rows, part, groups)
                for part in parts
            ]
        total = totals[0]
        for low in totals[1:]:  # 16 bits are 256 times the upper half, plus the lower
            total = total.to(parts[0].dtype) * 256 + low
        if total.is_cuda and total.dtype == dtype == torch.float32:
            y = grid.scale_bias(total, factor, bias)  # one pass over the data, and not two
        else:
            y = total.mul_(factor.to(total.dtype)).to(dtype)
            y = y if bias is None else y.add_(bias)
        return y if isinstance(node, Linear) else y.movedim(-1, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        codes, w_codes, w_scale, step = ctx.saved_tensors
        node, low, (of_x, of_w, of_b, *_) = ctx.node, ctx.low, ctx.needs_input_grad
        grad_x = grad_w = None
        if isinstance(node, Convolution):
            scaled = grad * _rows(w_scale, grad[0])
            grad_b = grad.sum(dim=[0, *range(2, grad.ndim)]) if of_b else None
            grad_x, grad_w = _convolution_backward(scaled, codes, w_codes, node, low, (of_x, of_w))
        else:
            # Both products below start from the first; the second is the bias's.
            scaled, grad_b = grid.scaled_gradient(grad.reshape(-1, grad.shape[-1]), w_scale, low, of_b)
            if of_x:
                grad_x = product(scaled, w_codes.to(low)).view(codes.shape)
                # One scale per channel is in the weights, and not in the values that came in.
                grad_x = grad_x / step if step.ndim else grad_x
            if of_w:
                grad_w = product(scaled.t(), codes.reshape(-1, codes.shape[-1]).to(low))
        grad_w = None if grad_w is None else grad_w * (step / _rows(w_scale, w_codes))
        return grad_x, grad_w, grad_b, None, None, None


def _rows(scale: Tensor, x: Tensor) -> Tensor:
    """One scale for all as it is; one per row as what broadcasts over the rows of `x`."""
    return scale.view(-1, *[1] * (x.ndim - 1)) if scale.ndim else scale


def _parts(w: Learned, largest: int, what: str) -> list[Part]:
    """The weights with their accumulators; in bfloat16 as they are, where their sums are known to be exact."""
    assert w.codes is not None
    matrix = w.codes.flatten(1)
    if w.largest == 0:
        return [Part(matrix, matrix.dtype)]
    if matrix.dtype == torch.bfloat16 and matrix.shape[1] * 128 * largest < 2**24:
        return [Part(matrix, torch.float32)]
    return integer_parts(matrix.float(), 8 if w.largest < 128 else 16, largest, what)


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, node: Convolution, low: torch.dtype, wanted: tuple[bool, bool]
) -> Grads:
    """Gradients for input and weight, by torch's own kernels. These pad both sides alike, so padding comes before."""
    pads = [p for pair in reversed(node.padding) for p in pair]
    operands = (t.to(low) for t in (grad, F.pad(x, pads) if any(pads) else x, weight))
    none = [0] * len(node.stride)
    geometry = (node.stride, none, node.dilation, False, none, node.groups)
    found = torch.ops.aten.convolution_backward(*operands, None, *geometry, (*wanted, False))[:2]
    grad_x, grad_w = (g if g is None else g.to(grad.dtype) for g in found)
    return F.pad(grad_x, [-p for p in pads]) if grad_x is not None and any(pads) else grad_x, grad_w


def synapse(node: Linear | Convolution, x: Tensor | Learned, weight: Tensor | Learned, bias: Tensor | None) -> Tensor:
    """The product of a site's codes, or of a raw input, with weights."""
    site = x if isinstance(x, Learned) else None
    if isinstance(weight, Tensor):
        matrix = weight.detach() * site.step if site is not None and site.step.ndim else weight.detach()
        weight = Learned(weight, matrix, matrix.new_ones(len(matrix)), 0)
    result: Tensor = _Synapse.apply(x if isinstance(x, Tensor) else x.values, weight.values, bias, site, weight, node)
    return result


class _Matmul(torch.autograd.Function):
    """`y = (a_codes · b_codes) · (s_a · s_b · scaling)`; backward through values, `a = s_a · a_codes`, and b alike."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, left: Learned, right: Learned, node: Matmul) -> Tensor:
        assert left.codes is not None
        assert right.codes is not None
        ctx.save_for_backward(left.codes, right.codes, left.step, right.step)
        ctx.scaling, ctx.low, own = node.scaling, backward_dtype(a), left.step.dtype
        bound = a.shape[-1] * left.largest * right.largest
        dtype = torch.promote_types(grid.accumulator(bound, f"the product {node.name}"), own)
        total = grid.matmul(left.codes, right.codes, dtype, max(left.largest, right.largest))
        return total.mul_((left.step * right.step * node.scaling).to(dtype)).to(own)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        a_codes, b_codes, a_step, b_step = ctx.saved_tensors
        low = (grad * ctx.scaling).to(ctx.low)
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = (product(low, b_codes.to(ctx.low).transpose(-1, -2)) * b_step).sum_to_size(a_codes.shape)
        if ctx.needs_input_grad[1]:
            grad_b = (product(a_codes.to(ctx.low).transpose(-1, -2), low) * a_step).sum_to_size(b_codes.shape)
        return grad_a, grad_b, None, None, None


def matmul(node: Matmul, a: Learned, b: Learned) -> Tensor:
    """A product of the codes of two sites, or of a site and a constant."""
    result: Tensor = _Matmul.apply(a.values, b.values, a, b, node)
    return result


class _Attention(torch.autograd.Function):
    """All of attention between the codes of q, k, v and the input of the output's site, as GPU kernels."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, p: Tensor, codes: Any, mask: Tensor | None, scales: "Scales"
    ) -> Tensor:
        # Only where it is used: importing the library must not need it.
        from spikezip.ops.sesa import triton_training as training

        u, seen = training.forward(codes[0], codes[1], codes[2], mask, scales)
        ctx.save_for_backward(*codes, *seen, scales.q, scales.k, scales.v, scales.p, mask)
        ctx.fixed, ctx.shape = (scales.p_hi, scales.scaling), p.shape
        return u

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        from spikezip.ops.sesa import triton_training as training

        q, k, v, most, factor, *steps, mask = ctx.saved_tensors
        scales = training.Scales(*steps, *ctx.fixed)
        *grads, total = training.backward(grad, q, k, v, mask, scales, training.Seen(most, factor))
        samples, queries, heads, _ = q.shape
        share = lsq.share_of(samples * heads * queries * k.shape[1], scales.p_hi)
        return *grads, (total * share).to(scales.p.dtype).view(ctx.shape), None, None, None


def attention(q: Learned, k: Learned, v: Learned, p: Tensor, mask: Tensor | None, scales: "Scales") -> Tensor:
    """What reaches the site of the output, for q and v `[B, heads, tokens, d]` and k `[B, heads, d, tokens]`."""
    by_token = ((q, (0, 2, 1, 3)), (k, (0, 3, 1, 2)), (v, (0, 2, 1, 3)))
    codes = [x.codes.permute(dims) for x, dims in by_token if x.codes is not None]
    result: Tensor = _Attention.apply(*(x.values.permute(dims) for x, dims in by_token), p, codes, mask, scales)
    return result.transpose(1, 2)


def backward_dtype(x: Tensor) -> torch.dtype:
    """bfloat16 where autocast asks for it, else what the network computes in."""
    return torch.bfloat16 if x.is_cuda and torch.is_autocast_enabled("cuda") else x.dtype


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a · b`; of bfloat16 on a GPU with float32 sums and result.

    Example:
        >>> product(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
        tensor([[11.]])
    """
    if a.dtype != torch.bfloat16:
        return a @ b
    if a.ndim == 2:
        return torch.mm(a, b, out_dtype=torch.float32)
    outer = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left, right = (t.expand(*outer, *t.shape[-2:]).flatten(0, -3) for t in (a, b))
    return torch.bmm(left, right, out_dtype=torch.float32).view(*outer, a.shape[-2], b.shape[-1])
