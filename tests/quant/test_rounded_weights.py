"""Weights that are rounded together."""

import torch
from torch import Tensor, nn

import spikezip
from spikezip.quant.rounding import round_weights
from spikezip.quant.samples import Sample


def test_weights_are_rounded_so_that_errors_cancel() -> None:
    """The product with the codes that were seen is nearer to the float weights'; each row keeps its scale."""
    torch.manual_seed(0)
    x = torch.randn(512, 16) @ torch.randn(16, 16)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 8))
    qann = spikezip.calibrate(spikezip.quantize(model, example=x), x, "quick").eval()
    u = torch.tanh(model[0](x)).detach()
    step, site = float(qann.scale("2.in").detach()), qann.sites["2.in"]
    codes = (u / step + 0.5).floor().clamp(site.lo, site.hi)

    def error() -> Tensor:
        integers, scale = qann.frozen().codes("2.weight.grid")
        return (codes @ (integers.float() * scale[:, None] - model[2].weight.detach()).T).square().sum(0)

    nearest, scales = error(), qann.frozen().codes("2.weight.grid")[1]
    round_weights(qann, {"2.in": Sample(u, torch.ones_like(u), torch.ones(len(u)))})
    assert bool((error() <= nearest).all())
    assert float(error().sum()) < 0.5 * float(nearest.sum())
    assert torch.allclose(qann.frozen().codes("2.weight.grid")[1], scales, rtol=1e-6)
    assert spikezip.verify(qann, spikezip.convert(qann), x[:32]).exact
