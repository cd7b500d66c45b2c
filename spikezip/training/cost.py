"""What a stage took, time and energy: of all processes, and of all parts of a stage that was stopped and resumed."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from transformers import TrainerCallback

from spikezip.training import power
from spikezip.training.folder import write_json
from spikezip.training.together import everybodys

COST = "cost.json"


@dataclass(frozen=True)
class Cost:
    """What a stage, or a part of it, took.

    Args:
        seconds: by the clock on the wall.
        joules: of all cards; None where they were not read, or not all of the time.
        device_seconds: that the cards were read for, added up over them.
        source: how they were read.
        note: what is not known, and why.

    Example:
        >>> first, second = Cost(10.0, 2000.0, 10.0, "nvml energy"), Cost(30.0, 9000.0, 30.0, "nvml energy")
        >>> (first + second).to_json()  # doctest: +NORMALIZE_WHITESPACE
        {'seconds': 40.0, 'joules': 11000.0, 'watts': 275.0, 'device_seconds': 40.0, 'power_source': 'nvml energy'}
        >>> (first + Cost(30.0)).to_json()
        {'seconds': 40.0, 'cost_note': 'the power of 30 of these 40 s was not read'}
    """

    seconds: float
    joules: float | None = None
    device_seconds: float = 0.0
    source: str | None = None
    note: str | None = None

    def __add__(self, later: "Cost") -> "Cost":
        """The cost of two parts, one after the other."""
        seconds = self.seconds + later.seconds
        notes = [self.note, later.note]
        known = [part for part in (self, later) if part.joules is not None]
        unread = seconds - sum(part.seconds for part in known)
        if len(known) == 1 and unread > 0:
            notes.append(f"the power of {unread:.0f} of these {seconds:.0f} s was not read")
        return Cost(seconds, *_drawn(known if len(known) == 2 else []), _joined(notes, "; "))

    def to_json(self) -> dict[str, Any]:
        """The figures for the metrics: what is not known is not there."""
        found: dict[str, Any] = {"seconds": round(self.seconds, 3)}
        if self.joules is not None:
            found["joules"] = round(self.joules, 3)
            if self.device_seconds:
                found["watts"] = round(self.joules / self.device_seconds, 3)
            found["device_seconds"] = round(self.device_seconds, 3)
            found["power_source"] = self.source
        return found if self.note is None else {**found, "cost_note": self.note}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Cost":
        return cls(
            found["seconds"],
            found.get("joules"),
            found.get("device_seconds", 0.0),
            found.get("power_source"),
            found.get("cost_note"),
        )


def of_all(processes: Sequence[tuple[str | None, Cost]]) -> Cost:
    """The cost of several processes at the same time, each with the name of its card. A shared card counts once.

    Example:
        >>> shared = ("GPU-1", Cost(10.0, 2000.0, 10.0, "nvml power"))
        >>> of_all([shared, shared, ("GPU-2", Cost(10.0, 3000.0, 10.0, "nvml power"))]).joules
        5000.0
    """
    cards = list(dict(processes).values())
    known = [cost for cost in cards if cost.joules is not None]
    notes = [cost.note for cost in cards]
    if 0 < len(known) < len(cards):
        notes.append(f"the power of {len(cards) - len(known)} of {len(cards)} cards was not read")
    return Cost(processes[0][1].seconds, *_drawn(known if len(known) == len(cards) else []), _joined(notes, "; "))


def _drawn(costs: Sequence[Cost]) -> tuple[float | None, float, str | None]:
    if not costs:
        return None, 0.0, None
    joules = sum(cost.joules or 0.0 for cost in costs)
    return joules, sum(cost.device_seconds for cost in costs), _joined([cost.source for cost in costs], ", ")


def _joined(texts: Sequence[str | None], by: str) -> str | None:
    return by.join(dict.fromkeys(text for text in texts if text)) or None


class Meter(TrainerCallback):
    """Measures what happens inside `with`. Every checkpoint is left with what the stage took to get there.

    A stage that goes on from a checkpoint adds that to its own. What was done after the checkpoint, and lost, is done
    again and counted once.
    """

    def __init__(self, device: torch.device, checkpoint: str | None = None) -> None:
        self.device = device
        self.before = None if checkpoint is None else _read(Path(checkpoint))
        self.sampler: power.Sampler | None = None
        self.began = self.ended = 0.0

    def __enter__(self) -> "Meter":
        self.sampler = power.watch(self.device)
        if self.sampler is not None:
            self.sampler.__enter__()
        self.began = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        self.ended = time.monotonic()
        if self.sampler is not None:
            self.sampler.__exit__(None, None, None)

    def own(self) -> Cost:
        """Of this process alone, since it entered."""
        seconds = (self.ended or time.monotonic()) - self.began
        drawn = None if self.sampler is None else self.sampler.drawn()
        if drawn is None:
            return Cost(seconds)
        if drawn.failed is not None:
            return Cost(seconds, note=f"reading the card failed after {drawn.seconds:.0f} s: {drawn.failed}")
        return Cost(seconds, drawn.joules, drawn.seconds, drawn.source)

    def whole(self) -> Cost:
        """Of all processes, with what came before. All of them must ask."""
        card = None if self.sampler is None else self.sampler.card
        cost = of_all(everybodys((card, self.own())))
        return cost if self.before is None else self.before + cost

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        cost = self.whole()
        if state.is_world_process_zero:
            write_json(Path(args.output_dir, f"checkpoint-{state.global_step}", COST), cost.to_json())


def _read(checkpoint: Path) -> Cost:
    """What a checkpoint says that it took; one that a run died in may not say it, and goes on all the same."""
    try:
        return Cost.from_json(json.loads((checkpoint / COST).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError):
        return Cost(0.0, note=f"what came before {checkpoint.name} was not counted")
