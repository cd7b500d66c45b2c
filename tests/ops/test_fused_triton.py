"""Kernels that hold a product and the neurons behind it, against the same work in pieces, bit for bit.

On the GPU where there is one, else under Triton's interpreter, in a process of its own: whether Triton interprets is
decided when it is first imported.
"""

import os
import subprocess
import sys

import pytest
import torch

START = """
import torch
from spikezip.ops.neuron import reference, triton as neurons
from spikezip.ops.rounding import reference as rounding

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def neighbours(u):
    # up to three floats up or down
    for _ in range(3):
        u = torch.where(torch.rand(u.shape) < 0.3, torch.nextafter(u, torch.tensor(float("inf"))), u)
        u = torch.where(torch.rand(u.shape) < 0.3, torch.nextafter(u, torch.tensor(float("-inf"))), u)
    return u


def codes(lo, hi, *shape):
    return torch.randint(lo, hi + 1, shape, dtype=torch.int8, device=device)
"""

ROUNDING = """
# Scales from the smallest float to nearly the largest; sums at boundaries and beside them, and the extremes.
extremes = torch.tensor([0.0, -0.0, 3e38, -3e38, 1e-45, -1e-45, float("inf"), float("-inf")])
for trial, exponent in enumerate([*range(-149, 127, 12), -3, -2, -1, 0, 1, -20]):
    scale = torch.ldexp(torch.rand(()) + 1, torch.tensor(exponent)).float()
    lo, hi = [(-16, 15), (0, 31), (-128, 127), (0, 1), (-1, 0), (0, 255)][trial % 6]
    k = torch.randint(lo - 2, hi + 3, (2, 1500))
    u = neighbours((scale.double() * (k + 0.5)).float())
    u[0, : len(extremes)] = extremes
    tracer = torch.randint(lo, hi + 1, (1500,)).float()
    for max_spike in (1, 2, 10**6):
        found, _ = neurons.walk(u.to(device), tracer.to(device), scale.to(device), lo, hi, max_spike, 1)
        expected = reference.scan(rounding.code(u, scale, lo, hi), tracer, max_spike)
        assert torch.equal(found.cpu(), expected), (float(scale), lo, hi, max_spike)
"""

PRODUCT = """
from spikezip.ops.neuron import triton_product

cases = [  # layers, steps, samples, rows of each, columns, depth, scale per channel, bias, largest spike, lo, hi
    (1, 3, 2, 5, 16, 16, False, True, 1, -16, 15),
    (1, 2, 3, 67, 80, 144, True, True, 2, 0, 31),
    (2, 1, 1, 130, 64, 384, False, False, 10**6, -128, 127),
    (1, 4, 2, 64, 192, 128, True, False, 1, 0, 15),
    (3, 2, 2, 40, 144, 272, False, True, 1, -16, 15),
]
for layers, steps, samples, each, columns, depth, per_channel, with_bias, max_spike, lo, hi in cases:
    rows = samples * each
    x, weight = codes(-16, 15, steps, rows, depth), codes(-127, 127, layers, columns, depth)
    factor = torch.rand(layers, columns, device=device) * 1e-3
    bias = torch.randn(layers, columns, device=device) if with_bias else None
    scale = torch.rand(layers, *[columns] * per_channel, device=device) * 0.3 + 0.01
    tracer = codes(lo, hi, layers, rows * columns)
    found, counts = triton_product.walk_products(
        x, weight, factor, bias, tracer, scale, lo, hi, max_spike, samples
    )
    assert found.dtype == torch.int8
    for i in range(layers):
        u = (x.double() @ weight[i].double().t()).float() * factor[i]
        u = u if bias is None else u + bias[i]
        before = tracer[i].float()
        expected = reference.scan(rounding.code(u, scale[i], lo, hi).view(steps, -1), before, max_spike)
        assert torch.equal(found[i].float(), expected)
        spikes = expected - torch.cat([before[None], expected[:-1]])
        assert torch.equal(counts[i], spikes.abs().view(steps, samples, -1).sum(2))
factor[0, 3] = float("nan")
_, counts = triton_product.walk_products(x, weight, factor, bias, tracer, scale, lo, hi, max_spike, samples)
assert bool(counts[0].isnan().all()) and not bool(counts[1].isnan().any())
"""

SOFTMAX = """
from spikezip.ops.softmax import reference as plain, triton as softmax
from spikezip.ops.softmax.reference import units

for rows, columns in [(1, 1), (7, 3), (5, 197), (3, 256), (2, 1000), (3, 5000)]:
    x = (torch.randn(rows, columns) * 4).to(device)  # the same numbers on every device
    x[:, columns // 2 :: 3] = float("-inf") if columns > 2 else 0.0
    p = softmax.softmax(x)
    # Libraries differ in the last bits of an exponential.
    torch.testing.assert_close(p, plain.softmax(x), rtol=1e-5, atol=1e-9)
    # Each of the terms is rounded to a whole unit, so their sum is off by half a unit for each of them at most; and an
    # exponential of float32 by 1e-5 (its argument is rounded, up to 2^-18 where it is large).
    e = (x.double() - x.double().amax(-1, True)).exp()
    total = e.sum(-1, True)
    bound = columns / 2 / units(columns) / total + 1e-5
    assert bool(((p.double() - e / total).abs() <= bound * e / total + 1e-9).all())
    turn = torch.randperm(columns).to(device)
    assert torch.equal(softmax.softmax(x[:, turn]), p[:, turn])  # no order
assert bool(softmax.softmax(torch.full((1, 4), float("-inf"), device=device)).isnan().all())
"""

ATTENTION = """
from spikezip.ops.sesa import triton as sesa
from spikezip.ops.softmax import triton as softmax

cases = [  # steps, batch, samples, queries, keys, heads, shared heads, width, masks, largest spike, p held, o held
    (3, 2, 2, 5, 5, 2, 2, 32, 0, 1, 0, 0),
    (2, 2, 1, 70, 70, 2, 1, 32, 2, 2, 0, 0),
    (2, 1, 1, 40, 197, 1, 1, 64, 1, 1, 1, 1),
    (1, 1, 1, 66, 130, 2, 2, 64, 0, 10**6, 0, 0),
]
for steps, batch, samples, queries, keys, heads, shared, width, masks, max_spike, p_held, o_held in cases:
    q = codes(-16, 15, steps, batch, queries, heads, width)
    k, v = (codes(-16, 15, steps, batch, keys, shared, width) for _ in range(2))
    p = sesa.Layer(codes(0, 31, batch, heads, queries, keys), torch.tensor(0.031, device=device), 0, 31, p_held)
    o = sesa.Layer(codes(-16, 15, batch, queries, heads, width), torch.tensor(0.17, device=device), -16, 15, o_held)
    score_factor, mix_factor = torch.tensor(0.0021, device=device), torch.tensor(0.0043, device=device)
    mask = None
    if masks:
        hidden = torch.rand(masks, queries, keys, device=device) < 0.3
        mask = torch.zeros(masks, queries, keys, device=device).masked_fill(hidden, torch.finfo(torch.float32).min)
    out, p_last, p_counts, o_counts = sesa.attention(
        q, k, v, mask, p, o, score_factor, mix_factor, max_spike, samples
    )
    by_head = [x.transpose(2, 3).double() for x in (q, k, v)]
    by_head[1:] = [x.repeat_interleave(heads // shared, dim=2) for x in by_head[1:]]
    scores = (by_head[0] @ by_head[1].transpose(3, 4)).float() * score_factor
    if masks:
        scores = scores + mask[torch.arange(batch, device=device) % masks][None, :, None]

    def walk(layer, u, before):
        held = before.float().reshape(1, -1).expand(layer.held, -1)
        free = reference.scan(
            rounding.code(u.reshape(steps, -1)[layer.held :], layer.scale, layer.lo, layer.hi),
            before.float().reshape(-1), max_spike,
        ) if steps > layer.held else held[:0]
        return torch.cat([held, free])

    p_codes = walk(p, softmax.softmax(scores), p.tracer).view(scores.shape)
    mixed = (p_codes.double() @ by_head[2]).float() * mix_factor
    o_codes = walk(o, mixed.transpose(2, 3), o.tracer).view(q.shape)
    assert torch.equal(out.float(), o_codes) and torch.equal(p_last.float(), p_codes[-1])
    for counts, layer, found in ((p_counts, p, p_codes), (o_counts, o, o_codes)):
        spikes = found.diff(dim=0, prepend=layer.tracer[None].float())
        assert torch.equal(counts, spikes.abs().reshape(steps, samples, -1).sum(2))
_, _, counts, _ = sesa.attention(q, k, v, mask, p, o, score_factor * float("nan"), mix_factor, 1, samples)
assert bool(counts.isnan().all())
"""

NORM = """
from spikezip.ops.norm import fast, reference as plain, triton as norm

shapes = [(1, 1, 0, 1), (5, 3, 0, 1), (4, 384, 3, 1), (3, 768, -50, 1e-3), (2, 5000, 0, 1e4)]
for rows, columns, offset, size in shapes:
    x = (torch.randn(rows, columns, device=device) + offset) * size
    weight, bias = torch.randn(columns, device=device), torch.randn(columns, device=device)
    for w, b in ((weight, bias), (weight, None), (None, None)):
        y, mean, deviation = norm.layer_norm(x, w, b, 1e-6)
        expected = plain.moments(x, 1e-6)
        assert torch.equal(mean, expected[0].flatten()) and torch.equal(deviation, expected[1].flatten())
        assert torch.equal(y, plain.layer_norm(x, w, b, 1e-6))
        wide = x.double()
        exact = (wide - wide.mean(-1, True)) / (wide.var(-1, keepdim=True, correction=0) + 1e-6).sqrt()
        exact = exact if w is None else exact * w
        exact = exact if b is None else exact + b
        near = 2e-3 if offset < -9 else 2e-5  # `x − mean` in float32 loses what the offset takes
        torch.testing.assert_close(y.double(), exact, rtol=near, atol=near)
    turn = torch.randperm(columns).to(device)
    plainly = norm.layer_norm(x, None, None, 1e-6)[0]
    assert torch.equal(norm.layer_norm(x[:, turn], None, None, 1e-6)[0], plainly[:, turn])  # no order
zeros = norm.layer_norm(torch.zeros(2, 8, device=device), None, None, 1e-6)[0]
assert torch.equal(zeros, torch.zeros_like(zeros))

for steps, samples, each, columns, per_channel, max_spike in [(3, 2, 5, 24, False, 1), (2, 1, 7, 384, True, 2)]:
    rows = samples * each
    x = torch.randn(steps, rows, columns, device=device) * 3
    weight, bias = torch.randn(columns, device=device), torch.randn(columns, device=device)
    scale = torch.rand(columns, device=device) * 0.3 + 0.01 if per_channel else torch.tensor(0.2, device=device)
    tracer = codes(-16, 15, rows * columns)
    found, counts = norm.walk_norm(x, weight, bias, 1e-6, tracer, scale, -16, 15, max_spike, samples)
    u = norm.layer_norm(x, weight, bias, 1e-6)[0]
    expected = reference.scan(rounding.code(u, scale, -16, 15).view(steps, -1), tracer.float(), max_spike)
    assert torch.equal(found.float(), expected)
    spikes = expected - torch.cat([tracer.float()[None], expected[:-1]])
    assert torch.equal(counts, spikes.abs().view(steps, samples, -1).sum(2))
    added, size = codes(-16, 15, *x.shape), torch.tensor(0.11, device=device)
    limits = (tracer, scale, -16, 15, max_spike, samples)
    total, *found = norm.walk_sum(x, (added, size), weight, bias, 1e-6, *limits)
    assert torch.equal(total, x + added.float() * size)
    assert all(torch.equal(a, b) for a, b in zip(found, norm.walk_norm(total, weight, bias, 1e-6, *limits)))
x[0, 0, 0] = float("nan")
_, counts = norm.walk_norm(x, weight, bias, 1e-6, tracer, scale, -16, 15, max_spike, samples)
assert bool(counts[0].isnan().any())

# Gradients are those of torch.
x = torch.randn(4, 24, device=device, requires_grad=True)
weight = torch.randn(24, device=device, requires_grad=True)
bias = torch.randn(24, device=device, requires_grad=True)
push = torch.randn(4, 24, device=device)
grads = []
for function in (fast._LayerNorm.apply, lambda x, w, b, eps: torch.nn.functional.layer_norm(x, (24,), w, b, eps)):
    grads.append(torch.autograd.grad((function(x, weight, bias, 1e-6) * push).sum(), (x, weight, bias)))
for a, b in zip(*grads):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # mean and deviation differ in the last bit
"""


@pytest.mark.parametrize(
    "check",
    [ROUNDING, PRODUCT, SOFTMAX, ATTENTION, NORM],
    ids=["round", "product", "softmax", "attention", "norm"],
)
def test_kernel_equals_its_parts(check: str) -> None:
    pytest.importorskip("triton")
    env = {**os.environ} if torch.cuda.is_available() else {**os.environ, "TRITON_INTERPRET": "1"}
    program = START + check + "print('equal')"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "equal", done.stderr
