"""Batches run to their end, to be looked at by confidence rules."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spikezip.engines import Run, SpikingNetwork, quantized, simulate
from spikezip.engines.loop import find_primary
from spikezip.errors import InputError
from spikezip.measure.comparison import check_counterpart
from spikezip.measure.exit_rule import ExitRule
from spikezip.measure.exits import check_head
from spikezip.measure.one_batch import labels_of
from spikezip.measure.operations import sites_to_record
from spikezip.program.batch import Batch, as_batches
from spikezip.quant.network import QuantizedNetwork


@dataclass(frozen=True)
class Seen:
    """A batch that was run to its end: its inputs, the run, the final answers, the labels if there are any."""

    inputs: dict[str, Any]
    run: Run
    final: Tensor
    labels: Tensor | None


def runs(
    snn: SpikingNetwork,
    batches: Iterable[Batch] | Batch,
    qann: QuantizedNetwork | None,
    drive: ExitRule,
    engine: str,
    max_steps: int | None,
    progress: Callable[[int], None] | None,
    *,
    report: bool,
) -> Iterator[Seen]:
    """Run every batch as the rule `drive` says; for a report labels are looked at, and what energy needs is kept."""
    head = check_head(snn)
    if qann is not None:
        check_counterpart(snn, qann)
    samples = 0
    for number, batch in enumerate(as_batches(batches)):
        inputs = snn.prepare(batch)
        labels = labels_of(head, snn, batch, number) if report else None
        run = simulate(
            snn,
            inputs,
            steps="equilibrium",
            engine=engine,
            coding=drive.coding,
            max_spike=drive.max_spike,
            stagger=drive.stagger,
            max_steps=max_steps,
            record=sites_to_record(snn, inputs) if report else (),
        )
        output = run.logits
        if qann is not None:
            output = find_primary(quantized(qann.frozen(), qann.prepare(batch))[0]).to(output)
        yield Seen(inputs, run, output.argmax(dim=-1), None if labels is None else labels.to(output.device))
        samples += len(run.t_eq)
        if progress is not None:
            progress(samples)
    if not samples:
        raise InputError("there is no data: at least one batch is needed")
