"""What a run tells while it goes on: a line per log in metrics.jsonl, progress to whoever asks, a stop on Ctrl-C."""

import contextlib
import importlib.util
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from spikezip.errors import SpikezipError
from spikezip.training.together import any_process

SELDOM = 10  # steps, at most, until all processes know of a signal that one of them got


@dataclass(frozen=True)
class Progress:
    """Where a run is: `done` of `total` steps or samples of a stage, and the latest numbers."""

    stage: str
    done: int
    total: int
    numbers: dict[str, float]


Watcher = Callable[[Progress], None]


class InterruptedRunError(SpikezipError):
    """The run was asked to stop, and stopped after saving."""


class Journal(TrainerCallback):
    """Every log of the Trainer as a line of JSON."""

    def __init__(self, path: Path, stage: str) -> None:
        self.path, self.stage = path, stage

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            write_line(self.path, {"stage": self.stage, "step": state.global_step, **logs})


def write_line(path: Path, values: dict[str, Any]) -> None:
    """Add a line to a journal, with the time. JSON has no numbers that are not finite: they become text."""
    values = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": round(time.time(), 3), **values}, allow_nan=False) + "\n")


class Reporter(TrainerCallback):
    """Progress, step by step, with the latest loss and accuracy."""

    def __init__(self, stage: str, watcher: Watcher) -> None:
        self.stage, self.watcher = stage, watcher
        self.numbers: dict[str, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        names = {"loss": "loss", "eval_accuracy": "accuracy", "eval_grid_agreement": "agreement"}
        self.numbers |= {names[k]: float(v) for k, v in (logs or {}).items() if k in names}
        self._tell(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._tell(state)

    def _tell(self, state: Any) -> None:
        if state.is_world_process_zero:
            self.watcher(Progress(self.stage, state.global_step, state.max_steps, dict(self.numbers)))


class StopOnSignal(TrainerCallback):
    """Ctrl-C, or a scheduler's SIGTERM, ends training at the next step, with a checkpoint; a second one, at once.

    Several processes must stop at the same step, or those that go on wait for the others for ever. They ask each other
    every few steps: each time the host waits for the GPU.
    """

    def __init__(self) -> None:
        self.asked = False

    def anybody(self, device: Any) -> bool:
        """Whether any process was asked to stop. All processes must call this."""
        self.asked = any_process(self.asked, device)
        return self.asked

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # signals reach only the main thread
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def ask(number: int, frame: Any) -> None:
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True

        for number in before:
            signal.signal(number, ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        every = max(1, min(SELDOM, state.max_steps // 100)) if args.world_size > 1 else 1
        if state.global_step % every == 0 and self.anybody(args.device):
            control.should_save = True
            control.should_training_stop = True


class SeedByProcess(TrainerCallback):
    """Different processes throw different dice for dropout and augmentation."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.process_index:
            torch.manual_seed(args.seed + 7919 * args.process_index)


def dashboards(folder: Path, name: str) -> list[TrainerCallback]:
    """TensorBoard and Weights & Biases, where they are installed (WANDB_MODE=disabled turns the latter off)."""
    found: list[TrainerCallback] = []
    if importlib.util.find_spec("tensorboard") is not None:
        from torch.utils.tensorboard import SummaryWriter
        from transformers.integrations import TensorBoardCallback

        found.append(TensorBoardCallback(tb_writer=SummaryWriter(str(folder))))
    if importlib.util.find_spec("wandb") is not None and os.environ.get("WANDB_MODE") != "disabled":
        from transformers.integrations import WandbCallback

        os.environ.setdefault("WANDB_PROJECT", "spikezip")
        os.environ.setdefault("WANDB_NAME", name)
        found.append(WandbCallback())
    return found
