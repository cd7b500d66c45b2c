"""Finding confidence rules on held-out data; `exit_report.py` tells what they cost and save on other data."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spikezip.engines import SpikingNetwork
from spikezip.errors import ConfigError, InputError
from spikezip.measure.exit_report import ExitReport, report_exit
from spikezip.measure.exit_rule import ExitFound, ExitRule, confidence, ends, exit_steps, loosest_threshold
from spikezip.measure.exit_runs import runs
from spikezip.program.batch import Batch
from spikezip.quant.network import QuantizedNetwork

__all__ = ["ExitReport", "Watched", "calibrate_exit", "check_agreement", "report_exit", "watch_confidence"]


@torch.no_grad()
def calibrate_exit(
    snn: SpikingNetwork,
    batches: Iterable[Batch] | Batch,
    qann: QuantizedNetwork | None = None,
    kind: str = "margin",
    agreement: float = 0.99,
    *,
    patience: int = 1,
    min_steps: int = 1,
    engine: str = "auto",
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
    check_agreement(agreement)
    settings: dict[str, Any] = {
        "engine": engine,
        "coding": coding,
        "max_spike": max_spike,
        "stagger": stagger,
        "max_steps": max_steps,
    }
    return watch_confidence(snn, batches, qann, kind, patience=patience, min_steps=min_steps, **settings).rule(
        agreement
    )


def check_agreement(agreement: float) -> None:
    """Refuse what is no share of samples."""
    if isinstance(agreement, bool) or not isinstance(agreement, (int, float)) or not 0 < agreement <= 1:
        raise ConfigError(f"agreement={agreement!r}: a share of the samples is needed, above 0 and at most 1")


@dataclass(frozen=True)
class Watched:
    """How sure held-out samples were over time: all that rules are found from, one for each agreement.

    Attributes:
        drive: a rule without its threshold.
        scores: `[T, N]`, how sure each sample is at each step; `agrees`: whether its answer is the final one.
        ends: `[N]`, the step at which each has settled.
    """

    drive: ExitRule
    scores: Tensor
    agrees: Tensor
    ends: Tensor

    def rule(self, agreement: float) -> ExitRule:
        """The loosest rule with at least this agreement."""
        check_agreement(agreement)
        at_most = float(self.agrees[-1].double().mean())
        if at_most < agreement:
            raise InputError(
                f"agreement={agreement}: without any exit only {at_most:.2%} of the answers are the final ones; "
                "raise max_steps, and check that the two networks belong together"
            )
        drive = self.drive
        least = loosest_threshold(self.scores, self.agrees, self.ends, agreement, drive.patience, drive.min_steps)
        steps = exit_steps(drive, self.scores >= least, self.ends)
        found = ExitFound(
            samples=len(self.ends),
            wanted=float(agreement),
            agreement=float(self.agrees.gather(0, steps[None] - 1).double().mean()),
            mean_steps=float(steps.double().mean()),
            mean_steps_without=float(self.ends.double().mean()),
        )
        return replace(drive, threshold=least if drive.kind == "margin" else -least, found=found)


@torch.no_grad()
def watch_confidence(
    snn: SpikingNetwork,
    batches: Iterable[Batch] | Batch,
    qann: QuantizedNetwork | None = None,
    kind: str = "margin",
    *,
    patience: int = 1,
    min_steps: int = 1,
    engine: str = "auto",
    coding: str = "analog",
    max_spike: int = 1,
    stagger: float = 0,
    max_steps: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Watched:
    """Run held-out data once, for rules of several agreements.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> model = transformers.ViTForImageClassification(vit)
        >>> images = torch.randn(4, 3, 32, 32)
        >>> snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model), images))
        >>> loose, strict = map(watch_confidence(snn, images).rule, (0.5, 1.0))
        >>> loose.threshold <= strict.threshold, strict == calibrate_exit(snn, images, agreement=1.0)
        (True, True)
    """
    drive = ExitRule(kind, 0.0, patience, min_steps, coding, max_spike, float(stagger))  # checks what it is given
    scores, agrees, settled_at = [], [], []
    for seen in runs(snn, batches, qann, drive, engine, max_steps, progress, report=False):
        scores.append(confidence(seen.run.logits_per_step, kind).cpu())
        agrees.append((seen.run.logits_per_step.argmax(dim=-1) == seen.final).cpu())
        settled_at.append(ends(seen.run).cpu())
    longest = max(len(part) for part in scores)
    return Watched(
        drive,
        torch.cat([_held(part, longest) for part in scores], dim=1),
        torch.cat([_held(part, longest) for part in agrees], dim=1),
        torch.cat(settled_at),
    )


def _held(values: Tensor, length: int) -> Tensor:
    """Steps `[T, B]` made longer: after the end all stays as it was."""
    return torch.cat([values, values[-1:].expand(length - len(values), -1)])
