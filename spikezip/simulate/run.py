"""What a simulation returns."""

from dataclasses import dataclass, field

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
        tracers: site → the codes at the last step computed, `[B, …]` as integers in a float tensor.
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

    @property
    def settled(self) -> bool:
        """Whether every sample reached equilibrium."""
        return all(t is not None for t in self.t_eq)

    @property
    def spikes_per_neuron(self) -> float:
        """Spikes of the whole run over the number of neurons, averaged over the batch."""
        spikes = sum(float(counts.sum()) for counts in self.spike_counts.values())
        return spikes / (sum(self.neurons.values()) * len(self.t_eq))
