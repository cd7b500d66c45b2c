"""One batch through the networks, as a tally."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from spikezip.batches import Batch, prepare
from spikezip.errors import InputError
from spikezip.measure.activity import activity
from spikezip.measure.answers import Head, answers
from spikezip.measure.comparison import compare_batch, reference
from spikezip.measure.complexity import complexity
from spikezip.measure.latency import tally as count_steps
from spikezip.measure.operations import operations, sites_to_record
from spikezip.measure.tally import Tally
from spikezip.quant.model import QuantizedModel
from spikezip.simulate import SpikingModel, simulate
from spikezip.simulate.drive import Steps
from spikezip.simulate.outputs import primary


@dataclass(frozen=True)
class OneBatch:
    """What is done with each batch."""

    snn: SpikingModel
    qann: QuantizedModel | None
    float_model: PreTrainedModel | None
    head: Head
    steps: Steps
    engine: str
    options: dict[str, Any]

    def tally(self, batch: Batch, number: int, before: Tally) -> Tally:
        labels = labels_of(self.head, self.snn, batch, number)
        if before.batches and (labels is not None) != bool(before.labelled):
            raise InputError(f"batch {number}: some batches have labels and some have none")
        inputs = prepare(self.snn, batch).inputs
        run = simulate(
            self.snn,
            inputs,
            self.steps,
            self.engine,
            count_neurons=True,
            record=sites_to_record(self.snn, inputs),
            **self.options,
        )
        said = compared = float_said = None
        if self.qann is not None:
            said, codes = reference(self.qann, prepare(self.qann, batch).inputs)
            compared = compare_batch(number, said, codes, run)
        if self.float_model is not None:
            float_said = primary(self.float_model(**prepare(self.float_model, batch).inputs))
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


def labels_of(head: Head, model: PreTrainedModel, batch: Batch, number: int) -> Tensor | None:
    """The labels of a batch, checked against the head; None if it has none, or there is nothing to choose."""
    if not isinstance(batch, Mapping):
        return None
    labels = next((batch[key] for key in ("labels", "label") if key in batch), None)
    main = batch.get(model.main_input_name)
    samples = len(main) if isinstance(main, Tensor) and main.ndim else None  # None: the run will say what is wrong
    return head.check_labels(labels, batch, samples, f"batch {number}")


@contextmanager
def evaluating(*networks: PreTrainedModel | None) -> Iterator[None]:
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
