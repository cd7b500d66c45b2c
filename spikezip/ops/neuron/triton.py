"""A chunk of steps through a layer of neurons as one GPU kernel: read the running sums once, write the tracers once.

Exact by construction: the quotient is taken in float64 and rounded as the reference does it, without a product whose
sum a compiler could fuse; everything after that is small integers, and so are the counts, in whatever order they add.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _walk_kernel(
    u_ptr, tracer_ptr, out_ptr, counts_ptr, scale_ptr, steps, each, samples, lo, hi, max_spike, block: tl.constexpr
):
    sample = tl.program_id(1).to(tl.int64)
    within = tl.program_id(0) * block + tl.arange(0, block)
    inside = within < each
    here = sample * each + within
    scale = tl.load(scale_ptr).to(tl.float64)
    tracer = tl.load(tracer_ptr + here, mask=inside, other=0.0)
    for _ in range(steps):
        u = tl.load(u_ptr + here, mask=inside, other=0.0).to(tl.float64)
        code = tl.floor(u / scale + 0.5).to(tl.float64)
        code = tl.minimum(tl.maximum(code, lo), hi).to(tl.float32)
        spike = tl.minimum(tl.maximum(code - tracer, -max_spike), max_spike)
        tracer += spike
        tl.store(out_ptr + here, tracer, mask=inside)
        tl.atomic_add(counts_ptr + sample, tl.sum(tl.abs(spike)))
        u_ptr += samples * each  # the pointers move on to the next step
        out_ptr += samples * each
        counts_ptr += samples


def walk(
    u: Tensor, tracer: Tensor, scale: Tensor, lo: int, hi: int, max_spike: int, samples: int
) -> tuple[Tensor, Tensor]:
    """As `fast.walk`, for float32 tensors on a GPU (or anywhere, under Triton's interpreter)."""
    u, tracer = u.contiguous(), tracer.contiguous()
    steps, neurons = u.shape
    each = neurons // samples
    tracers = torch.empty_like(u)
    counts = u.new_zeros(steps, samples)
    grid = (triton.cdiv(each, BLOCK), samples)
    limits = (float(lo), float(hi), float(min(max_spike, hi - lo)))
    _walk_kernel[grid](u, tracer, tracers, counts, scale, steps, each, samples, *limits, block=BLOCK)
    return tracers, counts
