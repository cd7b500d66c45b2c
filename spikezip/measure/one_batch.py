"""One batch through the networks, as a tally."""

import inspect
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor, nn

from spikezip.engines import Drive, SpikingNetwork, quantized, simulate
from spikezip.engines.loop import find_primary
from spikezip.errors import InputError
from spikezip.measure.activity import activity
from spikezip.measure.answers import Head, answers
from spikezip.measure.comparison import compare_batch
from spikezip.measure.complexity import complexity
from spikezip.measure.hashes import hash_batch
from spikezip.measure.latency import tally as count_steps
from spikezip.measure.operations import operations, sites_to_record
from spikezip.measure.tally import Tally
from spikezip.program.batch import Batch
from spikezip.quant.network import QuantizedNetwork


@dataclass(frozen=True)
class OneBatch:
    """What is done with each batch."""

    snn: SpikingNetwork
    qann: QuantizedNetwork | None
    float_model: nn.Module | None
    head: Head
    drive: Drive

    def tally(self, batch: Batch, number: int, before: Tally) -> Tally:
        labels = labels_of(self.head, self.snn, batch, number)
        if before.batches and (labels is not None) != bool(before.labelled):
            raise InputError(f"batch {number}: some batches have labels and some have none")
        inputs = self.snn.prepare(batch)
        drive = replace(self.drive, count_neurons=True, record=sites_to_record(self.snn, inputs))
        run = simulate(self.snn, inputs, drive=drive)
        said = compared = float_said = None
        if self.qann is not None:
            output, codes = quantized(self.qann.frozen(), self.qann.prepare(batch))
            said = find_primary(output)
            compared = compare_batch(number, said, codes, run, hash_batch(self.snn.program, inputs, output, codes))
        if self.float_model is not None:
            floats = {k: v for k, v in inputs.items() if k in inputs_of(self.float_model)}
            float_said = find_primary(self.float_model(**floats))
        counted = operations(self.snn, run, inputs)
        rows = () if before.complexity else complexity(self.snn, run, inputs, counted)
        return Tally(
            batches=1,
            samples=len(run.t_eq),
            labelled=int(labels is not None),
            answers=answers(self.head, run.logits_per_step, labels, inputs.get("attention_mask"), said, float_said),
            t_eq=count_steps(t for t in run.t_eq if t is not None),
            unsettled=sum(t is None for t in run.t_eq),
            sites=activity(run),
            operations=counted,
            complexity=tuple(row.to_json() for row in rows),
            comparison=compared,
        )


def inputs_of(model: nn.Module) -> Collection[str]:
    """The names of what a model takes."""
    return inspect.signature(type(model).forward).parameters.keys()


def labels_of(head: Head, snn: SpikingNetwork, batch: Batch, number: int) -> Tensor | None:
    """The labels of a batch, checked against the head; None if it has none, or there is nothing to choose."""
    if not isinstance(batch, Mapping):
        return None
    labels = next((batch[key] for key in ("labels", "label") if key in batch), None)
    name, dim = snn.program.symbols.get(snn.program.batch or "", (snn.program.inputs[0].name, 0))
    main = batch.get(name)
    samples = main.shape[dim] if isinstance(main, Tensor) and main.ndim else None  # None: the run says what is wrong
    return head.check_labels(labels, batch, samples, f"batch {number}")


@contextmanager
def evaluating(*networks: nn.Module | None) -> Iterator[None]:
    """Networks in `eval()` inside the block, and as they were after it."""
    there = [network for network in networks if network is not None]
    were = [network.training for network in there]
    try:
        for network in there:
            network.eval()
        yield
    finally:
        for network, training in zip(there, were, strict=True):
            network.train(training)
