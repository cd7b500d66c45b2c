"""The float network, evaluated for calibration."""

import torch
from torch import Tensor, nn

from spikezip.quant.network import quantize
from spikezip.quant.plain import evaluate_plain


class Ramped(nn.Module):
    """Makes a tensor from nothing in its forward pass, by an operator that has a function of our own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(torch.relu(self.first(x)) * torch.linspace(0.5, 1, 8))
        return y


def test_all_is_made_on_the_device_of_the_network() -> None:
    model, x = Ramped(), torch.randn(5, 4)
    qann = quantize(model, example=torch.randn(2, 4))
    found = evaluate_plain(qann.program, qann.tensors(), qann.prepare(x))
    torch.testing.assert_close(*found.values(), model(x))
    # A device that any machine has, and that does not go together with the CPU.
    tensors, inputs = ({k: v.to("meta") for k, v in y.items()} for y in (qann.tensors(), qann.prepare(x)))
    found = evaluate_plain(qann.program, tensors, inputs)
    assert [(y.device.type, y.shape) for y in found.values()] == [("meta", (5, 3))]
