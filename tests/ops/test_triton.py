"""GPU kernels against their reference, bit for bit: on the GPU where there is one, else under Triton's interpreter."""

import interpreted

CHECK = """
import torch
from spikezip.ops.neuron import Neurons, fast, reference, triton
from spikezip.ops.rounding import reference as rounding

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
cases = [(1, 1, 1), (3, 2, 37), (5, 3, 1024), (4, 1, 1025), (7, 2, 2100)]
ranges = [(-16, 15), (0, 1), (-128, 127), (0, 255), (-2, 1)]
for (steps, samples, each), (lo, hi), m in zip(cases, ranges, [1, 2, 40, 1, 10**6]):
    scale = torch.rand(()) * 0.3 + 0.01
    u = torch.randn(steps, samples * each) * scale * hi
    # near-ties: the float32 neighbours of s·(k + 1/2)
    k = torch.randint(lo, hi + 1, u.shape)
    tie = (scale.double() * (k + 0.5)).float()
    tie = torch.where(torch.rand(u.shape) < 0.5, tie, torch.nextafter(tie, torch.tensor(float("inf"))))
    u = torch.where(torch.rand(u.shape) < 0.3, tie, u).to(device)
    tracer = torch.randint(lo, hi + 1, (samples * each,)).float().to(device)
    scale = scale.to(device)
    tracers, counts = triton.walk(u, Neurons(tracer, scale, lo, hi, m, samples))
    expected = reference.scan(rounding.code(u, scale, lo, hi), tracer, m)
    assert torch.equal(tracers, expected)
    spikes = expected - torch.cat([tracer[None], expected[:-1]])
    assert torch.equal(counts, spikes.abs().view(steps, samples, -1).sum(2))
    assert torch.equal(fast.walk(u, Neurons(tracer, scale, lo, hi, m, samples))[0], expected)

# Scales per channel, int8 tracers, and sums that are still integers.
shapes = [(3, 2, 12, 4), (2, 3, 2100, 700), (4, 1, 1, 1)]
for (steps, samples, each, channels), m, with_bias in zip(shapes, [1, 2, 1], [1, 0, 1]):
    for product in (False, True):
        scale = (torch.rand(channels) * 0.3 + 0.01).to(device) if channels > 1 else torch.tensor(0.07, device=device)
        wide = scale.repeat(samples * each // channels) if channels > 1 else scale
        tracer = torch.randint(-16, 16, (samples * each,), device=device).to(torch.int8)
        after = None
        u = torch.randn(steps, samples * each, device=device) * 3
        expected_u = u
        if product:
            u = torch.randint(-5000, 5000, u.shape, dtype=torch.int32, device=device)
            factor, bias = torch.rand(channels, device=device) * 1e-3, torch.randn(channels, device=device)
            after = (factor, bias if with_bias else None)
            expected_u = u.view(-1, channels).float() * factor
            expected_u = (expected_u + bias if with_bias else expected_u).view(u.shape)
            floats = triton.walk(u.float(), Neurons(tracer, scale, -16, 15, m, samples), after)[0]
        tracers, counts = triton.walk(u, Neurons(tracer, scale, -16, 15, m, samples), after)
        expected = reference.scan(rounding.code(expected_u, wide, -16, 15), tracer.float(), m)
        assert tracers.dtype == torch.int8 and torch.equal(tracers.float(), expected)
        assert not product or torch.equal(floats, tracers)
        found = fast.walk(u, Neurons(tracer, scale, -16, 15, m, samples), after)[0]
        assert torch.equal(found, tracers)
nan = torch.full((1, 3), float("nan"), device=device)
still = torch.zeros(3, dtype=torch.int8, device=device)
_, counts = triton.walk(nan, Neurons(still, torch.ones((), device=device), -4, 3, 1, 1))
assert bool(counts.isnan().all())
"""


def test_walk_equals_reference() -> None:
    interpreted.check(CHECK)
