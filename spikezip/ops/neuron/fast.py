"""A chunk of steps through a layer of neurons: round, walk and count in one pass over the data."""

import torch
from torch import Tensor

from spikezip.ops import grid, kernels, rounding
from spikezip.ops.compiled import numba_is_here
from spikezip.ops.neuron import reference
from spikezip.ops.neuron.layer import Layer, Source, Track, not_a_number
from spikezip.ops.neuron.reference import Neurons
from spikezip.ops.rounding.fast import BLOCK, has_inverse, make_scratch, round_block


def walk(u: Tensor, neurons: Neurons, after: tuple[Tensor, Tensor | None] | None = None) -> tuple[Tensor, Tensor]:
    """From running sums `[T, n]`: tracers `[T, n]`, spikes per step and sample `[T, B]`. A spike of m counts as m.

    Tracers come in the dtype of the tracer before: int8, where the codes fit into that, or a float.
    With `after`, `u` are the int32 sums of a product, and the running sums are these times a factor, plus a bias, both
    per channel: the last dimension of what was flattened.

    Example:
        >>> u = torch.tensor([[2.2, -1.0], [2.2, -1.0], [2.2, 0.0]])
        >>> walk(u, Neurons(torch.zeros(2), torch.tensor(1.0), -4, 3, max_spike=1, samples=2))
        (tensor([[ 1., -1.],
                [ 2., -1.],
                [ 2.,  0.]]), tensor([[1., 1.],
                [1., 0.],
                [0., 1.]]))
    """
    tracer, scale, lo, hi, max_spike, samples = neurons
    if u.dtype in (torch.float32, torch.int32) and kernels.on_gpu(u):
        from spikezip.ops.neuron import triton

        return triton.walk(u, neurons, after)
    if u.device.type == "cpu" and u.dtype in (torch.float32, torch.int32) and tracer.dtype == torch.int8:
        channels = max(scale.numel(), 1 if after is None else after[0].numel())
        source = Source((samples, u.shape[1] // (samples * channels), channels), *after or ())
        if numba_is_here() and Layer.suits(source, scale, lo, hi):
            track = Track(len(u), tracer, samples)
            layer = Layer(source, scale, lo, hi, max_spike)
            layer.follow(track, 0, u.contiguous(), list(range(len(u))), held=0, awake=True)
            return track.codes[1:], torch.from_numpy(track.counts)
    if after is not None:
        u = grid.scale_bias(u.view(-1, len(after[0])), *after).view(u.shape)
    if u.device.type == "cpu" and u.dtype == torch.float32 and not scale.ndim and has_inverse(scale):
        return _narrow(*_walk_blocks(u.contiguous(), neurons), tracer)
    each = scale.repeat(u.shape[1] // len(scale)) if scale.ndim else scale
    before = tracer.to(u.dtype)
    tracers = reference.scan(rounding.code(u, each, lo, hi), before, max_spike)
    counts = tracers.diff(dim=0, prepend=before[None]).abs_().reshape(len(u), samples, -1).sum(dim=2)
    return _narrow(tracers, counts, tracer)


def walk_products(
    codes: Tensor, weight: Tensor, factor: Tensor, bias: Tensor | None, neurons: Neurons, moved: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`walk` of products that are yet to be computed: int8 codes `[T, rows, in]` with int8 weights `[layers, out, in]`.

    The running sums are its integers times the factor, plus the bias, both `[layers, out]`. Tracers are `[layers, n]`,
    scales `[layers]`, or one for each channel as well. The n neurons of a layer are the rows of all samples with their
    channels, one after another. Returns tracers `[layers, T, n]` and spikes `[layers, T, samples]`.
    `moved` are the spikes `[T, samples]` of the site that the codes come from: where they are zero, the codes of a
    sample are those of the step before. Kernels compute nothing then for neurons that rest; others do not look at it.

    Example:
        >>> codes = torch.tensor([[[1, 2]], [[2, 2]]], dtype=torch.int8)
        >>> weight = torch.tensor([[[3, 4]]], dtype=torch.int8)
        >>> half, neurons = torch.tensor([[0.5]]), Neurons(torch.zeros(1, 1).char(), torch.ones(1), -8, 7, 4, samples=1)
        >>> walk_products(codes, weight, half, None, neurons)[0].tolist()
        [[[4], [7]]]
    """
    columns, depth = weight.shape[1:]
    if depth % 16 == 0 and columns % 16 == 0 and kernels.on_gpu(codes) and kernels.moves_tiles(codes.device):
        from spikezip.ops.neuron import triton_product

        return triton_product.walk_products(codes, weight, factor, bias, neurons, moved)
    walked = []
    for i, each in enumerate(weight):
        total = grid.linear(codes, each, torch.float32, 127).view(len(codes), -1)
        own = neurons._replace(tracer=neurons.tracer[i], scale=neurons.scale[i])
        walked.append(walk(total, own, (factor[i], None if bias is None else bias[i])))
    tracers, counts = zip(*walked, strict=True)
    return torch.stack(tracers), torch.stack(counts)


def _narrow(tracers: Tensor, counts: Tensor, tracer: Tensor) -> tuple[Tensor, Tensor]:
    """Tracers in the dtype of the one before."""
    if tracers.dtype != tracer.dtype:
        if not bool(torch.isfinite(counts).all()):  # no integer stands for a NaN
            raise not_a_number()
        tracers = tracers.to(tracer.dtype)
    return tracers, counts


def _walk_blocks(u: Tensor, neurons: Neurons) -> tuple[Tensor, Tensor]:
    """On the CPU: blocks of neurons small enough that all steps of a block stay in cache."""
    before_all, scale, lo, hi, max_spike, samples = neurons
    steps, tracer, each = len(u), before_all.to(u.dtype), u.shape[1] // samples
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
