"""What a run of a spiking network returns."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Run:
    """One batch through a spiking network.

    Attributes:
        logits: `[B, classes]` at the last step (the last hidden state for models without a head).
        logits_per_step: `[T, B, classes]`.
        steps: T. Steps after equilibrium are silent and need not be computed to be known; `computed_steps` were.
        t_eq: for each sample the number of steps up to its last spike, padded tokens included; None where the run
            ended before a silent step showed equilibrium.
        spike_counts: site → `[T, B]`, spikes of each step and sample (a graded spike of m counts as m).
        neurons: site → neurons per sample.
        trains: recorded site → spikes `[T, B, …]` as integers.
        tracers: site → the codes at the last step computed, `[B, …]`: int8 where they fit, else int16. Sites are in the
            order of execution, here and in the other dicts.
        neuron_spikes: site → spikes of each neuron over the whole run, of the tracers' shape, as integers (a graded
            spike of m counts as m); empty unless asked for with `count_neurons=True`.
        free_from: the first step with the input in full and no stage held back. A silent step from here on shows that a
            sample has settled; one before shows nothing.
        coding, max_spike, stagger: what the network was driven with.
        why_engine: why `engine="auto"` did not take the fastest engine; empty if it did.
        why_no_graph: on a GPU, why the folded engine did not record its chunks as CUDA graphs; empty if it did.
    """

    logits: Tensor
    logits_per_step: Tensor
    steps: int
    computed_steps: int
    t_eq: list[int | None]
    engine: str
    spike_counts: dict[str, Tensor] = field(repr=False)
    neurons: dict[str, int] = field(repr=False)
    trains: dict[str, Tensor] = field(repr=False)
    tracers: dict[str, Tensor] = field(repr=False)
    neuron_spikes: dict[str, Tensor] = field(default_factory=dict, repr=False)
    free_from: int = 1
    coding: str = "analog"
    max_spike: int = 1
    stagger: float = 0
    why_engine: str = ""
    why_no_graph: str = ""

    @property
    def settled(self) -> bool:
        """Whether every sample reached equilibrium."""
        return all(t is not None for t in self.t_eq)

    @property
    def site_t_eq(self) -> dict[str, list[int]]:
        """Site → for each sample the step of its last spike there; 0 where it never fired."""
        return {site: last_spike(counts).tolist() for site, counts in self.spike_counts.items()}

    @property
    def spikes_per_neuron(self) -> float:
        """Spikes of the whole run over the number of neurons, averaged over the batch."""
        spikes = sum(float(counts.sum()) for counts in self.spike_counts.values())
        return spikes / (sum(self.neurons.values()) * len(self.t_eq))


def last_spike(counts: Tensor) -> Tensor:
    """From spikes `[T, B]` the step (from 1) of each sample's last spike; 0 if it has not fired.

    Example:
        >>> last_spike(torch.tensor([[2, 0], [1, 0], [0, 0]]))
        tensor([2, 0])
    """
    numbers = torch.arange(1, len(counts) + 1, device=counts.device)[:, None]
    return (numbers * (counts > 0)).amax(dim=0)
