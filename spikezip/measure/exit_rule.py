"""When a sample may leave: its answer has been sure enough, for long enough."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spikezip.engines import Run
from spikezip.errors import ConfigError
from spikezip.measure.plain import Plain

KINDS = ("margin", "entropy")


@dataclass(frozen=True)
class ExitFound(Plain):
    """What a rule was calibrated on, and what it does there.

    Attributes:
        wanted: the agreement asked for; `agreement`: the share of samples that leave with their final answer.
        mean_steps: until they leave; `mean_steps_without`: until they are known to have settled.
    """

    samples: int
    wanted: float
    agreement: float
    mean_steps: float
    mean_steps_without: float


@dataclass(frozen=True)
class ExitRule(Plain):
    """Leave as soon as the answer has been sure for `patience` steps on end, the last of them `min_steps` or later.

    A sample that is not sure by then leaves when it has settled. A rule holds for the settings that it was found with.

    Attributes:
        kind: `"margin"`: the largest output leads over the second by at least `threshold`;
            `"entropy"`: the entropy of the softmax of the outputs, in nats, is at most `threshold`.
        coding, max_spike, stagger: how the network is driven, see `simulate`.
        found: where the threshold comes from; None if it was set by hand.

    Example:
        >>> rule = ExitRule("margin", 2.0)
        >>> rule.met(torch.tensor([[3.0, 0.5, 0.0], [3.0, 1.5, 0.0]]))
        tensor([ True, False])
        >>> ExitRule.from_json(rule.to_json()) == rule
        True
    """

    kind: str
    threshold: float
    patience: int = 1
    min_steps: int = 1
    coding: str = "analog"
    max_spike: int = 1
    stagger: float = 0.0
    found: ExitFound | None = None

    def check(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"kind={self.kind!r}: choose one of {', '.join(KINDS)}")
        number = isinstance(self.threshold, (int, float)) and not isinstance(self.threshold, bool)
        if not number or not math.isfinite(self.threshold):
            raise ConfigError(f"threshold={self.threshold!r}: a number is needed; calibrate_exit finds one")
        for name, value in (("patience", self.patience), ("min_steps", self.min_steps)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r}: a whole number of steps from 1 is needed")

    def met(self, logits: Tensor) -> Tensor:
        """Where outputs `[…, classes]` are sure enough."""
        least = self.threshold if self.kind == "margin" else -self.threshold
        return confidence(logits, self.kind) >= least

    def follow(self, sure: Tensor, streak: Tensor, before: int) -> tuple[Tensor, Tensor]:
        """Over further steps, `[n, B]` sure or not: the step at which each sample may leave, 0 where it may not.

        `streak` is for how many steps on end each sample has been sure so far, `before` how many steps have passed;
        the new streak comes back too.

        Example:
            >>> sure = torch.tensor([[True], [False], [True], [True]])
            >>> ExitRule("margin", 2.0, patience=2).follow(sure, torch.tensor([0]), before=0)
            (tensor([4]), tensor([2]))
        """
        at = torch.zeros_like(streak)
        for step, now in enumerate(sure, start=before + 1):
            streak = torch.where(now, streak + 1, 0)
            if step >= self.min_steps:
                at = torch.where((streak >= self.patience) & (at == 0), step, at)
        return at, streak


def confidence(logits: Tensor, kind: str) -> Tensor:
    """How sure outputs `[…, classes]` are, larger for surer: the margin, or minus the entropy.

    Example:
        >>> confidence(torch.tensor([3.0, 0.5, 1.0]), "margin")
        tensor(2., dtype=torch.float64)
        >>> round(float(confidence(torch.zeros(2), "entropy")), 4)  # −ln 2
        -0.6931
    """
    outputs = logits.to(torch.float64)
    if kind == "margin":
        first, second = outputs.topk(2, dim=-1).values.unbind(dim=-1)
        return first - second
    logs = outputs.log_softmax(dim=-1)
    return (logs.exp() * logs).sum(dim=-1)


def ends(run: Run) -> Tensor:
    """For each sample the step that shows it has settled; the last step where none did. Nobody stays longer."""
    last = [run.steps if t is None else max(t + 1, run.free_from) for t in run.t_eq]
    return torch.tensor(last, device=run.logits.device)


def exit_steps(rule: ExitRule, sure: Tensor, ends: Tensor) -> Tensor:
    """At which step each sample leaves that is sure or not at each step `[T, B]`, and settles at `ends`.

    Example:
        >>> sure = torch.tensor([[True, False], [True, False]])
        >>> exit_steps(ExitRule("margin", 2.0), sure, ends=torch.tensor([2, 2]))
        tensor([1, 2])
    """
    at, _ = rule.follow(sure, torch.zeros_like(ends), before=0)
    return torch.where(at > 0, torch.minimum(at, ends), ends)


def loosest_threshold(
    scores: Tensor, agrees: Tensor, ends: Tensor, share: float, patience: int = 1, min_steps: int = 1
) -> float:
    """The smallest score to leave at, from which on at least `share` of the samples leave with their final answer.

    "From which on": no larger one falls short either, so that one lucky threshold among many is not taken. If none
    will do, it is a score just above the largest seen.

    Args:
        scores: `[T, N]`, how sure each sample is at each step; `agrees`: whether its answer is the final one.
        ends: `[N]`, the step at which each has settled. At that step its answer counts in any case.

    Example:
        >>> scores = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> agrees = torch.tensor([[False, False], [True, True], [True, True]])
        >>> loosest_threshold(scores, agrees, torch.tensor([3, 3]), share=1.0)
        3.0
    """
    steps, samples = scores.shape
    never = -math.inf
    lasting = torch.full_like(scores, never)  # the least of the last `patience` scores
    windows = [scores[i : steps - patience + 1 + i] for i in range(patience)] if patience <= steps else []
    if windows:
        lasting[patience - 1 :] = torch.stack(windows).amin(dim=0)
    numbers = torch.arange(1, steps + 1, device=scores.device)[:, None]
    lasting[(numbers < min_steps).expand_as(lasting) | (numbers >= ends)] = never

    # A sample leaves at the first step whose score reaches the threshold. As the threshold sinks, that step moves from
    # one record of its scores to the record before it, and whether the sample agrees may change there.
    sooner = torch.cat([torch.full_like(lasting[:1], never), lasting.cummax(dim=0).values[:-1]])
    sample, step = (lasting > sooner).T.nonzero().unbind(dim=1)
    final = agrees.gather(0, ends[None] - 1)[0].long()
    here = agrees[step, sample].long()
    follows = torch.cat([sample[1:] == sample[:-1], sample.new_zeros(1, dtype=torch.bool)])[: len(sample)]
    later = torch.where(follows, torch.cat([here[1:], here[:1]]), final[sample])
    score, order = lasting[step, sample].sort(descending=True)
    agreeing = final.sum() + (here - later)[order].cumsum(dim=0)

    ends_a_tie = torch.cat([score[1:] != score[:-1], score.new_ones(1, dtype=torch.bool)])[: len(score)]
    candidates, enough = score[ends_a_tie], agreeing[ends_a_tie] >= share * samples - 1e-9
    short = (~enough).nonzero()
    good = int(short[0]) if len(short) else len(candidates)
    if good:
        return float(candidates[good - 1])
    return math.nextafter(float(scores.max()), math.inf)
