"""Kernels that hold a product and the neurons behind it, against the same work in pieces, bit for bit.

On the GPU where there is one, else under Triton's interpreter, in a process of its own: whether Triton interprets is
decided when it is first imported.
"""

import interpreted
import pytest

START = """
import torch
from spikezip.ops.neuron import Neurons, reference, triton
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


def rests(steps, samples, share):
    # Spikes of a site: some samples rest in some steps, the first from the start, the last from the middle on.
    spikes = torch.randint(1, 9, (steps, samples), device=device).float()
    spikes[torch.rand(steps, samples, device=device) < share] = 0
    spikes[1:, 0] = 0
    spikes[steps // 2 :, -1] = 0
    return spikes


def still(x, spikes):
    # Codes `[T, rows, ...]` that stay as they are where their sample fires nothing.
    x, each = x.clone(), x.shape[1] // spikes.shape[1]
    for t in range(1, len(x)):
        keeps = (spikes[t] == 0).repeat_interleave(each)
        x[t, keeps] = x[t - 1, keeps]
    return x
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
        found, _ = triton.walk(u.to(device), Neurons(tracer.to(device), scale.to(device), lo, hi, max_spike, 1))
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
        x, weight, factor, bias, Neurons(tracer, scale, lo, hi, max_spike, samples)
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
_, counts = triton_product.walk_products(x, weight, factor, bias, Neurons(tracer, scale, lo, hi, max_spike, samples))
assert bool(counts[0].isnan().all()) and not bool(counts[1].isnan().any())
"""

RESTING_PRODUCT = """
from spikezip.ops.neuron import triton_product


def expected(x, weight, factor, bias, neurons):
    tracer, scale, lo, hi, max_spike, samples = neurons
    tracers, counts = [], []
    for i in range(len(weight)):
        u = (x.double() @ weight[i].double().t()).float() * factor[i] + bias[i]
        before = tracer[i].float()
        walked = reference.scan(rounding.code(u, scale[i], lo, hi).view(len(x), -1), before, max_spike)
        spikes = walked.diff(dim=0, prepend=before[None])
        tracers.append(walked), counts.append(spikes.abs().view(len(x), samples, -1).sum(2))
    return torch.stack(tracers), torch.stack(counts)


def layer(layers, rows, columns, depth, lo, hi, max_spike, samples, per_channel=False):
    weight, tracer = codes(-127, 127, layers, columns, depth), codes(lo, hi, layers, rows * columns)
    factor, bias = torch.rand(layers, columns, device=device) * 1e-3, torch.randn(layers, columns, device=device)
    scale = torch.rand(layers, *[columns] * per_channel, device=device) * 0.3 + 0.1
    return weight, factor, bias, Neurons(tracer, scale, lo, hi, max_spike, samples)


cases = [  # layers, steps, samples, rows of each, columns, depth, scale per channel, largest spike, lo, hi
    (1, 8, 2, 64, 16, 16, False, 1, -2, 1),  # a tile is a sample
    (2, 7, 5, 20, 144, 32, False, 2, -4, 3),  # tiles of several samples, and of pieces of them; rows past the end
    (1, 9, 2, 100, 32, 160, True, 1, 0, 3),
    (1, 6, 3, 1, 16, 16, False, 10**6, -16, 15),
    (1, 1, 2, 5, 16, 16, False, 1, -16, 15),
]
for layers, steps, samples, each, columns, depth, per_channel, max_spike, lo, hi in cases:
    spikes = rests(steps, samples, 0.4)
    x = still(codes(-16, 15, steps, samples * each, depth), spikes)
    args = layer(layers, samples * each, columns, depth, lo, hi, max_spike, samples, per_channel)
    wanted = expected(x, *args)
    for moved in (spikes, spikes.to(torch.float64), torch.ones_like(spikes), spikes * float("nan"), None):
        found, counts = triton_product.walk_products(x, *args, moved)
        assert torch.equal(found.float(), wanted[0]) and torch.equal(counts, wanted[1])
        assert counts[0].is_contiguous()

# Does it rest at all? Codes that differ where the spikes say that they rest: nobody must see them. Neurons that may
# fire as much as they like fire in the first step, are silent in the second, and rest from the third on: if the codes
# move no more in the rest of the chunk.
samples, each, steps, bad = 3, 64, 7, 99
spikes = torch.zeros(steps, samples, device=device)
spikes[:, 1] = 1.0
spikes[4, 2] = 3.0
x = still(codes(-16, 15, steps, samples * each, 32), spikes)
args = layer(2, samples * each, 144, 32, -16, 15, 10**6, samples)
poisoned = x.clone().view(steps, samples, each, -1)
poisoned[2:, 0] = bad
poisoned[6, 2] = bad
poisoned = poisoned.view(x.shape)
for given, moved, seen in ((poisoned, spikes, x), (poisoned, None, poisoned)):
    found, counts = triton_product.walk_products(given, *args, moved)
    wanted = expected(seen, *args)
    assert torch.equal(found.float(), wanted[0]) and torch.equal(counts, wanted[1])
assert not torch.equal(expected(x, *args)[0], expected(poisoned, *args)[0])
# While one of a tile's samples moves, or its neurons still walk, it rests for none of them.
spikes[2:, 0] = 1.0
found, _ = triton_product.walk_products(poisoned, *args, spikes)
sample = found.view(2, steps, samples, -1)[:, :, 0]
assert torch.equal(sample.float(), expected(poisoned, *args)[0].view(2, steps, samples, -1)[:, :, 0])
# What is not a number never rests: every step says so.
args[1][0, 3] = float("nan")
args = (*args[:3], args[3]._replace(max_spike=1))
x = x[:1].expand_as(x)
found, counts = triton_product.walk_products(x, *args, torch.zeros_like(spikes))
assert bool(counts[0].isnan().all()) and not bool(counts[1].isnan().any())
assert torch.equal(found, triton_product.walk_products(x, *args)[0])
"""

SOFTMAX = """
from spikezip.ops.softmax import fast, reference as plain, triton as softmax

for rows, columns in [(1, 1), (7, 3), (5, 197), (3, 256), (2, 1000), (3, 5000)]:
    x = torch.randn(rows, columns) * torch.tensor([0.1, 4, 30])[torch.arange(rows) % 3, None]
    x[:, columns // 2 :: 3] = float("-inf") if columns > 2 else 0.0
    p = softmax.softmax(x.to(device))
    assert torch.equal(p.cpu(), plain.softmax(x)) and torch.equal(p.cpu(), fast.softmax(x))
    turn = torch.randperm(columns)
    assert torch.equal(softmax.softmax(x[:, turn].to(device)).cpu(), plain.softmax(x)[:, turn])  # no order
x = torch.tensor([[float("-inf")] * 3, [0.0, 1.0, float("nan")], [0.0, float("inf"), 1.0], [-99.0, 0.0, -87.1]])
assert softmax.softmax(x.to(device)).isnan().any(1).tolist() == plain.softmax(x).isnan().any(1).tolist()
assert torch.equal(softmax.softmax(x.to(device))[3].cpu(), plain.softmax(x)[3])
"""

ATTENTION = """
from spikezip.ops.sesa import triton as sesa
from spikezip.ops.softmax import reference as softmax

cases = [  # steps, batch, samples, queries, keys, heads, shared heads, width, masks, largest spike, p held, o held
    (3, 2, 2, 5, 5, 2, 2, 32, 0, 1, 0, 0),
    (2, 2, 1, 70, 70, 2, 1, 32, 2, 2, 0, 0),
    (2, 1, 1, 40, 197, 1, 1, 64, 1, 1, 1, 1),
    (3, 1, 1, 70, 300, 2, 1, 32, 1, 1, 0, 0),
    (2, 2, 2, 20, 257, 1, 1, 64, 0, 2, 1, 0),
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
    before = p.tracer.clone()
    out, p_last, p_counts, o_counts = sesa.attention(
        q, k, v, mask, p, o, score_factor, mix_factor, max_spike, samples
    )
    assert torch.equal(p.tracer, before)
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

RESTING_ATTENTION = """
from spikezip.ops.sesa import triton as sesa

factors = torch.tensor(0.0021, device=device), torch.tensor(0.0043, device=device)


def layers(batch, queries, keys, heads, width, p_held, o_held):
    p = sesa.Layer(codes(0, 3, batch, heads, queries, keys), torch.tensor(0.031, device=device), 0, 3, p_held)
    o = sesa.Layer(codes(-2, 1, batch, queries, heads, width), torch.tensor(0.17, device=device), -2, 1, o_held)
    return p, o


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b))


cases = [  # steps, batch, samples, queries, keys, heads, shared heads, width, masks, largest spike, p held, o held
    (8, 4, 2, 5, 5, 2, 2, 32, 0, 1, 0, 0),  # two windows to a sample
    (6, 2, 2, 70, 70, 2, 1, 32, 2, 2, 0, 0),
    (7, 2, 2, 20, 197, 1, 1, 32, 0, 1, 2, 3),
    (6, 2, 2, 70, 260, 1, 1, 32, 1, 1, 0, 0),
    (7, 2, 2, 20, 257, 1, 1, 32, 0, 2, 3, 1),
]
for steps, batch, samples, queries, keys, heads, shared, width, masks, max_spike, p_held, o_held in cases:
    moved = [rests(steps, samples, 0.6) for _ in range(3)]
    windows = [spikes.repeat_interleave(batch // samples, dim=1) for spikes in moved]
    q = still(codes(-16, 15, steps, batch, queries, heads, width), windows[0])
    k, v = (still(codes(-16, 15, steps, batch, keys, shared, width), spikes) for spikes in windows[1:])
    mask = None
    if masks:
        hidden = torch.rand(masks, queries, keys, device=device) < 0.3
        mask = torch.zeros(masks, queries, keys, device=device).masked_fill(hidden, torch.finfo(torch.float32).min)
    args = (mask, *layers(batch, queries, keys, heads, width, p_held, o_held), *factors, max_spike, samples)
    wanted = sesa.attention(q, k, v, *args)  # which the other check holds to its parts
    assert same(sesa.attention(q, k, v, *args, False, moved), wanted)
    assert bool((sum(moved)[steps // 2 :, -1] == 0).all()) and bool((wanted[2] + wanted[3] > 0).any())

# Does it rest at all? As for products: in the third step and from then on nobody must see the codes, unless queries,
# keys or values move, one of them alone. Keys of one tile, of several, and of so many that tracers lie in memory.
for keys in (40, 130, 257):
    steps, batch = 7, 4
    moved = [torch.zeros(steps, batch, device=device) for _ in range(3)]
    for spikes in moved:
        spikes[0] = 1.0
    moved[0][4, 1] = moved[1][4, 2] = 2.0
    moved[2][4, 3] = float("nan")
    shapes = ((20, 1, 32), (keys, 1, 32), (keys, 1, 32))
    x = [still(codes(-16, 15, steps, batch, *shape), spikes) for shape, spikes in zip(shapes, moved)]
    poisoned = [each.clone() for each in x]
    for each in poisoned:
        each[2:, 0] = 99
        each[6, 1:] = -99
    rest = (None, *layers(batch, 20, keys, 1, 32, 0, 0), *factors, 10**6, batch)
    wanted = sesa.attention(*x, *rest)
    assert same(sesa.attention(*poisoned, *rest, False, moved), wanted)
    assert not same(sesa.attention(*poisoned, *rest), wanted)
    # Neurons that were held back may have wanted to fire: only a step later is it known what they do.
    held = (None, *layers(batch, 20, keys, 1, 32, 1, 2), *factors, 10**6, batch)
    x, moved = [each[:4] for each in x], [spikes[:4] for spikes in moved]
    assert same(sesa.attention(*x, *held, False, moved), sesa.attention(*x, *held))
    spoilt = (*rest[:3], factors[0] * float("nan"), *rest[4:])
    counts = sesa.attention(*x, *spoilt, False, moved)[2]
    assert bool(counts.isnan().all())
    # A mask that is no number spoils the counts of its queries, in every step.
    unknown = torch.zeros(1, 20, keys, device=device)
    unknown[0, 3] = float("nan")
    counts = sesa.attention(*x, unknown, *rest[1:], False, moved)[2]
    assert bool(counts.isnan().all())
"""

NORM = """
from spikezip.ops.norm import compiled, fast, reference as plain, triton as norm

shapes = [(1, 1, 0, 1), (5, 3, 0, 1), (4, 384, 3, 1), (3, 768, -50, 1e-3), (2, 5000, 0, 1e4)]
for rows, columns, offset, size in shapes:
    x = (torch.randn(rows, columns, device=device) + offset) * size
    weight, bias = torch.randn(columns, device=device), torch.randn(columns, device=device)
    for w, b in ((weight, bias), (weight, None), (None, None)):
        y, mean, deviation = norm.layer_norm(x, w, b, 1e-6)
        expected, on_cpu = plain.moments(x, 1e-6), [None if t is None else t.cpu() for t in (x, w, b)] + [1e-6]
        assert torch.equal(mean, expected[0].flatten()) and torch.equal(deviation, expected[1].flatten())
        assert torch.equal(y, plain.layer_norm(x, w, b, 1e-6))
        assert torch.equal(y, fast.layer_norm(x, w, b, 1e-6)) and torch.equal(y.cpu(), compiled.layer_norm(*on_cpu)[0])
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
    neurons = Neurons(tracer, scale, -16, 15, max_spike, samples)
    _, found, counts = norm.walk_norm(x, weight, bias, 1e-6, neurons)
    u = norm.layer_norm(x, weight, bias, 1e-6)[0]
    expected = reference.scan(rounding.code(u, scale, -16, 15).view(steps, -1), tracer.float(), max_spike)
    assert torch.equal(found.float(), expected)
    spikes = expected - torch.cat([tracer.float()[None], expected[:-1]])
    assert torch.equal(counts, spikes.abs().view(steps, samples, -1).sum(2))
    added, size = codes(-16, 15, *x.shape), torch.tensor(0.11, device=device)
    total, *found = norm.walk_norm(x, weight, bias, 1e-6, neurons, (added, size))
    assert torch.equal(total, x + added.float() * size)
    assert all(torch.equal(a, b) for a, b in zip(found, norm.walk_norm(total, weight, bias, 1e-6, neurons)[1:]))
x[0, 0, 0] = float("nan")
_, _, counts = norm.walk_norm(x, weight, bias, 1e-6, neurons)
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
    [ROUNDING, PRODUCT, RESTING_PRODUCT, SOFTMAX, ATTENTION, RESTING_ATTENTION, NORM],
    ids=["round", "product", "resting-product", "softmax", "attention", "resting-attention", "norm"],
)
def test_kernel_equals_its_parts(check: str) -> None:
    interpreted.check(START + check)
