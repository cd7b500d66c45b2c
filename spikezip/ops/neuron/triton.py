"""A chunk of steps through a layer of neurons as one GPU kernel: read the running sums once, write the tracers once.

Exact by construction: codes are decided as the reference does it (`ops/rounding/triton.py`); everything after that is
small integers, and so are the counts, in whatever order they add.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from spikezip.ops.neuron.reference import Neurons
from spikezip.ops.rounding.triton import next_spike, unit

BLOCK = 1024


@triton.jit(do_not_specialize=["pitch", "steps", "samples"])  # compiled once for all numbers of them
def _walk_kernel(
    u_ptr, tracer_ptr, out_ptr, counts_ptr, scale_ptr, factor_ptr, bias_ptr, pitch, steps, each, samples, channels,
    product_channels, lo, hi, max_spike,
    of_product: tl.constexpr, with_bias: tl.constexpr, ternary: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(1).to(tl.int64)
    within = tl.program_id(0) * block + tl.arange(0, block)
    inside = within < each
    here = sample * each + within
    scale, first, second = unit(tl.load(scale_ptr + within % channels, mask=inside, other=1.0))
    tracer = tl.load(tracer_ptr + here, mask=inside, other=0).to(tl.float32)
    if of_product:
        factor = tl.load(factor_ptr + within % product_channels, mask=inside, other=0.0)
        if with_bias:
            bias = tl.load(bias_ptr + within % product_channels, mask=inside, other=0.0)
    for _ in range(steps):
        u = tl.load(u_ptr + here, mask=inside, other=0)
        if of_product:
            u = u.to(tl.float32) * factor
            if with_bias:
                u += bias
        spike = next_spike(u * first * second, tracer, scale, lo, hi, max_spike, ternary)
        tracer += spike
        tl.store(out_ptr + here, tracer.to(out_ptr.dtype.element_ty), mask=inside)
        nan = tl.where(u == u, 0.0, u)  # a NaN has no code: it spoils the count
        tl.atomic_add(counts_ptr + sample, tl.sum(tl.abs(spike) + nan))
        u_ptr += pitch  # the pointers move on to the next step
        out_ptr += samples * each
        counts_ptr += samples


def walk(u: Tensor, neurons: Neurons, after: tuple[Tensor, Tensor | None] | None = None) -> tuple[Tensor, Tensor]:
    """As `fast.walk`, for tensors on a GPU (or anywhere, under Triton's interpreter). A NaN makes a count NaN."""
    u = u if u.stride() == (0, 1) else u.contiguous()  # the same in all steps, or one after another
    tracer, scale, lo, hi, max_spike, samples = neurons
    tracer = tracer.contiguous()
    steps, each = len(u), u.shape[1] // samples
    tracers = torch.empty(u.shape, dtype=tracer.dtype, device=u.device)
    counts = torch.zeros(steps, samples, device=u.device)
    factor, bias = (scale, None) if after is None else after
    grid = (triton.cdiv(each, BLOCK), samples)
    limits = (float(lo), float(hi), float(min(max_spike, hi - lo)))
    _walk_kernel[grid](
        u, tracer, tracers, counts, scale.contiguous(), factor.contiguous(),
        (factor if bias is None else bias).contiguous(), u.stride(0), steps, each, samples, max(scale.numel(), 1),
        factor.numel(), *limits, of_product=after is not None, with_bias=bias is not None,
        ternary=max_spike == 1, block=BLOCK,
        enable_fp_fusion=False,  # the product and the sum are each rounded, as torch does it
    )  # fmt: skip
    return tracers, counts
