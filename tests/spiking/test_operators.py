"""Spike-Softmax and Spike-LayerNorm: what they emit adds up to what the function gives for the whole input."""

import pytest
import torch
from torch import nn

from spikezip.spiking import SpikeLayerNorm, SpikeOperator, SpikeSoftmax


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        (SpikeSoftmax(), torch.nn.Softmax(dim=-1)),
        (SpikeLayerNorm(norm := nn.LayerNorm(16, eps=1e-6).double()), norm),
    ],
)
def test_deltas_add_up(operator: SpikeOperator, function: nn.Module) -> None:
    for seed in (0, 1):  # the second time after a reset
        generator = torch.Generator().manual_seed(seed)
        train = torch.randint(-1, 2, (12, 4, 16), generator=generator).double()
        operator.reset()
        with torch.no_grad():
            emitted = sum(operator(x) for x in train)
            expected = function(train.sum(dim=0))
        assert torch.equal(operator.state.accumulated, train.sum(dim=0))
        # Twelve differences of float64 numbers near one, each rounded once: 12 · 2^-52.
        torch.testing.assert_close(emitted, expected, rtol=0, atol=12 * 2.0**-52 * 8)


def test_the_epsilon_is_kept() -> None:
    norm = nn.LayerNorm(4, eps=0.5)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert torch.equal(SpikeLayerNorm(norm)(x), norm(x))
