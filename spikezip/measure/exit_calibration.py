"""Finding a confidence rule on held-out data, and telling what it costs and saves on other data."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spikezip.batches import Batch, prepare
from spikezip.errors import ConfigError, InputError
from spikezip.measure.certificate import summarize_t_eq
from spikezip.measure.exit_rule import ExitFound, ExitRule, confidence, ends, exit_steps, loosest_threshold
from spikezip.measure.exits import check_head
from spikezip.measure.one_batch import evaluating, labels_of
from spikezip.measure.plain import Plain
from spikezip.quant.model import QuantizedModel
from spikezip.simulate import Run, SpikingModel, simulate
from spikezip.simulate.outputs import primary


@torch.no_grad()
def calibrate_exit(
    snn: SpikingModel,
    batches: Iterable[Batch] | Batch,
    qann: QuantizedModel | None = None,
    kind: str = "margin",
    agreement: float = 0.99,
    *,
    patience: int = 1,
    min_steps: int = 1,
    engine: str = "folded",
    coding: str = "analog",
    max_spike: int = 1,
    stagger: float = 0,
    max_steps: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> ExitRule:
    """Find the loosest threshold whose early answers are the final ones at least so often, on data held out for it.

    The final answers are those of the quantized network, or without it of the spiking network when it has settled;
    labels are not looked at. On other data the agreement will not be quite the same: `report_exit` tells. Few samples
    tell little: 0.99 of 100 samples lets a single one change its answer.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> model = transformers.ViTForImageClassification(vit)
        >>> images = torch.randn(4, 3, 32, 32)
        >>> snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model), images))
        >>> rule = calibrate_exit(snn, images, agreement=1.0)
        >>> rule.found.agreement, rule.found.mean_steps <= rule.found.mean_steps_without
        (1.0, True)
    """
    if isinstance(agreement, bool) or not isinstance(agreement, (int, float)) or not 0 < agreement <= 1:
        raise ConfigError(f"agreement={agreement!r}: a share of the samples is needed, above 0 and at most 1")
    rule = ExitRule(kind, 0.0, patience, min_steps, coding, max_spike, float(stagger))  # checks what it is given
    scores, agrees, settled_at = [], [], []
    for seen in _runs(snn, batches, qann, rule, engine, max_steps, progress):
        scores.append(confidence(seen.run.logits_per_step, kind).cpu())
        agrees.append((seen.run.logits_per_step.argmax(dim=-1) == seen.final).cpu())
        settled_at.append(ends(seen.run).cpu())
    longest = max(len(part) for part in scores)
    score = torch.cat([_held(part, longest) for part in scores], dim=1)  # [T, N]
    agree = torch.cat([_held(part, longest) for part in agrees], dim=1)
    end = torch.cat(settled_at)
    at_most = float(agree[-1].double().mean())
    if at_most < agreement:
        raise InputError(
            f"agreement={agreement}: without any exit only {at_most:.2%} of the answers are the final ones; "
            "raise max_steps, and check that the two networks belong together"
        )
    least = loosest_threshold(score, agree, end, agreement, patience, min_steps)
    steps = exit_steps(rule, score >= least, end)
    found = ExitFound(
        samples=len(end),
        wanted=float(agreement),
        agreement=float(agree.gather(0, steps[None] - 1).double().mean()),
        mean_steps=float(steps.double().mean()),
        mean_steps_without=float(end.double().mean()),
    )
    return replace(rule, threshold=least if kind == "margin" else -least, found=found)


@dataclass(frozen=True)
class ExitReport(Plain):
    """What a rule does to a data set.

    Attributes:
        agreement: the share of samples that leave with their final answer.
        accuracy: of the answers at the exit; `accuracy_without`: of the final ones. None without labels.
        confident: the share of samples that leave before they have settled.
        steps: until the exit: mean, minimum, median, 99th percentile, maximum, and how many left when;
            `mean_steps_without`: until they are known to have settled.
        spikes_per_neuron: up to the exit; `spikes_per_neuron_without`: up to equilibrium.
    """

    samples: int
    agreement: float
    accuracy: float | None
    accuracy_without: float | None
    confident: float
    steps: dict[str, Any]
    mean_steps_without: float
    spikes_per_neuron: float
    spikes_per_neuron_without: float

    def __str__(self) -> str:
        right = (
            f"accuracy {self.accuracy:.2%} (final {self.accuracy_without:.2%}), " if self.accuracy is not None else ""
        )
        return (
            f"{self.samples:,} samples: {self.agreement:.2%} leave with their final answer, {right}"
            f"{self.steps['mean']:.1f} steps instead of {self.mean_steps_without:.1f}, "
            f"{self.spikes_per_neuron:.3f} spikes per neuron instead of {self.spikes_per_neuron_without:.3f}"
        )


@torch.no_grad()
def report_exit(
    snn: SpikingModel,
    batches: Iterable[Batch] | Batch,
    rule: ExitRule,
    qann: QuantizedModel | None = None,
    *,
    engine: str = "folded",
    max_steps: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> ExitReport:
    """Say what a rule costs and saves, on data that it was not calibrated on.

    Every sample is run to its end, to compare with; when it would have left is read off its outputs, which are those
    of `simulate_until_confident` bit for bit.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> model = transformers.ViTForImageClassification(vit)
        >>> images = torch.randn(8, 3, 32, 32)
        >>> snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model), images))
        >>> report = report_exit(snn, images[4:], calibrate_exit(snn, images[:4]))
        >>> report.samples, report.steps["mean"] <= report.mean_steps_without
        (4, True)
    """
    left: list[int] = []
    settled_at: list[int] = []
    agreeing = early = right = right_without = labelled = 0
    spikes = spikes_without = neurons = 0.0
    for seen in _runs(snn, batches, qann, rule, engine, max_steps, progress, labelled=True):
        run, end = seen.run, ends(seen.run)
        steps = exit_steps(rule, rule.met(run.logits_per_step), end)
        answers = run.logits_per_step.argmax(dim=-1).gather(0, steps[None] - 1)[0]
        agreeing += int((answers == seen.final).sum())
        early += int((steps < end).sum())
        if seen.labels is not None:
            labelled += len(seen.labels)
            right += int((answers == seen.labels).sum())
            right_without += int((seen.final == seen.labels).sum())
        activity = torch.stack(list(run.spike_counts.values())).sum(dim=0)  # [T, B]
        numbers = torch.arange(1, run.steps + 1, device=activity.device)[:, None]
        spikes += float((activity * (numbers <= steps)).sum())
        spikes_without += float(activity.sum())
        neurons += len(steps) * sum(run.neurons.values())
        left += steps.tolist()
        settled_at += end.tolist()
    samples = len(left)
    if labelled not in (0, samples):
        raise InputError(f"only {labelled} of {samples} samples have labels: give all of them labels, or none")
    return ExitReport(
        samples=samples,
        agreement=agreeing / samples,
        accuracy=right / samples if labelled else None,
        accuracy_without=right_without / samples if labelled else None,
        confident=early / samples,
        steps={"mean": sum(left) / samples, **summarize_t_eq(left)},
        mean_steps_without=sum(settled_at) / samples,
        spikes_per_neuron=spikes / neurons,
        spikes_per_neuron_without=spikes_without / neurons,
    )


@dataclass(frozen=True)
class _Seen:
    """A batch that was run to its end: the run, the final answers, the labels if they are asked for and there."""

    run: Run
    final: Tensor
    labels: Tensor | None


def _runs(
    snn: SpikingModel,
    batches: Iterable[Batch] | Batch,
    qann: QuantizedModel | None,
    rule: ExitRule,
    engine: str,
    max_steps: int | None,
    progress: Callable[[int], None] | None,
    labelled: bool = False,
) -> Iterator[_Seen]:
    head = check_head(snn)
    if qann is not None and not isinstance(qann, QuantizedModel):
        raise ConfigError(f"qann is what spikezip.quantize returns, not {type(qann).__name__}")
    samples = 0
    for number, batch in enumerate([batches] if isinstance(batches, (dict, Tensor)) else batches):
        prepared = prepare(snn, batch)
        labels = labels_of(head, snn, batch, number) if labelled else None
        run = simulate(
            snn,
            prepared.inputs,
            "equilibrium",
            engine,
            coding=rule.coding,
            max_spike=rule.max_spike,
            stagger=rule.stagger,
            max_steps=max_steps,
        )
        output = run.logits
        if qann is not None:
            with evaluating(qann):
                output = primary(qann(**prepare(qann, batch).inputs)).to(output)
        yield _Seen(run, output.argmax(dim=-1), labels)
        samples += prepared.size
        if progress is not None:
            progress(samples)
    if not samples:
        raise InputError("there is no data: at least one batch is needed")


def _held(values: Tensor, length: int) -> Tensor:
    """Steps `[T, B]` made longer: after the end all stays as it was."""
    return torch.cat([values, values[-1:].expand(length - len(values), -1)])
