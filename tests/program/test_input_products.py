"""Products of an input with constants, before the first site: the same in training, quantized and spiking."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spikezip


class Curves(nn.Module):
    """Each channel of the input through six curves, which are summed with trained weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.randn(4, 6, 5)), nn.Linear(5, 3)
        self.register_buffer("centers", torch.linspace(-2, 2, 6))

    def forward(self, x: Tensor) -> Tensor:
        curves = torch.exp(-((x[..., None] - self.centers) ** 2))
        return self.last(torch.einsum("bnig,igo->bno", curves, self.weight).relu())


class Experts(nn.Module):
    """The input times the weights of the two experts that a gate chooses for it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.last = nn.Linear(4, 3), nn.Linear(4, 3)
        self.weight = nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        share, chosen = self.gate(x).softmax(-1).topk(2, -1)
        each = (self.weight[chosen] @ x[..., None, :, None]).squeeze(-1)
        return self.last(torch.relu((each * share[..., None]).sum(-2)))


@pytest.mark.parametrize("placement", ["paper", "products"])
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("network", [Curves, Experts])
def test_one_value_everywhere(network: Any, bits: int, placement: Any) -> None:
    x = torch.randn(3, 7, 4)
    config = spikezip.QuantConfig(levels=16, weight_bits=bits, placement=placement)
    qann = spikezip.calibrate(spikezip.quantize(network(), config, example=x), x)
    assert torch.equal(qann.train()(x), qann.eval()(x))
    snn = spikezip.convert(qann)
    assert spikezip.verify(qann, snn, [x]).exact
    spike, *others = (spikezip.simulate(snn, x, 40, engine) for engine in ("spike", "folded", "event"))
    assert torch.equal(spike.logits, qann(x))
    assert all(torch.equal(run.logits_per_step, spike.logits_per_step) for run in others)


class OneByOne(nn.Module):
    """Each sample is a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.last(torch.relu(self.first(row))) for row in x.unbind()])


@pytest.mark.parametrize("bits", [8, None])
def test_vectors(bits: Any) -> None:
    x = torch.randn(3, 4)
    qann = spikezip.quantize(OneByOne(), spikezip.QuantConfig(weight_bits=bits), example=x)
    spikezip.calibrate(qann, x)
    assert torch.equal(qann.train()(x), qann.eval()(x))
    assert {site.shape for site in qann.sites.values()} == {(6,)}
    run = spikezip.simulate(spikezip.convert(qann), x, 40, "spike", count_neurons=True)
    assert {spikes.shape for spikes in run.neuron_spikes.values()} == {(6,)}
