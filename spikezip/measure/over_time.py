"""Numbers over time, added up batch by batch."""

from typing import Any

import torch
from torch import Tensor

from spikezip.measure.certificate import summarize_t_eq
from spikezip.simulate import Run

COUNTS = ("agreeing", "correct", "distance", "spikes")


def shown_steps(last: int) -> list[int]:
    """A handful of steps up to the last.

    Example:
        >>> shown_steps(20)
        [1, 2, 4, 8, 16, 20]
    """
    powers = [2**n for n in range(last.bit_length()) if 2**n < last]
    return [*powers, last]


class OverTime:
    """Sums over samples of what each step said. A batch that ended earlier than another stays as it ended."""

    def __init__(self, classes: bool = True) -> None:
        self.classes = classes  # whether the largest output is an answer
        self.samples = 0
        self.predictions = 0  # one per sample, or one per token where a model answers for each
        self.labelled = 0
        self.neurons = 0
        self.t_eq: list[int | None] = []
        self.site_spikes: dict[str, float] = {}
        self.site_neurons: dict[str, int] = {}
        self.sums = {name: torch.zeros(0, dtype=torch.float64) for name in COUNTS}  # each [T]

    def add(self, run: Run, labels: Tensor | None = None, mask: Tensor | None = None) -> None:
        """Add a batch; `mask` says which tokens count where the output is one per token."""
        batch = len(run.t_eq)
        self.samples += batch
        self.t_eq += run.t_eq
        self.neurons += batch * sum(run.neurons.values())
        for site, counts in run.spike_counts.items():
            self.site_spikes[site] = self.site_spikes.get(site, 0.0) + float(counts.sum())
            self.site_neurons[site] = self.site_neurons.get(site, 0) + batch * run.neurons[site]
        over_time = run.logits_per_step.double()  # [T, B, …, classes]
        difference = (over_time - over_time[-1]).flatten(1).norm(dim=1) / over_time[-1].norm().clamp(min=1e-12)
        self._add("distance", difference * batch)
        spikes = torch.stack([counts.sum(dim=1) for counts in run.spike_counts.values()])  # [sites, T]
        self._add("spikes", spikes.sum(dim=0).cumsum(dim=0))
        if not self.classes or over_time.shape[-1] == 1:  # one output is regression
            return
        said = over_time.argmax(dim=-1)  # [T, B, …]
        counts_in = torch.ones_like(said[-1], dtype=torch.bool)
        if mask is not None and mask.shape == counts_in.shape:
            counts_in = mask.bool()
        self.predictions += int(counts_in.sum())
        self._add("agreeing", ((said == said[-1]) & counts_in).flatten(1).sum(dim=1))
        if labels is not None and labels.shape == said[-1].shape and not labels.is_floating_point():
            self.labelled += labels.numel()
            self._add("correct", (said == labels).flatten(1).sum(dim=1))

    def numbers(self) -> dict[str, Any]:
        """Everything, ready for JSON; what is not known is None."""
        steps = [
            {
                "step": step,
                "agreement": _share(agreeing, self.predictions),
                "accuracy": _share(correct, self.labelled),
                "distance": _share(distance, self.samples),
                "spikes_per_neuron": _share(spikes, self.neurons),
            }
            for step, (agreeing, correct, distance, spikes) in enumerate(
                zip(*(self.sums[name].tolist() for name in COUNTS), strict=True), start=1
            )
        ]
        known = [t for t in self.t_eq if t is not None]
        return {
            "samples": self.samples,
            "t_eq": summarize_t_eq(known),
            "t_eq_per_sample": self.t_eq,
            "unsettled": len(self.t_eq) - len(known),
            "spikes_per_neuron": steps[-1]["spikes_per_neuron"],
            "spikes_per_neuron_by_site": {s: n / self.site_neurons[s] for s, n in self.site_spikes.items()},
            "over_time": steps,
        }

    def _add(self, name: str, values: Tensor) -> None:
        values = values.double().cpu()
        length = max(len(values), *(len(total) for total in self.sums.values()))
        self.sums = {key: _held(total, length) for key, total in self.sums.items()}
        self.sums[name] = self.sums[name] + _held(values, length)


def _held(values: Tensor, length: int) -> Tensor:
    """The last value repeated up to a length; zeros if there is none yet."""
    last = values[-1:] if len(values) else values.new_zeros(1)
    return torch.cat([values, last.expand(length - len(values))])


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
