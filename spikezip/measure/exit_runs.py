"""Batches run to their end, to be looked at by confidence rules."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikezip.batches import Batch, prepare
from spikezip.errors import ConfigError, InputError
from spikezip.measure.exit_rule import ExitRule
from spikezip.measure.exits import check_head
from spikezip.measure.one_batch import evaluating, labels_of
from spikezip.measure.operations import sites_to_record
from spikezip.quant.model import QuantizedModel
from spikezip.simulate import Run, SpikingModel, simulate
from spikezip.simulate.outputs import primary


@dataclass(frozen=True)
class Seen:
    """A batch that was run to its end: its inputs, the run, the final answers, the labels if there are any."""

    inputs: dict[str, Any]
    run: Run
    final: Tensor
    labels: Tensor | None


def runs(
    snn: SpikingModel,
    batches: Iterable[Batch] | Batch,
    qann: QuantizedModel | None,
    drive: ExitRule,
    engine: str,
    max_steps: int | None,
    progress: Callable[[int], None] | None,
    *,
    report: bool,
) -> Iterator[Seen]:
    """Run every batch as the rule `drive` says; for a report labels are looked at, and what energy needs is kept."""
    head = check_head(snn)
    check_qann(snn, qann)
    samples = 0
    for number, batch in enumerate([batches] if isinstance(batches, (dict, Tensor)) else batches):
        prepared = prepare(snn, batch)
        labels = labels_of(head, snn, batch, number) if report else None
        run = simulate(
            snn,
            prepared.inputs,
            "equilibrium",
            engine,
            coding=drive.coding,
            max_spike=drive.max_spike,
            stagger=drive.stagger,
            max_steps=max_steps,
            record=sites_to_record(snn, prepared.inputs) if report else (),
        )
        output = run.logits
        if qann is not None:
            with evaluating(qann):
                output = primary(qann(**prepare(qann, batch).inputs)).to(output)
        yield Seen(prepared.inputs, run, output.argmax(dim=-1), None if labels is None else labels.to(output.device))
        samples += prepared.size
        if progress is not None:
            progress(samples)
    if not samples:
        raise InputError("there is no data: at least one batch is needed")


def check_qann(snn: SpikingModel, qann: QuantizedModel | None) -> None:
    """Refuse what cannot be the network that `snn` was converted from."""
    if qann is None:
        return
    if not isinstance(qann, QuantizedModel):
        raise ConfigError(f"qann is what spikezip.quantize returns, not {type(qann).__name__}")
    sites, neurons = qann.sites, snn.neurons
    if sites.keys() != neurons.keys():
        raise ConfigError("the QANN is another network than the one that was converted: it has other sites")
    for name, neuron in neurons.items():
        same = torch.equal(sites[name].step_size.cpu(), neuron.step_size.cpu())
        if (sites[name].lo, sites[name].hi) != (neuron.lo, neuron.hi) or not same:
            raise ConfigError(f"the QANN is another network than the one that was converted: {name!r} differs")
