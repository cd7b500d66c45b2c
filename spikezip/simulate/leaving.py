"""Samples that have settled leave the batch: what is left of a run is computed for the others only.

A settled sample fires no more, so its run is known to the end. The others do not notice: samples do not see each other.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spikezip.simulate.engine import Engine, rows_of
from spikezip.simulate.run import Run


class Group(NamedTuple):
    """Samples that go on together: their engine, their inputs, and what came out so far."""

    engine: Engine
    inputs: dict[str, Any]
    outputs: list[Tensor]

    def part(self, rows: Tensor) -> "Group":
        """Some of the samples, with memory of their own."""
        batch = self.engine.settings.batch
        inputs = {name: input_rows(value, rows, batch) for name, value in self.inputs.items()}
        return Group(self.engine.part(rows), inputs, [output[:, rows] for output in self.outputs])


def those_that_stay(group: Group, settled: Tensor) -> tuple[Tensor, Group] | None:
    """Numbers and group of those to go on with; None where more than half would stay, or where there is no room."""
    rows = staying(~settled)
    if len(rows) > len(settled) // 2:
        return None
    try:
        return rows, group.part(rows)
    except torch.OutOfMemoryError:
        return None


def staying(inside: Tensor) -> Tensor:
    """The rows to go on with: of samples that have not left, on a GPU filled up to a power of two with others.

    There few sizes of batch are better than small ones: for each, a chunk of steps is recorded once.

    Example:
        >>> staying(torch.tensor([True, False, True, True]))
        tensor([0, 2, 3])
    """
    rows = inside.nonzero()[:, 0]
    if not inside.is_cuda:
        return rows
    size = min(1 << (len(rows) - 1).bit_length(), len(inside))
    return torch.cat([rows, (~inside).nonzero()[: size - len(rows), 0]])


def input_rows(value: Any, samples: Tensor, batch: int) -> Any:
    """An input of these samples; what the batch shares stays as it is."""
    shared = not isinstance(value, Tensor) or value.ndim == 0 or value.shape[0] != batch
    return value if shared else rows_of(value, samples, batch)


def completed(whole: Run, rows: Tensor, rest: Run) -> Run:
    """The run of a batch, from its run up to where some left it, and the whole run of those that stayed, `rows`."""
    steps, batch = max(whole.steps, rest.steps), len(whole.t_eq)

    def silent(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(steps - len(x), *x.shape[1:])])

    def lasting(x: Tensor) -> Tensor:
        return torch.cat([x, x[-1:].expand(steps - len(x), *x.shape[1:])])

    def of_samples(x: Tensor, part: Tensor) -> Tensor:
        x.unflatten(0, (batch, -1))[rows] = part.unflatten(0, (len(rows), -1))
        return x

    def over_time(x: Tensor, part: Tensor) -> Tensor:
        of_samples(x.transpose(0, 1), part.transpose(0, 1))
        return x

    def each(name: str, put: Any, longer: Any = lambda x: x) -> dict[str, Tensor]:
        mine, its = getattr(whole, name), getattr(rest, name)
        return {site: put(longer(x), longer(its[site])) for site, x in mine.items()}

    t_eq = list(whole.t_eq)
    for i, t in zip(rows.tolist(), rest.t_eq, strict=True):
        t_eq[i] = t
    logits = over_time(lasting(whole.logits_per_step), lasting(rest.logits_per_step))
    # All sites at once: on a GPU hundreds of small tensors would take long.
    counts, part = (torch.stack([silent(x) for x in run.spike_counts.values()]) for run in (whole, rest))
    counts[..., rows] = part
    return replace(
        whole,
        logits=logits[-1],
        logits_per_step=logits,
        steps=steps,
        computed_steps=rest.computed_steps,
        t_eq=t_eq,
        spike_counts=dict(zip(whole.spike_counts, counts.unbind(), strict=True)),
        trains=each("trains", over_time, silent),
        tracers=each("tracers", of_samples),
        neuron_spikes=each("neuron_spikes", of_samples),
    )
