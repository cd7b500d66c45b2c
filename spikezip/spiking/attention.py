"""Self-attention with its five sites: q, k, v, the attention probabilities, the output (SESA in the paper)."""

import torch
from torch import Tensor, nn

from spikezip.execution import current
from spikezip.ops import grid, softmax
from spikezip.spiking.neuron import Neuron
from spikezip.spiking.synapse import scaled
from spikezip.spiking.unscaled import Unscaled

SITES = ("q", "k", "v", "p", "o")


class Attention(nn.Module):
    """Attention between codes: scores are integers times `s_q·s_k`, the mix is integers times `s_p·s_v`.

    One module serves the spiking network, where an engine makes both products from spikes, and the quantized network.
    """

    q: Neuron
    k: Neuron
    v: Neuron
    p: Neuron
    o: Neuron

    def __init__(self, q: Neuron, k: Neuron, v: Neuron, p: Neuron, o: Neuron) -> None:
        super().__init__()
        self.q, self.k, self.v, self.p, self.o = q, k, v, p, o

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float,
        groups: int = 1,
        dropout: float = 0.0,
        watched: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """`[B, heads, tokens, d]` in; the output `[B, tokens, heads, d]` and the probabilities, both as values.

        `watched` says that somebody wants the probabilities; here they cost nothing until they are looked at.
        """
        together = current().codes_of(((self.q, query), (self.k, key), (self.v, value)))
        q, k, v = together or (self.q.codes(query), self.k.codes(key), self.v.codes(value))
        whole = current().attend(self, q, k, v, mask, scaling)
        if whole is not None:
            return whole
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        scores = self.product("qk", q, k.transpose(2, 3), self.q, self.k, scaling)
        p = self.p.codes(masked_softmax(scores, mask))
        mixed = self.product("pv", p, v, self.p, self.v, 1.0)
        output = self.o(mixed.transpose(1, 2).contiguous())
        return output, self.probabilities(p)

    def probabilities(self, codes: Tensor) -> Tensor:
        """The probabilities as values. Few ask for them: bare codes wait for their scale until somebody does."""
        step = self.p.step_size
        return codes * step if codes.is_floating_point() or step.ndim else Unscaled.of(codes, step, None, self.p)

    def product(self, tag: str, a: Tensor, b: Tensor, left: Neuron, right: Neuron, scaling: float) -> Tensor:
        """The product of two sites' codes, scaled to values: an exact sum, times one number."""
        largest = max(left.largest, right.largest)
        own = left.scale.dtype
        dtype = torch.promote_types(self.accumulator(tag, a.shape[-1], left, right), own)
        total = current().matmul(self, tag, a, b, dtype, largest)
        return scaled(total, self.factor(left, right, scaling)).to(own)

    def accumulator(self, tag: str, depth: int, left: Neuron, right: Neuron) -> torch.dtype:
        """What holds the sums of such a product exactly."""
        return grid.accumulator(depth * left.largest * right.largest, f"the product {tag} at {left.name!r}")

    def factor(self, left: Neuron, right: Neuron, scaling: float) -> Tensor:
        """The number that a product of two sites' codes is multiplied with."""
        return left.step_size * right.step_size * scaling


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Spike-Softmax on running scores. The mask is added anew each time: entered once, it would absorb later scores.

    Example:
        >>> masked_softmax(torch.zeros(1, 2), torch.tensor([[0.0, -1e9]]))
        tensor([[1., 0.]])
    """
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, torch.finfo(scores.dtype).min)
        scores = scores + mask
    return softmax.softmax(scores)
