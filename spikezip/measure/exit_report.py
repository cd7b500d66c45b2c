"""What confidence rules cost and save, on data that they were not calibrated on."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spikezip.engines import SpikingNetwork
from spikezip.errors import ConfigError, InputError
from spikezip.measure.certificate import summarize_t_eq
from spikezip.measure.energy_model import EnergyModel
from spikezip.measure.exit_energy import joules_by_step
from spikezip.measure.exit_rule import ExitRule, ends, exit_steps
from spikezip.measure.exit_runs import Seen, runs
from spikezip.measure.plain import Plain
from spikezip.program.batch import Batch
from spikezip.quant.network import QuantizedNetwork


@dataclass(frozen=True)
class ExitReport(Plain):
    """What a rule does to a data set.

    Attributes:
        agreement: the share of samples that leave with their final answer; `agreement_without`: that have it in the
            end, which all have unless the run is cut short.
        accuracy: of the answers at the exit; `accuracy_without`: of the final ones. None without labels.
        confident: the share of samples that leave before they have settled.
        steps: until the exit: mean, minimum, median, 99th percentile, maximum, and how many left when;
            `mean_steps_without`: until they are known to have settled, one silent step after T_eq.
        t_eq: the same numbers of T_eq, of the samples that settled; `unsettled`: how many did not.
        spikes_per_neuron: up to the exit; `spikes_per_neuron_without`: up to equilibrium.
        energy_j: joules per inference up to the exit, memory traffic aside; `energy_j_without`: up to equilibrium.
    """

    samples: int
    agreement: float
    agreement_without: float
    accuracy: float | None
    accuracy_without: float | None
    confident: float
    steps: dict[str, Any]
    mean_steps_without: float
    t_eq: dict[str, Any]
    unsettled: int
    spikes_per_neuron: float
    spikes_per_neuron_without: float
    energy_j: float
    energy_j_without: float

    def __str__(self) -> str:
        right = (
            f"accuracy {self.accuracy:.2%} (final {self.accuracy_without:.2%}), " if self.accuracy is not None else ""
        )
        return (
            f"{self.samples:,} samples: {self.agreement:.2%} leave with their final answer, {right}"
            f"{self.steps['mean']:.1f} steps instead of {self.mean_steps_without:.1f}, "
            f"{self.spikes_per_neuron:.3f} spikes per neuron instead of {self.spikes_per_neuron_without:.3f}"
        )


def report_exit(
    snn: SpikingNetwork,
    batches: Iterable[Batch] | Batch,
    rule: ExitRule,
    qann: QuantizedNetwork | None = None,
    *,
    engine: str = "auto",
    max_steps: int | None = None,
    energy_model: EnergyModel | None = None,
    progress: Callable[[int], None] | None = None,
) -> ExitReport:
    """Say what a rule costs and saves, on data that it was not calibrated on.

    Every sample is run to its end, to compare with; when it would have left is read off its outputs, which are those
    of `simulate_until_confident` bit for bit.

    Example:
        >>> import spikezip, torch, transformers
        >>> from spikezip.measure import calibrate_exit
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> model = transformers.ViTForImageClassification(vit)
        >>> images = torch.randn(8, 3, 32, 32)
        >>> snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model), images))
        >>> report = report_exit(snn, images[4:], calibrate_exit(snn, images[:4]))
        >>> report.samples, report.steps["mean"] <= report.mean_steps_without
        (4, True)
    """
    options: dict[str, Any] = {"engine": engine, "max_steps": max_steps, "energy_model": energy_model}
    return report_exits(snn, batches, [rule], qann, progress=progress, **options)[0]


@torch.no_grad()
def report_exits(
    snn: SpikingNetwork,
    batches: Iterable[Batch] | Batch,
    rules: Sequence[ExitRule],
    qann: QuantizedNetwork | None = None,
    *,
    engine: str = "auto",
    max_steps: int | None = None,
    energy_model: EnergyModel | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[ExitReport, ...]:
    """The same for several rules, of which each sample is run once: a curve of agreement against cost.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> model = transformers.ViTForImageClassification(vit)
        >>> images = torch.randn(4, 3, 32, 32)
        >>> snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model), images))
        >>> at_once, never = report_exits(snn, images, [ExitRule("margin", 0.0), ExitRule("margin", 1e9)])
        >>> at_once.steps["max"], never.confident, at_once.energy_j < never.energy_j == never.energy_j_without
        (1, 0.0, True)
    """
    if not rules:
        raise ConfigError("there is no rule to report on: at least one is needed")
    drives = {(rule.coding, rule.max_spike, rule.stagger) for rule in rules}
    if len(drives) > 1:
        raise ConfigError("these rules were found with different coding, max_spike or stagger: report on them apart")
    sums = [_Sums(rule) for rule in rules]
    for seen in runs(snn, batches, qann, rules[0], engine, max_steps, progress, report=True):
        joules = joules_by_step(snn, seen.run, seen.inputs, energy_model).to(seen.final.device)
        for each in sums:
            each.add(seen, joules)
    return tuple(each.report() for each in sums)


@dataclass
class _Sums:
    """One rule, added up batch by batch."""

    rule: ExitRule
    left: list[int] = field(default_factory=list)
    settled_at: list[int] = field(default_factory=list)
    t_eq: list[int] = field(default_factory=list)
    agreeing: int = 0
    agreeing_without: int = 0
    right: int = 0
    right_without: int = 0
    labelled: int = 0
    early: int = 0
    neurons: int = 0
    spikes: float = 0.0
    spikes_without: float = 0.0
    joules: float = 0.0
    joules_without: float = 0.0

    def add(self, seen: Seen, joules: Tensor) -> None:
        run, end = seen.run, ends(seen.run)
        steps = exit_steps(self.rule, self.rule.met(run.logits_per_step), end)
        at = steps[None] - 1
        answers = run.logits_per_step.argmax(dim=-1).gather(0, at)[0]
        self.agreeing += int((answers == seen.final).sum())
        self.agreeing_without += int((run.logits.argmax(dim=-1) == seen.final).sum())
        self.early += int((steps < end).sum())
        if seen.labels is not None:
            self.labelled += len(seen.labels)
            self.right += int((answers == seen.labels).sum())
            self.right_without += int((seen.final == seen.labels).sum())
        spikes = torch.stack(list(run.spike_counts.values())).sum(dim=0).cumsum(dim=0)  # [T, B]
        self.spikes += float(spikes.gather(0, at).sum())
        self.spikes_without += float(spikes[-1].sum())
        self.joules += float(joules.gather(0, at).sum())
        self.joules_without += float(joules[-1].sum())
        self.neurons += len(steps) * sum(run.neurons.values())
        self.left += steps.tolist()
        self.settled_at += end.tolist()
        self.t_eq += [t for t in run.t_eq if t is not None]

    def report(self) -> ExitReport:
        samples = len(self.left)
        if self.labelled not in (0, samples):
            raise InputError(f"only {self.labelled} of {samples} samples have labels: give all of them labels, or none")
        return ExitReport(
            samples=samples,
            agreement=self.agreeing / samples,
            agreement_without=self.agreeing_without / samples,
            accuracy=self.right / samples if self.labelled else None,
            accuracy_without=self.right_without / samples if self.labelled else None,
            confident=self.early / samples,
            steps=_summary(self.left),
            mean_steps_without=sum(self.settled_at) / samples,
            t_eq=_summary(self.t_eq),
            unsettled=samples - len(self.t_eq),
            spikes_per_neuron=self.spikes / self.neurons,
            spikes_per_neuron_without=self.spikes_without / self.neurons,
            energy_j=self.joules / samples,
            energy_j_without=self.joules_without / samples,
        )


def _summary(steps: list[int]) -> dict[str, Any]:
    return {"mean": sum(steps) / len(steps) if steps else None, **summarize_t_eq(steps)}
