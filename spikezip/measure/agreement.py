"""Does training see the network that evaluation sees? Codes of both forward passes, compared with equality."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from spikezip.engines.quantized import quantized
from spikezip.program.batch import Batch, as_batches
from spikezip.quant.learn import learn
from spikezip.quant.network import QuantizedNetwork


@dataclass
class Agreement:
    """How many codes of the training forward pass are those of the grid, and the site where most differ."""

    codes: int = 0
    equal: int = 0
    worst_site: str | None = None

    @property
    def share(self) -> float:
        return self.equal / self.codes if self.codes else 1.0


@torch.no_grad()
def agreement(qann: QuantizedNetwork, batches: Iterable[Batch] | Batch) -> Agreement:
    """Compare the codes of every site between a training forward pass, dropout off, and one on the grid.

    With weights on the grid every code agrees: training computes on the grid too. With float weights sums are
    made in another order, or under autocast in another precision, and some codes fall on the other side.

    Example:
        >>> from torch import nn
        >>> from spikezip.models.networks import quantize
        >>> from spikezip.quant.calibration import calibrate
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> qann = calibrate(quantize(model, example=torch.randn(2, 4)), torch.randn(2, 4))
        >>> agreement(qann, torch.randn(2, 4)).worst_site is None
        True
    """
    total, worst = Agreement(), 0
    was_training = qann.training
    try:
        qann.eval()
        frozen = qann.frozen()
        for batch in as_batches(batches):
            inputs = qann.prepare(batch)
            learned: dict[str, Tensor] = {}
            learn(qann, inputs, learned)
            _, expected = quantized(frozen, inputs)
            for name, codes in expected.items():
                different = int((learned[name].to(codes) != codes).sum())
                total.codes += codes.numel()
                total.equal += codes.numel() - different
                if different > worst:
                    total.worst_site, worst = name, different
    finally:
        qann.train(was_training)
    return total
