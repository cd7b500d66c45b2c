"""What each sample has cost by each step, so that its energy can be cut at its exit."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spikezip.engines import Run, SpikingNetwork
from spikezip.measure.energy import energy
from spikezip.measure.energy_model import EnergyModel
from spikezip.measure.operations import operations


def joules_by_step(
    snn: SpikingNetwork, run: Run, inputs: dict[str, Any], energy_model: EnergyModel | None = None
) -> Tensor:
    """Joules that each sample has taken up to and with each step, `[T, B]`; memory traffic aside.

    Every operation of a step follows from spikes of that step and of those before it. So this is what the sample costs
    if it leaves there, not an estimate. The run must hold the trains of `sites_to_record`.

    Example:
        >>> import spikezip, transformers
        >>> from spikezip.measure.operations import sites_to_record
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.quantize(transformers.ViTForImageClassification(vit))
        >>> batch = {"pixel_values": torch.randn(2, 3, 32, 32)}
        >>> snn = spikezip.convert(spikezip.calibrate(qann, batch))
        >>> run = spikezip.simulate(snn, batch, steps="equilibrium", record=sites_to_record(snn))
        >>> joules = joules_by_step(snn, run, batch)
        >>> whole = energy(operations(snn, run, batch)).snn.total  # of the batch; sums in another order
        >>> joules.shape == (run.steps, 2), abs(float(joules[-1].mean()) / whole - 1) < 1e-12
        (True, True)
    """
    batch = len(run.t_eq)
    columns = []
    # What is counted goes to the CPU at once: number by number, a GPU would be waited for each time.
    run = replace(
        run,
        spike_counts=_on_cpu(run.spike_counts),
        trains=_on_cpu(run.trains),
        neuron_spikes=_on_cpu(run.neuron_spikes),
    )
    for sample in range(batch):
        alone = _sample(run, sample)
        counted = operations(snn, alone, {name: _row(value, sample, batch) for name, value in inputs.items()})
        columns.append(energy(counted, energy_model).snn_per_step)
    return torch.tensor(columns, dtype=torch.float64).cumsum(dim=1).T


def _on_cpu(counted: dict[str, Tensor]) -> dict[str, Tensor]:
    return {site: value.cpu() for site, value in counted.items()}


def _sample(run: Run, sample: int) -> Run:
    """One sample of a run, as a run."""
    batch = len(run.t_eq)

    def own(value: Tensor) -> Tensor:
        return value.unflatten(0, (batch, -1))[sample]  # a view: nothing is copied

    part = slice(sample, sample + 1)
    return replace(
        run,
        logits=run.logits[part],
        logits_per_step=run.logits_per_step[:, part],
        t_eq=run.t_eq[part],
        spike_counts={site: counts[:, part] for site, counts in run.spike_counts.items()},
        trains={site: own(train.transpose(0, 1)).transpose(0, 1) for site, train in run.trains.items()},
        tracers={site: own(codes) for site, codes in run.tracers.items()},
        neuron_spikes={site: own(spikes) for site, spikes in run.neuron_spikes.items()},
    )


def _row(value: Any, sample: int, batch: int) -> Any:
    """An input of one sample; what the batch shares stays as it is."""
    own = isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == batch
    return value[sample : sample + 1] if own else value
