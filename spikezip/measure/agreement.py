"""Does training see the network that evaluation sees? Codes of both forward passes, compared with equality."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikezip.batches import Batch, prepare
from spikezip.execution import SiteLike, executing
from spikezip.measure.comparison import Recording
from spikezip.quant.model import QuantizedModel
from spikezip.quant.synapse import QuantSynapse


@dataclass
class Agreement:
    """How many codes of the training forward pass are those of the grid, and the site where most differ."""

    codes: int = 0
    equal: int = 0
    worst_site: str | None = None

    @property
    def share(self) -> float:
        return self.equal / self.codes if self.codes else 1.0


class _Learning(Recording):
    watches = True

    def learned(self, site: SiteLike, codes: Tensor) -> None:
        self.seen[site.name] = codes


@contextmanager
def training_forward(qann: QuantizedModel) -> Iterator[None]:
    """Inside the block sites and products compute as in training, while dropout stays off."""
    was_training = qann.training
    qann.eval()
    synapses = [m for m in qann.modules() if isinstance(m, QuantSynapse)]
    glue = [synapse.plain_glue for synapse in synapses]
    try:
        for site in qann.sites.values():
            site.training = True
        for synapse in synapses:
            synapse.plain_glue = True
        yield
    finally:
        for synapse, plain in zip(synapses, glue, strict=True):
            synapse.plain_glue = plain
        qann.train(was_training)


@torch.no_grad()
def agreement(qann: QuantizedModel, batches: Iterable[Batch] | Batch) -> Agreement:
    """Compare the codes of every site between a training forward pass, dropout off, and one on the grid.

    With weights on the grid every code agrees: training computes on the grid too. With float weights sums are
    made in another order, or under autocast in another precision, and some codes fall on the other side.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.calibrate(spikezip.quantize(transformers.ViTModel(vit)), torch.randn(2, 3, 32, 32))
        >>> agreement(qann, torch.randn(2, 3, 32, 32)).worst_site is None
        True
    """
    total, worst = Agreement(), 0
    stream: Any = [batches] if isinstance(batches, (dict, Tensor)) else batches
    for batch in stream:
        inputs = prepare(qann, batch).inputs
        learning, reference = _Learning(), Recording()
        with training_forward(qann), executing(learning):
            qann(**inputs)
        was_training = qann.training
        qann.eval()
        with executing(reference):
            qann(**inputs)
        qann.train(was_training)
        for name, expected in reference.seen.items():
            different = int((learning.seen[name].to(expected) != expected).sum())
            total.codes += expected.numel()
            total.equal += expected.numel() - different
            if different > worst:
                total.worst_site, worst = name, different
    return total
