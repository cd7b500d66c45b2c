"""Products in training: forward on the grid, bit for bit what `eval()` computes; backward as the float product's.

So there is no gap between what is trained and what is evaluated. Codes and 8-bit weights are small integers: on a GPU
their products run on the tensor cores in bfloat16, exactly, which also makes the forward pass cheap. Backward, under
autocast, only the incoming gradient is rounded to bfloat16; weights and codes need no rounding.
"""

from typing import Any

import torch
from torch import Tensor

from spikezip.spiking.attention import Attention
from spikezip.spiking.neuron import Neuron
from spikezip.spiking.synapse import Part, apply_synapse, integer_parts


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
        scaled = (rows * w_scale).to(ctx.low)  # both gradients below start from it
        grad_x = grad_w = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_x = product(scaled, w_codes.to(ctx.low)).view(codes.shape)
            if step.ndim:  # one scale per channel is in the weights, and not in the values that came in
                grad_x = grad_x / step
        if ctx.needs_input_grad[1]:
            grad_w = product(scaled.t(), codes.reshape(-1, codes.shape[-1]).to(ctx.low)) * (step / w_scale[:, None])
            grad_w = grad_w.t() if ctx.transposed else grad_w
        if ctx.needs_input_grad[2]:
            grad_b = rows.sum(dim=0)
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


def grid_matmul(
    attention: Attention, tag: str, a: Learned, b: Learned, left: Neuron, right: Neuron, scaling: float
) -> Tensor:
    """A product of two sites of an attention in training."""

    def sum_up(a_codes: Tensor, b_codes: Tensor) -> Tensor:
        return attention.product(tag, a_codes, b_codes, left, right, scaling)

    scales = left.step_size, right.step_size, scaling
    result: Tensor = _GridMatmul.apply(a[0], b[0], a[1], b[1], sum_up, scales)
    return result


class _Straight(torch.autograd.Function):
    """The first tensor forward, the second backward."""

    @staticmethod
    def forward(ctx: Any, exact: Tensor, approximate: Tensor) -> Tensor:
        ctx.dtype = approximate.dtype
        return exact

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad.to(ctx.dtype)


def straight(exact: Tensor, approximate: Tensor) -> Tensor:
    """`exact`, with the gradients of `approximate`.

    Example:
        >>> x = torch.tensor(1.0, requires_grad=True)
        >>> y = straight(torch.tensor(2.0), 3 * x)
        >>> y.backward()
        >>> y.item(), x.grad.item()
        (2.0, 3.0)
    """
    result: Tensor = _Straight.apply(exact, approximate)
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
