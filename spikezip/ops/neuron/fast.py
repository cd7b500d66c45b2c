"""A chunk of steps through a layer of neurons: round, walk and count in one pass over the data."""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from spikezip.ops import rounding
from spikezip.ops.neuron import reference
from spikezip.ops.rounding.fast import BLOCK, has_inverse, make_scratch, round_block


@cache
def triton_is_here() -> bool:
    """Whether Triton is installed.

    Example:
        >>> triton_is_here() in (True, False)
        True
    """
    return find_spec("triton") is not None


def walk(
    u: Tensor, tracer: Tensor, scale: Tensor, lo: int, hi: int, max_spike: int, samples: int
) -> tuple[Tensor, Tensor]:
    """From running sums `[T, n]` and the tracer `[n]` before: tracers `[T, n]`, spikes per step and sample `[T, B]`.

    The n neurons are those of `samples` samples, one after another. A graded spike of m counts as m.

    Example:
        >>> u = torch.tensor([[2.2, -1.0], [2.2, -1.0], [2.2, 0.0]])
        >>> walk(u, torch.zeros(2), torch.tensor(1.0), -4, 3, 1, samples=2)
        (tensor([[ 1., -1.],
                [ 2., -1.],
                [ 2.,  0.]]), tensor([[1., 1.],
                [1., 0.],
                [0., 1.]]))
    """
    if scale.ndim:  # one per channel: the last dimension of what was flattened
        scale = scale.repeat(u.shape[1] // len(scale))
    elif u.dtype == torch.float32 and u.device.type == "cpu" and has_inverse(scale):
        return _walk_blocks(u.contiguous(), tracer, scale, lo, hi, max_spike, samples)
    elif u.dtype == torch.float32 and u.device.type == "cuda" and triton_is_here():
        from spikezip.ops.neuron import triton  # only where it is used: importing the library must not need it

        return triton.walk(u, tracer, scale, lo, hi, max_spike, samples)
    tracers = reference.scan(rounding.code(u, scale, lo, hi), tracer, max_spike)
    before = torch.cat([tracer[None], tracers[:-1]])
    counts = (tracers - before).abs_().reshape(len(u), samples, -1).sum(dim=2)
    return tracers, counts


def _walk_blocks(
    u: Tensor, tracer: Tensor, scale: Tensor, lo: int, hi: int, max_spike: int, samples: int
) -> tuple[Tensor, Tensor]:
    """On the CPU: blocks of neurons small enough that all steps of a block stay in cache."""
    steps, neurons = u.shape
    each = neurons // samples
    tracers = torch.empty_like(u)
    counts = u.new_zeros(steps, samples)
    inverse = 1 / scale
    if each <= BLOCK:  # whole samples, several at a time
        together = max(1, BLOCK // each)
        blocks = [(b * each, min(b + together, samples) * each) for b in range(0, samples, together)]
    else:  # pieces of one sample
        blocks = [
            (b * each + i, b * each + min(i + BLOCK, each)) for b in range(samples) for i in range(0, each, BLOCK)
        ]
    for start, stop in blocks:
        scratch = make_scratch(stop - start)
        spike = scratch[: stop - start]
        before = tracer[start:stop]
        first, last = start // each, -(-stop // each)
        for t in range(steps):
            now = tracers[t, start:stop]
            round_block(u[t, start:stop], scale, inverse, lo, hi, now, scratch)
            torch.sub(now, before, out=spike)
            spike.clamp_(-max_spike, max_spike)
            torch.add(before, spike, out=now)
            before = now
            if max_spike == 1 and last - first == 1:
                counts[t, first] += torch.dot(spike, spike)  # ternary: a spike is its own square, but for the sign
            else:
                counts[t, first:last] += spike.abs_().view(last - first, -1).sum(dim=1)
    return tracers, counts
