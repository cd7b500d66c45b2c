"""Products in training: forward on the grid, bit for bit what `eval()` computes; backward as the float product's.

So there is no gap between what is trained and what is evaluated. Codes and 8-bit weights are small integers: on a GPU
their products run on the tensor cores in bfloat16, exactly, which also makes the forward pass cheap. Backward, under
autocast, only the incoming gradient is rounded to bfloat16; weights and codes need no rounding.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spikezip.ops import grid
from spikezip.ops.lsq import reference as lsq
from spikezip.quant.lsq import on_grid
from spikezip.spiking.attention import Attention
from spikezip.spiking.neuron import Neuron
from spikezip.spiking.synapse import Part, apply_synapse, integer_parts

if TYPE_CHECKING:
    from spikezip.ops.sesa.triton_training import Scales


class _GridLinear(torch.autograd.Function):
    """`y = (codes · W_intᵀ) · (s_in · s_w) + b`; backward through values, `x = s_in · codes`, `W` straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, codes: Tensor, layer: Any) -> Tensor:
        source: Neuron = layer.source
        w_codes, w_scale = layer.grid_weight(codes.dtype)
        y = apply_synapse(layer, codes, source, training_parts(w_codes, layer, source), w_scale, bias)
        ctx.save_for_backward(codes, w_codes, w_scale, source.step_size)
        ctx.low = backward_dtype(x)
        ctx.transposed = layer.transposed
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        codes, w_codes, w_scale, step = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        # Both products below start from the first; the second is the bias's.
        scaled, grad_b = grid.scaled_gradient(rows, w_scale, ctx.low, ctx.needs_input_grad[2])
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            grad_x = product(scaled, w_codes.to(ctx.low)).view(codes.shape)
            if step.ndim:  # one scale per channel is in the weights, and not in the values that came in
                grad_x = grad_x / step
        if ctx.needs_input_grad[1]:
            grad_w = product(scaled.t(), codes.reshape(-1, codes.shape[-1]).to(ctx.low)) * (step / w_scale[:, None])
            grad_w = grad_w.t() if ctx.transposed else grad_w
        return grad_x, grad_w, grad_b, None, None


def training_parts(w_codes: Tensor, layer: Any, source: Neuron) -> list[Part]:
    """The weights as apply_synapse wants them; in bfloat16 as they are, where their sums are known to be exact."""
    if w_codes.dtype == torch.bfloat16 and w_codes.shape[1] * 128 * source.largest < 2**24:
        return [Part(w_codes, torch.float32)]
    return integer_parts(w_codes.float(), layer.weight_bits, source.largest, layer.name)


def grid_linear(layer: Any, x: Tensor, codes: Tensor) -> Tensor:
    """A synapse in training: `layer` applied to the values `x`, whose codes are `codes`."""
    result: Tensor = _GridLinear.apply(x, layer.weight, layer.bias, codes, layer)
    return result


class _GridMatmul(torch.autograd.Function):
    """`y = (a_codes · b_codes) · (s_a · s_b · scaling)`; backward through values, `a = s_a · a_codes`, and b alike."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        a_codes: Tensor,
        b_codes: Tensor,
        sum_up: Any,
        scales: tuple[Tensor, Tensor, float],
    ) -> Tensor:
        y: Tensor = sum_up(a_codes, b_codes)
        ctx.save_for_backward(a_codes, b_codes, *scales[:2])
        ctx.scaling, ctx.low = scales[2], backward_dtype(a)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        a_codes, b_codes, a_step, b_step = ctx.saved_tensors
        low = (grad * ctx.scaling).to(ctx.low)
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = product(low, b_codes.to(ctx.low).transpose(-1, -2)) * b_step
        if ctx.needs_input_grad[1]:
            grad_b = product(a_codes.to(ctx.low).transpose(-1, -2), low) * a_step
        return grad_a, grad_b, None, None, None, None


Learned = tuple[Tensor, Tensor]  # values, with gradients, and codes
Codes = tuple[Tensor, Tensor, Tensor]  # of q, k and v


def grid_matmul(
    attention: Attention, tag: str, a: Learned, b: Learned, left: Neuron, right: Neuron, scaling: float
) -> Tensor:
    """A product of two sites of an attention in training."""

    def sum_up(a_codes: Tensor, b_codes: Tensor) -> Tensor:
        return attention.product(tag, a_codes, b_codes, left, right, scaling)

    scales = left.step_size, right.step_size, scaling
    result: Tensor = _GridMatmul.apply(a[0], b[0], a[1], b[1], sum_up, scales)
    return result


class _GridAttention(torch.autograd.Function):
    """All of attention between the codes of q, k, v and the input of the output's site, as GPU kernels."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, p_scale: Tensor, codes: Codes, mask: Tensor | None, scales: "Scales"
    ) -> Tensor:
        # Only where it is used: importing the library must not need it.
        from spikezip.ops.sesa import triton_training as training

        u, seen = training.forward(*codes, mask, scales)
        ctx.save_for_backward(*codes, *seen, scales.q, scales.k, scales.v, scales.p, mask)
        ctx.fixed, ctx.shape = (scales.p_hi, scales.scaling), p_scale.shape
        return u

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from spikezip.ops.sesa import triton_training as training

        q, k, v, most, factor, *steps, mask = ctx.saved_tensors
        scales = training.Scales(*steps, *ctx.fixed)
        *grads, total = training.backward(grad, q, k, v, mask, scales, training.Seen(most, factor))
        samples, queries, heads, _ = q.shape
        share = lsq.share_of(samples * heads * queries * k.shape[1], scales.p_hi)
        return *grads, (total * share).to(scales.p.dtype).view(ctx.shape), None, None, None


def grid_attention(
    attention: Attention, q: Learned, k: Learned, v: Learned, mask: Tensor | None, scaling: float
) -> Tensor:
    """What reaches the site of the output, `[B, tokens, heads, d]`, for codes of that shape of q, k and v."""
    from spikezip.ops.sesa.triton_training import Scales

    p = attention.p
    scales = Scales(attention.q.step_size, attention.k.step_size, attention.v.step_size, p.step_size, p.hi, scaling)
    codes = q[1], k[1], v[1]
    seen = None if mask is None else mask[:, 0]
    result: Tensor = _GridAttention.apply(q[0], k[0], v[0], p.scale, codes, seen, scales)
    return result


class _InputConv(torch.autograd.Function):
    """The input layer on the grid; backward as a float convolution's, weights straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.low, ctx.bias = layer, backward_dtype(x), None if bias is None else list(bias.shape)
        result: Tensor = layer.evaluate(x, check=False)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        layer, wanted = ctx.layer, list(ctx.needs_input_grad[:3])
        seen = on_grid(weight, layer.weight_bits) if wanted[0] else weight
        low = (t.to(ctx.low) for t in (grad, x, seen))
        geometry = (layer.stride, layer.padding, layer.dilation, False, [0, 0], layer.groups)
        grads = torch.ops.aten.convolution_backward(*low, ctx.bias, *geometry, wanted)
        grad_x, grad_w, grad_b = (g if g is None else g.to(x.dtype) for g in grads)
        return grad_x, grad_w, grad_b, None


def grid_conv(layer: Any, x: Tensor) -> Tensor:
    """The input layer `layer` in training, applied to the input `x`."""
    result: Tensor = _InputConv.apply(x, layer.weight, layer.bias, layer)
    return result


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
    return torch.bmm(a.flatten(0, -3), b.flatten(0, -3), out_dtype=torch.float32).view(*a.shape[:-1], b.shape[-1])
