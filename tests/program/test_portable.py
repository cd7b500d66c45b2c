"""What makes a network's codes depend on the machine is named, and nothing else is."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spikezip
from spikezip.program.analysis import not_portable

CONFIG = spikezip.QuantConfig(levels=16)


class Upsampled(nn.Module):
    """Interpolates what a layer gives, or the weights that it adds."""

    def __init__(self, weights_only: bool) -> None:
        super().__init__()
        self.weights_only = weights_only
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)
        self.places = nn.Parameter(torch.randn(1, 4, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.weights_only:
            return self.last(x + F.interpolate(self.places, (6, 6), mode="bilinear"))
        return self.last(F.interpolate(x, (9, 9), mode="bilinear"))


def names(model: nn.Module, batch: Tensor, config: spikezip.QuantConfig = CONFIG) -> tuple[str, ...]:
    qann = spikezip.calibrate(spikezip.quantize(model, config, example=batch), batch)
    found = not_portable(qann.program)
    assert not_portable(spikezip.convert(qann).program) == found
    return found


def test_a_network_of_own_functions_is_portable() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 3))
    assert names(model, torch.randn(3, 4)) == ()
    assert not spikezip.coverage(model, torch.randn(3, 4)).notes


def test_interpolation_of_activations_is_named() -> None:
    batch = torch.randn(2, 3, 8, 8)
    assert names(Upsampled(False), batch) == ("upsample_bilinear2d",)
    (note,) = spikezip.coverage(Upsampled(False), batch).notes
    assert "not portable" in note
    assert "upsample_bilinear2d" in note


def test_what_depends_on_weights_alone_is_stored() -> None:
    assert names(Upsampled(True), torch.randn(2, 3, 8, 8)) == ()


def test_float_weights_are_named() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    assert names(model, torch.randn(3, 4), spikezip.QuantConfig(weight_bits=None)) == ("float weights",)
