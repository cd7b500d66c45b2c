"""Numbers over time, added up batch by batch: the short form of `measure`, for runs that are made anyway."""

from typing import Any

import torch
from torch import Tensor

from spikezip.engines import Run
from spikezip.measure.activity import SiteSums, Sums, activity, add_held, held
from spikezip.measure.answers import AnswerSums, Head, answers
from spikezip.measure.certificate import summarize_t_eq


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
        self.t_eq: list[int | None] = []
        self.answers = AnswerSums()
        self.sites: dict[str, SiteSums] = {}
        self.distance = torch.zeros(0, dtype=torch.float64)  # [T]

    def add(self, run: Run, labels: Tensor | None = None, mask: Tensor | None = None) -> None:
        """Add a batch; `mask` says which tokens count where the output is one per token."""
        self.samples += len(run.t_eq)
        self.t_eq += run.t_eq
        for name, sums in activity(run).items():
            self.sites[name] = self.sites.get(name, SiteSums()) + sums
        outputs = run.logits_per_step  # [T, B, …, classes]
        self._add_distance(outputs.double())
        fits = labels is not None and labels.shape == outputs.shape[1:-1] and not labels.is_floating_point()
        choice = self.classes and outputs.shape[-1] > 1  # one output is regression
        head = Head(outputs.shape[-1] if choice else None, per_token=outputs.ndim > 3)
        self.answers += answers(head, outputs, labels if fits else None, mask)

    def numbers(self) -> dict[str, Any]:
        """Everything, ready for JSON; what is not known is None."""
        spikes: Sums = ()
        for sums in self.sites.values():
            spikes = add_held(spikes, sums.spikes)
        neurons = sum(sums.neurons for sums in self.sites.values())
        counted = self.answers
        columns = {
            "agreement": (held(counted.agreeing, len(spikes)), counted.answers),
            "accuracy": (held(counted.correct, len(spikes)), counted.labelled),
            "distance": (self.distance.tolist(), self.samples),
            "spikes_per_neuron": (spikes, neurons),
        }
        steps = [
            {"step": t + 1, **{name: _share(values[t], whole) for name, (values, whole) in columns.items()}}
            for t in range(len(spikes))
        ]
        known = [t for t in self.t_eq if t is not None]
        return {
            "samples": self.samples,
            "t_eq": summarize_t_eq(known),
            "t_eq_per_sample": self.t_eq,
            "unsettled": len(self.t_eq) - len(known),
            "spikes_per_neuron": steps[-1]["spikes_per_neuron"],
            "spikes_per_neuron_by_site": {name: s.spikes[-1] / s.neurons for name, s in self.sites.items()},
            "over_time": steps,
        }

    def _add_distance(self, outputs: Tensor) -> None:
        """The norm of the difference to the last step, over that of the last step, times samples."""
        far = (outputs - outputs[-1]).flatten(1).norm(dim=1) / outputs[-1].norm().clamp(min=1e-12) * outputs.shape[1]
        length = max(len(far), len(self.distance))
        before, now = (torch.cat([x, x.new_zeros(length - len(x))]) for x in (self.distance, far.cpu()))
        self.distance = before + now  # at its last step a batch is where it ends: 0 from then on


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
