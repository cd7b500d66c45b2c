"""A chunk of steps through a layer of neurons as one GPU kernel: read the running sums once, write the tracers once.

Exact by construction: the quotient is taken in float64 and rounded as the reference does it, without a product whose sum a
compiler could fuse; everything after that is small integers, and so are the counts, whatever order they are added in.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _walk_kernel(  # type: ignore[no-untyped-def]
    u_ptr, tracer_ptr, out_ptr, counts_ptr, scale_ptr, steps, each, samples, lo, hi, max_spike, BLOCK: tl.constexpr
):
    sample = tl.program_id(1).to(tl.int64)
    within = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = within < each
    neurons = samples.to(tl.int64) * each
    here = sample * each + within
    scale = tl.load(scale_ptr).to(tl.float64)
    tracer = tl.load(tracer_ptr + here, mask=inside, other=0.0)
    for t in range(steps):
        u = tl.load(u_ptr + t * neurons + here, mask=inside, other=0.0).to(tl.float64)
        code = tl.floor(u / scale + 0.5).to(tl.float64)
        code = tl.minimum(tl.maximum(code, lo), hi).to(tl.float32)
        spike = tl.minimum(tl.maximum(code - tracer, -max_spike), max_spike)
        tracer += spike
        tl.store(out_ptr + t * neurons + here, tracer, mask=inside)
        tl.atomic_add(counts_ptr + t * samples + sample, tl.sum(tl.abs(spike)))


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
    _walk_kernel[grid](u, tracer, tracers, counts, scale, steps, each, samples, *limits, BLOCK=BLOCK)
    return tracers, counts
