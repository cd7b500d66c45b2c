"""What a quantized network is right after `quantize`: its mode, its tensors, where samples lie."""

import pytest
import torch
from torch import Tensor, nn

import spikezip
from spikezip.errors import ConfigError


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_that_of_the_model(training: bool) -> None:
    qann = spikezip.quantize(layers().train(training), example=torch.randn(2, 4))
    assert {module.training for module in qann.modules()} == {training}


def test_tensors_made_in_inference_mode_can_be_trained_and_loaded() -> None:
    x = torch.randn(3, 4)
    with torch.inference_mode():
        qann = spikezip.calibrate(spikezip.quantize(layers(), example=x), x)
        snn = spikezip.convert(qann)
    for network in (qann, snn):
        network.load_state_dict(network.state_dict())
    qann.train()(x).sum().backward()
    assert all(parameter.grad is not None for parameter in qann.parameters())


def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(ConfigError, match="Flatten has no parameters"):
        spikezip.quantize(nn.Flatten(), example=torch.randn(2, 4))


class TimeFirst(nn.Module):
    """Each token sees the mean over time, which is the first dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x + x.mean(0, keepdim=True))


def test_samples_may_lie_in_the_second_dimension() -> None:
    x = torch.randn(5, 3, 4)
    qann = spikezip.calibrate(spikezip.quantize(TimeFirst().eval(), example=x, batch_dim=1), x)
    assert qann.program.symbols["b"] == ("x", 1)
    snn = spikezip.convert(qann)
    runs = [spikezip.simulate(snn, x, 40, engine) for engine in ("spike", "folded", "event")]
    assert all(torch.equal(run.logits, qann(x)) for run in runs)
    assert len(runs[0].t_eq) == 3
    torch.testing.assert_close(qann(x[:, 1:2]), qann(x)[:, 1:2], rtol=0, atol=0)
