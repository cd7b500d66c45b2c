"""How often a network is right, and how often it says what another one says."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikezip.errors import InputError
from spikezip.measure.activity import Sums, add_held
from spikezip.measure.plain import Plain
from spikezip.program.nodes import Ref

IGNORED = -100  # the label of a token that has none, in all of transformers
TOKENS = ("ForTokenClassification", "ForMaskedLM", "ForCausalLM", "LMHeadModel")
NEXT_TOKEN = ("ForCausalLM", "LMHeadModel")
MOST_FOR_TOP5 = 5  # among five classes, five guesses are always right


@dataclass(frozen=True)
class Head:
    """What a model's output says: `classes` to choose among, None if it is no choice; one answer per token, or one.

    `names` are those of the classes, where the model's config has more than numbers.
    """

    classes: int | None
    per_token: bool = False
    next_token: bool = False
    names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, model: Any) -> "Head":
        """Example:
        >>> import transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, num_labels=7)
        >>> Head.of(transformers.ViTForImageClassification(vit))
        Head(classes=7, per_token=False, next_token=False, names=None)
        >>> Head.of(transformers.ViTModel(vit)).classes is None
        True
        """
        config, name = getattr(model, "config", None), type(model).__name__
        if config is None:
            return cls(_classes(model))
        if "Classification" in name:
            several = getattr(config, "problem_type", None) == "multi_label_classification"
            if several or config.num_labels == 1:  # several answers at once; a number
                return cls(None)
            known = [str(config.id2label[number]) for number in sorted(config.id2label)]
            bare = all(label == f"LABEL_{number}" for number, label in enumerate(known))
            return cls(config.num_labels, name.endswith(TOKENS), names=None if bare else tuple(known))
        if name.endswith(TOKENS):
            return cls(config.vocab_size, True, name.endswith(NEXT_TOKEN))
        return cls(None)  # hidden states, or places in a text

    @property
    def has_top5(self) -> bool:
        return self.classes is not None and self.classes > MOST_FOR_TOP5

    def check_labels(self, labels: Any, inputs: Mapping[str, Any], samples: int | None, where: str) -> Tensor | None:
        """The labels of a batch, if there are any and there is a choice; an error if they cannot be the head's."""
        if labels is None or self.classes is None:
            return None
        if not isinstance(labels, Tensor):
            raise InputError(f"{where}: labels are a {type(labels).__name__}, not a tensor")
        tokens = inputs.get("input_ids") if self.per_token else None
        wanted = tuple(tokens.shape) if isinstance(tokens, Tensor) else (samples,)
        if tuple(labels.shape) != wanted and samples is not None:
            raise InputError(f"{where}: labels have shape {tuple(labels.shape)}; the head answers {wanted}")
        self.check_classes(labels[labels != IGNORED] if self.per_token else labels, where)
        return labels

    def check_classes(self, labels: Tensor, where: str) -> None:
        """Refuse labels that are not among the classes."""
        if labels.is_floating_point():
            raise InputError(f"{where}: labels are fractions; the head chooses among {self.classes} classes")
        outside = labels[(labels < 0) | (labels >= (self.classes or 0))]
        if len(outside):
            raise InputError(
                f"{where}: the label {int(outside[0])} does not fit the head, which has {self.classes} classes "
                f"(0 … {(self.classes or 0) - 1}); is it data of another task, or are its labels counted from 1?"
            )


@dataclass(frozen=True)
class AnswerSums(Plain):
    """Answers counted over samples (or tokens). Whole numbers: the order of batches does not matter.

    Attributes:
        answers: how many; `labelled`: those with a label.
        agreeing, correct, top5: for each step, how many are those of the reference, are right, have it among five.
        qann, qann_top5, float_, float_top5: how often the networks without time are right.
    """

    answers: int = 0
    labelled: int = 0
    agreeing: Sums = ()
    correct: Sums = ()
    top5: Sums = ()
    qann: int = 0
    qann_top5: int = 0
    float_: int = 0
    float_top5: int = 0

    def __add__(self, other: "AnswerSums") -> "AnswerSums":
        return AnswerSums(
            answers=self.answers + other.answers,
            labelled=self.labelled + other.labelled,
            agreeing=add_held(self.agreeing, other.agreeing),
            correct=add_held(self.correct, other.correct),
            top5=add_held(self.top5, other.top5),
            qann=self.qann + other.qann,
            qann_top5=self.qann_top5 + other.qann_top5,
            float_=self.float_ + other.float_,
            float_top5=self.float_top5 + other.float_top5,
        )


def answers(
    head: Head,
    over_time: Tensor,
    labels: Tensor | None = None,
    mask: Tensor | None = None,
    qann: Tensor | None = None,
    float_: Tensor | None = None,
) -> AnswerSums:
    """Count one batch: outputs `[T, B, …, classes]`, labels `[B, …]`, outputs of the others `[B, …, classes]`.

    Without a QANN the reference is the last step. `mask` says which tokens count, where there is an answer for each.

    Example:
        >>> outputs = torch.eye(3)[[0, 1, 1]].unsqueeze(1)  # one sample; says 0, 1, 1
        >>> answers(Head(3), outputs, labels=torch.tensor([1]))
        AnswerSums(answers=1, labelled=1, agreeing=(0, 1, 1), correct=(0, 1, 1), top5=(), qann=0, qann_top5=0, ...)
    """
    if head.classes is None:
        return AnswerSums()
    said = over_time.argmax(dim=-1)  # [T, B, …]
    counted = torch.ones_like(said[-1], dtype=torch.bool)
    if head.per_token and mask is not None and mask.shape == counted.shape:
        counted = mask.to(counted.device).bool()
    reference = said[-1] if qann is None else qann.to(said.device).argmax(dim=-1)
    sums: dict[str, Any] = {"answers": int(counted.sum()), "agreeing": _count((said == reference) & counted)}
    if labels is not None:
        labels = labels.to(said.device)
        known = counted & (labels != IGNORED) if head.per_token else counted
        if head.next_token:  # what is said at a token is the next one
            labels, known = labels[..., 1:], known[..., 1:] & (labels[..., 1:] != IGNORED)
        sums["labelled"] = int(known.sum())
        sums |= _right(head, over_time, labels, known, "correct", "top5")
        for name, output in (("qann", qann), ("float_", float_)):
            if output is not None:
                once = _right(head, output.to(said.device)[None], labels, known, name, f"{name.rstrip('_')}_top5")
                sums |= {key: value[0] for key, value in once.items()}
    return AnswerSums(**sums)


def _right(head: Head, outputs: Tensor, labels: Tensor, known: Tensor, first: str, five: str) -> dict[str, Sums]:
    if head.next_token:
        outputs = outputs[..., :-1, :]
    found = {first: _count((outputs.argmax(dim=-1) == labels) & known)}
    if head.has_top5:
        found[five] = _count((_place(outputs, labels) < 5) & known)
    return found


def _place(outputs: Tensor, labels: Tensor) -> Tensor:
    """How many classes are ahead of the label. Of equal outputs the first is ahead, as it is for `argmax`.

    In the first steps outputs are often equal, and `topk` takes any of them.
    """
    wanted = labels.clamp(min=0).expand(outputs.shape[:-1])[..., None]
    own = outputs.gather(-1, wanted)
    sooner = torch.arange(outputs.shape[-1], device=outputs.device) < wanted
    return ((outputs > own) | ((outputs == own) & sooner)).sum(dim=-1)


def _count(hits: Tensor) -> Sums:
    return tuple(hits.flatten(1).sum(dim=1).tolist())


def _classes(model: Any) -> int | None:
    """The classes of a network that has no configuration: the width of its output, if that is one row per sample."""
    program = getattr(model, "program", None)
    if program is None or not isinstance(program.output, Ref):
        return None
    shape = program[program.output.name].shape
    return shape[-1] if len(shape) == 2 and isinstance(shape[-1], int) and shape[-1] > 1 else None
