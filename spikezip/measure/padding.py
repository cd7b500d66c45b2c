"""What of a run is padding: counts of the tokens that are really there, from the spikes of single neurons."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spikezip.engines import Run
from spikezip.measure.shapes import Finder, Layout, Operand, derivative
from spikezip.program.freeze import Frozen
from spikezip.program.nodes import Node
from spikezip.program.sizes import Size, bind

ATTENTION_MASK = "attention_mask"


@dataclass(frozen=True)
class Padding:
    """Spikes of real tokens. A padded token fires and costs as any other does; these are the counts without it.

    Attributes:
        mask: `[B', tokens]`, 1 for real tokens; B' is the batch, or more where a sample holds several texts.
        spikes: site → spikes of each neuron over the run.
    """

    finder: Finder
    mask: Tensor
    spikes: dict[str, Tensor]

    @classmethod
    def of(cls, network: Frozen, layout: Layout, run: Run, mask: Tensor | None) -> "Padding | None":
        """None if nothing says which tokens are real, or if neurons were not counted."""
        program = layout.program
        if mask is None or mask.ndim < 2 or ATTENTION_MASK not in program or program.batch is None:
            return None
        spikes = {}
        for site in layout.sites:
            if site in run.neuron_spikes:
                spikes[site] = run.neuron_spikes[site].cpu().to(torch.int64)
            elif site in run.trains:
                spikes[site] = run.trains[site].cpu().to(torch.int64).abs().sum(dim=0)
            else:
                return None
        sizes = {**layout.sizes, program.batch: len(run.t_eq)}
        return cls(Finder(network, sizes), mask.reshape(-1, mask.shape[-1]).to(torch.float64), spikes)

    def real(self, node: Node) -> Tensor:
        """1 for the elements of a value that belong to real tokens only, 0 for the others; it can be broadcast."""
        program, sizes = self.finder.program, self.finder.sizes
        tokens = program[ATTENTION_MASK].shape[-1]
        batch = [d for d, s in enumerate(node.shape) if isinstance(s, Size) and program.batch in s.symbols]
        real = torch.ones([1] * len(node.shape), dtype=torch.float64)
        if not batch or bind(node.shape[batch[0]], sizes) != len(self.mask):
            return real
        for dim, size in enumerate(node.shape):
            if size == tokens and dim != batch[0]:
                shape = [1] * len(node.shape)
                shape[batch[0]], shape[dim] = self.mask.shape
                real = real * (self.mask if batch[0] < dim else self.mask.T).reshape(shape)
        return real

    def count(self, operand: Operand) -> tuple[int, int]:
        """Spikes of real tokens that arrive at a product, and the accumulates that they take among real tokens."""
        node, site = self.finder.program[operand.product], self.finder.program.sites[operand.site]
        names = [name for name in node.reads[:2] if operand.site in _roots(self.finder, name)]
        device = self.finder.network.device
        cost = derivative(node, names[0], site, self.finder, lambda n: self.real(n).to(device))
        spikes = self.spikes[operand.site] * self.real(site).to(torch.int64)
        return int(spikes[cost > 0].sum()), int((spikes * cost).sum())


def _roots(finder: Finder, name: str) -> tuple[str, ...]:
    from spikezip.program.analysis import source

    found = source(finder.program, name)
    return () if found is None else (found.name,)
