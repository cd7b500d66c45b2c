"""Which staggering and which largest spike serve best: trials on a calibration set, and their frontier."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, product

import torch
from torch import Tensor

from spikezip.engines import Drive, Run, SpikingNetwork, resolve_engine, simulate
from spikezip.errors import ConfigError, InputError
from spikezip.measure.activity import Sums, add_held
from spikezip.measure.answers import AnswerSums, Head, answers
from spikezip.measure.energy import EnergyModel, energy
from spikezip.measure.one_batch import labels_of
from spikezip.measure.operations import Operations, operations, sites_to_record
from spikezip.measure.plain import Plain
from spikezip.measure.shapes import check_snn
from spikezip.program.batch import Batch, as_batches, sample_count

COSTS = ("energy", "spikes")
STAGGERS = (0, 0.25, 0.5, 1)
MAX_SPIKES = (1, 2, 4)


@dataclass(frozen=True)
class Trial(Plain):
    """One setting, tried.

    Attributes:
        steps: T, the first step from which on enough answers are the final ones; T_eq where equilibrium is asked for.
        spikes: per neuron, up to T; `energy_j`: joules per inference up to T, None if energy was not asked for.
        agreement, accuracy: at T; None where there is nothing to compare.
        t_eq: the largest T_eq; `spikes_settled`, `energy_settled_j`: up to there.
    """

    stagger: float
    max_spike: int
    steps: int
    spikes: float
    energy_j: float | None
    agreement: float | None
    accuracy: float | None
    t_eq: int
    spikes_settled: float
    energy_settled_j: float | None


@dataclass(frozen=True)
class Tuning(Plain):
    """The trials so far, of as many as were planned, and what they were judged by.

    Attributes:
        cost: `"energy"` (joules per inference) or `"spikes"` (per neuron).
        agreement: the share of answers that must be the final ones; None: every sample must have settled.
    """

    cost: str
    agreement: float | None
    samples: int
    engine: str
    coding: str
    planned: int
    trials: tuple[Trial, ...] = ()

    def cost_of(self, trial: Trial) -> float:
        return trial.spikes if trial.energy_j is None or self.cost == "spikes" else trial.energy_j

    def frontier(self) -> tuple[Trial, ...]:
        """The trials that no other beats in both steps and cost, from the fastest to the cheapest.

        Example:
            >>> def trial(steps, spikes):
            ...     return Trial(0.0, 1, steps, spikes, None, 1.0, None, steps, spikes, None)
            >>> tuning = Tuning("spikes", 0.99, 8, "folded", "analog", 3, (trial(9, 2.0), trial(5, 4.0), trial(6, 4.5)))
            >>> [t.steps for t in tuning.frontier()]
            [5, 9]
            >>> tuning.best(steps=8).steps, tuning.best(budget=3).steps, tuning.best(steps=4)
            (5, 9, None)
        """
        kept: list[Trial] = []
        for trial in sorted(self.trials, key=lambda t: (t.steps, self.cost_of(t))):
            if not kept or self.cost_of(trial) < self.cost_of(kept[-1]):
                kept.append(trial)
        return tuple(kept)

    def best(self, steps: int | None = None, budget: float | None = None) -> Trial | None:
        """The cheapest trial within so many steps, or the fastest within a budget; None if there is none."""
        if (steps is None) == (budget is None):
            raise ConfigError("say either steps, for the lowest cost within them, or a budget, for the fewest steps")
        if steps is not None:
            return next((trial for trial in reversed(self.frontier()) if trial.steps <= steps), None)
        return next((trial for trial in self.frontier() if self.cost_of(trial) <= float(budget or 0)), None)


@torch.no_grad()
def tune(
    snn: SpikingNetwork,
    batches: Iterable[Batch] | Batch,
    staggers: Sequence[float] = STAGGERS,
    max_spikes: Sequence[int] = MAX_SPIKES,
    *,
    cost: str = "energy",
    agreement: float | None = 0.99,
    engine: str = "auto",
    coding: str = "analog",
    energy_model: EnergyModel | None = None,
    progress: Callable[[int], None] | None = None,
    watch: Callable[[Tuning], None] | None = None,
) -> Tuning:
    """Try every pair of a delay per stage and a largest spike, on a calibration set.

    Every setting ends with the same codes; what differs is how soon the answers are there, and what they cost by then.
    So each trial is a point: T steps, the first step from which on a share `agreement` of the answers are the final
    ones, and the cost of an inference that is stopped there. With `agreement=None` T is the largest T_eq.

    Energy is that of `energy(...).snn`, memory traffic aside. `progress` is told the samples done so far, over all
    trials, and `watch` the tuning after each trial, so that nothing is lost if the search is cut short.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> model = transformers.ViTForImageClassification(vit)
        >>> images = torch.randn(4, 3, 32, 32)
        >>> snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model), images))
        >>> tuning = tune(snn, images, staggers=[0, 1], max_spikes=[1], agreement=None)
        >>> [(trial.stagger, trial.steps == trial.t_eq) for trial in tuning.trials]
        [(0.0, True), (1.0, True)]
        >>> tuning.best(steps=1000) == tuning.frontier()[-1]
        True
    """
    if cost not in COSTS:
        raise ConfigError(f"cost={cost!r}: choose one of {', '.join(COSTS)}")
    for name, grid in (("staggers", staggers), ("max_spikes", max_spikes)):
        if isinstance(grid, (str, int, float)) or not len(grid):
            raise ConfigError(f"{name}={grid!r}: a list of values to try is needed")
    for stagger, max_spike in product(staggers, max_spikes):
        Drive(engine=engine, coding=coding, max_spike=max_spike, stagger=stagger)
    check_snn(snn)
    engine, _ = resolve_engine(snn.frozen(), snn.program.layout, engine)
    head = Head.of(snn)
    _check_agreement(agreement, head, snn)
    data = list(as_batches(batches))  # every trial goes through all of it
    if not data:
        raise InputError("there is no data: at least one batch is needed")
    samples = sum(sample_count(snn.program, snn.prepare(batch)) for batch in data)

    pairs = list(dict.fromkeys(product(map(float, staggers), max_spikes)))
    tuning = Tuning(cost, agreement, samples, engine, coding, len(pairs))
    done = 0
    for stagger, max_spike in pairs:
        sums = _Sums(head, energy_model or EnergyModel())
        for number, batch in enumerate(data):
            labels = labels_of(head, snn, batch, number)
            inputs = snn.prepare(batch)
            record = sites_to_record(snn, inputs) if cost == "energy" else ()
            drive = Drive(engine, "equilibrium", coding, max_spike, stagger, record=record)
            run = simulate(snn, inputs, drive=drive)
            sums.add(run, labels, inputs.get("attention_mask"))
            if cost == "energy":
                counted = operations(snn, run, inputs)
                sums.operations = counted if sums.operations is None else sums.operations + counted
            done += len(run.t_eq)
            if progress is not None:
                progress(done)
        tuning = replace(tuning, trials=(*tuning.trials, sums.trial(stagger, max_spike, agreement)))
        if watch is not None:
            watch(tuning)
    return tuning


def _check_agreement(agreement: float | None, head: Head, snn: SpikingNetwork) -> None:
    if agreement is None:
        return
    if isinstance(agreement, bool) or not isinstance(agreement, (int, float)) or not 0 < agreement <= 1:
        raise ConfigError(f"agreement={agreement!r}: a share of the answers is needed, above 0 and at most 1, or None")
    if head.classes is None:
        raise ConfigError(
            f"{type(snn).__name__} makes no choice among classes, so answers cannot agree: with agreement=None a trial "
            "is judged by when every sample has settled"
        )


@dataclass
class _Sums:
    """One trial, added up batch by batch."""

    head: Head
    energy_model: EnergyModel
    answers: AnswerSums = field(default_factory=AnswerSums)
    spikes: Sums = ()  # up to and with each step
    neurons: int = 0
    t_eq: int = 1
    operations: Operations | None = None

    def add(self, run: Run, labels: Tensor | None, mask: Tensor | None) -> None:
        self.answers += answers(self.head, run.logits_per_step, labels, mask)
        over_time = torch.stack(list(run.spike_counts.values())).sum(dim=(0, 2))
        self.spikes = add_held(self.spikes, tuple(over_time.cumsum(dim=0).tolist()))
        self.neurons += len(run.t_eq) * sum(run.neurons.values())
        self.t_eq = max([self.t_eq, *(t for t in run.t_eq if t is not None)])

    def trial(self, stagger: float, max_spike: int, agreement: float | None) -> Trial:
        steps = self.t_eq if agreement is None else self._first_step(agreement)
        joules = None
        if self.operations is not None:
            joules = list(accumulate(energy(self.operations, self.energy_model).snn_per_step))
        said = self.answers
        return Trial(
            stagger=stagger,
            max_spike=max_spike,
            steps=steps,
            spikes=self.spikes[steps - 1] / self.neurons,
            energy_j=None if joules is None else joules[steps - 1],
            agreement=said.agreeing[steps - 1] / said.answers if said.answers else None,
            accuracy=said.correct[steps - 1] / said.labelled if said.labelled else None,
            t_eq=self.t_eq,
            spikes_settled=self.spikes[-1] / self.neurons,
            energy_settled_j=None if joules is None else joules[-1],
        )

    def _first_step(self, agreement: float) -> int:
        """The step after the last one at which too few answers were the final ones."""
        enough = agreement * self.answers.answers - 1e-9
        short = [step for step, agreeing in enumerate(self.answers.agreeing, start=1) if agreeing < enough]
        return short[-1] + 1 if short else 1
