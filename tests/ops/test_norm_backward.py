"""The gradients of LayerNorm as a kernel, against torch's own in float64.

On the GPU where there is one, else under Triton's interpreter, in a process of its own.
"""

import interpreted

CHECK = """
import torch
import torch.nn.functional as F
from spikezip.ops.norm import triton

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
for shape, with_weight in [((3, 5, 7), True), ((70, 384), True), ((1, 3000), False), ((33, 64), False), ((0, 8), True)]:
    x, grad = (torch.randn(shape).to(device) + 0.5 for _ in range(2))
    columns = shape[-1]
    weight = (torch.rand(columns) + 0.5).to(device) if with_weight else None
    bias = torch.zeros(columns, device=device)
    y, mean, deviation = triton.layer_norm(x, weight, bias, 1e-6)
    found = triton.backward(grad, x, weight, mean, deviation)
    wide = x.double().requires_grad_()
    w = (torch.ones(columns, device=device) if weight is None else weight).double().requires_grad_()
    b = bias.double().requires_grad_()
    F.layer_norm(wide, (columns,), w, b, 1e-6).backward(grad.double())
    for name, ours, right in zip("xwb", found, (wide.grad, w.grad, b.grad), strict=True):
        assert ours.shape == right.shape and ours.dtype == torch.float32
        # Sums of up to 3,000 float32 terms, of size one: some 1e-7 of each term, added up.
        assert torch.allclose(ours.double(), right, rtol=1e-4, atol=2e-4), (name, shape)
"""


def test_gradients_of_layer_norm() -> None:
    interpreted.check(CHECK)
