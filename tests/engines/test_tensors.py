"""Tensors of a spiking network may be edited: what no run can work with is refused when a run starts."""

from math import inf, nan

import pytest
import torch
from torch import nn

import spikezip
from spikezip.engines.network import SpikingNetwork
from spikezip.errors import ConfigError

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def network() -> SpikingNetwork:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3))
    snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model, example=X), X))
    assert isinstance(snn, SpikingNetwork)
    return snn


@pytest.mark.parametrize("engine", ["spike", "folded", "event"])
@pytest.mark.parametrize("scale", [0.0, -1.0, nan, inf])
def test_scales_are_positive(engine: str, scale: float) -> None:
    snn = network()
    site = next(key for key in snn.state_dict() if key.endswith("site_scale"))
    snn.get_buffer(site).fill_(scale)
    with pytest.raises(ConfigError, match=rf"{site} holds {scale}: a scale must be positive; convert again"):
        spikezip.simulate(snn, X, engine=engine)
    with pytest.raises(ConfigError, match=site):
        snn(X)


def test_every_tensor_holds_numbers() -> None:
    for key, tensor in network().state_dict().items():
        if tensor.is_floating_point():
            snn = network()
            snn.get_buffer(key).view(-1)[-1] = nan
            with pytest.raises(ConfigError, match=f"{key} holds"):
                spikezip.simulate(snn, X)
