"""What of a run is padding: counts of the tokens that are really there, from the spikes of single neurons."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spikezip.measure.shapes import AttentionShape, Layout, LinearShape
from spikezip.simulate import Run


@dataclass(frozen=True)
class Padding:
    """Spikes of real tokens. A padded token fires and costs as any other does; these are the counts without it.

    Attributes:
        mask: `[B', tokens]`, 1 for real tokens; B' is the batch, or more where a sample holds several texts.
        spikes: site → spikes of each neuron over the run, `[B', …]`.
    """

    mask: Tensor
    spikes: dict[str, Tensor]

    @classmethod
    def of(cls, layout: Layout, run: Run, mask: Tensor | None) -> "Padding | None":
        """None if nothing says which tokens are real, or if neurons were not counted."""
        if mask is None:
            return None
        spikes = {}
        for site in layout.sites:
            if site in run.neuron_spikes:
                spikes[site] = run.neuron_spikes[site].cpu().to(torch.int64)
            elif site in run.trains:
                spikes[site] = run.trains[site].cpu().to(torch.int64).abs().sum(dim=0)
            else:
                return None
        by_text = mask.reshape(-1, mask.shape[-1]).to(torch.int64)
        queries = [tuple(spikes[a.q].shape) for a in layout.attentions]
        if any((shape[0], shape[2]) != tuple(by_text.shape) for shape in queries):
            return None  # a mask of another form, which does not say of tokens whether they are there
        return cls(by_text, spikes)

    def linear(self, shape: LinearShape) -> tuple[int, int]:
        """Spikes of real tokens that arrive at a product with weights, and their accumulates.

        The source is `[B', tokens, …]`, or has no tokens any more.
        """
        spikes = self.spikes[shape.source]
        if shape.read is not None:
            spikes = (spikes.reshape(-1, shape.read.numel()) * shape.read).reshape(spikes.shape)
        if spikes.ndim > 2 and spikes.shape[:2] == self.mask.shape:
            spikes = spikes * self.mask.view(*self.mask.shape, *[1] * (spikes.ndim - 2))
        return int(spikes.sum()), int(spikes.sum()) * shape.out_features

    def attention(self, a: AttentionShape) -> dict[str, tuple[int, int]]:
        """Product of SESA → spikes of real tokens, and the accumulates they cost among real tokens."""
        real = self.mask.sum(dim=1)  # queries and keys of a text
        by_token = self.mask[:, None, :, None]
        q, k, v = ((self.spikes[site] * by_token).flatten(1).sum(dim=1) for site in (a.q, a.k, a.v))
        p = (self.spikes[a.p] * by_token * self.mask[:, None, None, :]).flatten(1).sum(dim=1)
        costs = {
            "S_Q·K": (k, real * a.groups),
            "Q·S_K": (q, real),
            "Q·K": (q, real),
            "S_P·V": (v, real * a.groups),
            "P·S_V": (p, torch.full_like(real, a.width)),
            "P·V": (p, torch.full_like(real, a.width)),
        }
        return {f"{a.name}.{row}": (int(s.sum()), int((s * fan).sum())) for row, (s, fan) in costs.items()}
