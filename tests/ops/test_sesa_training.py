"""Attention in training as kernels: forward equal to the same work in pieces, gradients as those of the float product.

On the GPU where there is one, else under Triton's interpreter, in a process of its own.
"""

import interpreted

CHECK = """
import torch
from spikezip.ops.lsq import reference as lsq
from spikezip.ops.rounding import reference as rounding
from spikezip.ops.sesa import triton_training as training
from spikezip.ops.softmax import reference as softmax

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
cases = [  # samples, queries, keys, heads, width, masks, levels of p
    (2, 5, 5, 2, 16, 0, 16),
    (1, 70, 130, 2, 32, 1, 32),
    (2, 40, 197, 1, 64, 2, 16),
    (1, 66, 256, 1, 16, 0, 256),
    (2, 20, 257, 2, 32, 1, 16),
    (1, 70, 300, 1, 16, 0, 32),
]
for batch, queries, keys, heads, width, masks, levels in cases:
    def codes(tokens, largest):
        shape = (batch, tokens, heads, width)
        return torch.randint(-largest, largest + 1, shape).to(device, torch.float16)  # the same on every device

    q, k, v = codes(queries, 15), codes(keys, 15), codes(keys, 15)
    mask = None
    if masks:
        hidden = (torch.rand(masks, queries, keys) < 0.3).to(device)
        hidden[..., 0] = False
        mask = torch.zeros(masks, queries, keys, device=device).masked_fill(hidden, torch.finfo(torch.float32).min)
    # A scale so small that the largest probabilities leave the range.
    steps = [torch.tensor(s, device=device) for s in (0.11, 0.13, 0.07, 0.6 / (levels - 1))]
    scales = training.Scales(*steps, levels - 1, 0.5)
    u, seen = training.forward(q, k, v, mask, scales)

    def by_head(x):
        return x.transpose(1, 2).float()

    total = (by_head(q).double() @ by_head(k).transpose(2, 3).double()).float()
    scores = total * (steps[0] * steps[1] * 0.5)
    if mask is not None:
        scores = scores + mask[:, None]
    p = softmax.softmax(scores)
    code = rounding.code(p, steps[3], 0, levels - 1)
    mixed = (code.double() @ by_head(v).double()).float() * (steps[3] * steps[2])
    assert torch.equal(u, mixed.transpose(1, 2)), (u - mixed.transpose(1, 2)).abs().max()

    grad = torch.randn(u.shape).to(device)
    grad_q, grad_k, grad_v, grad_scale = training.backward(grad, q, k, v, mask, scales, seen)
    # By hand, in float64. The kernels round gradients, and scores' gradients, to 11 bits before they multiply: each
    # term is off by 2^-11 of itself at most for each of two roundings, so a sum by that of the sum of magnitudes.
    g, ql, kl, vl = (x.transpose(1, 2).double() for x in (grad, q, k, v))
    weighted = g @ vl.transpose(2, 3) * steps[2].double()
    quotient = (p / steps[3]).double()
    inside = quotient <= levels - 1
    assert inside.any() and not inside.all()
    slope = torch.where(inside, code.double() - quotient, float(levels - 1))
    through = torch.where(inside, weighted, 0.0)
    p64 = p.double()
    inner = p64 * (through - (through * p64).sum(-1, keepdim=True))
    sizes = g.abs() @ vl.abs().transpose(2, 3) * steps[2].double()
    inner_sizes = p64 * (sizes + (sizes * p64).sum(-1, keepdim=True))
    by_key, key_sizes, turned = inner.transpose(2, 3), inner_sizes.transpose(2, 3), code.double().transpose(2, 3)
    sq, sk, sp = steps[0] * 0.5, steps[1] * 0.5, steps[3]
    expected = {
        "q": (grad_q, inner @ kl * sk, inner_sizes @ kl.abs() * sk),
        "k": (grad_k, by_key @ ql * sq, key_sizes @ ql.abs() * sq),
        "v": (grad_v, turned @ g * sp, turned @ g.abs() * sp),
    }
    for name, (found, right, size) in expected.items():
        assert found.shape == (q if name == "q" else k).shape
        error = (found.transpose(1, 2).double() - right).abs()
        assert bool((error <= 3 * 2.0**-11 * size + 1e-7).all()), (name, float((error / size).max()))
        assert float(error.mean()) < 1e-3 * float(right.abs().mean()), (name, float(error.mean() / right.abs().mean()))
    right, size = (weighted * slope).sum(), (sizes * slope.abs()).sum()
    assert abs(float(grad_scale - right)) <= 2.0**-11 * float(size), (float(grad_scale), float(right))
    assert torch.equal(lsq.slopes(weighted.float(), p, steps[3], 0, levels - 1)[0] != 0, through.float() != 0)
q[0, 1, 0, 3] = float("nan")
assert torch.isnan(training.forward(q, k, v, mask, scales)[0][0, 1, 0]).all()
"""


def test_training_attention() -> None:
    interpreted.check(CHECK)
