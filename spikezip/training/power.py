"""What a card draws while a stage runs: read from the card itself, in a thread that training never waits for."""

import contextlib
import importlib
import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

EVERY = 1.0  # seconds between two readings
PATIENCE = 5  # readings in a row that may fail: the time between is then taken as a straight line
FIRST, LAST = 2.0, 10.0  # seconds, at most, that a stage waits for its first and for its last reading
TIMEOUT = 5.0  # seconds for one call of nvidia-smi


@dataclass(frozen=True)
class Reader:
    """A way to read a card.

    Args:
        source: its name, as it stands in the metrics.
        read: the watts of now; or, with `counts`, the joules since some moment of the past.
        counts: the card itself adds up.
    """

    source: str
    read: Callable[[], float]
    counts: bool = False


@dataclass(frozen=True)
class Drawn:
    """What a card drew between its first and its latest reading, and what went wrong."""

    joules: float
    seconds: float
    source: str
    failed: str | None = None


class Sampler:
    """Reads a card again and again and adds up what it draws. Whatever fails, fails in here.

    Example:
        >>> watts, times = iter([100.0, 300.0, 300.0]), iter([0.0, 2.0, 3.0])
        >>> sampler = Sampler(lambda: None, clock=lambda: next(times))
        >>> reader = Reader("made up", lambda: next(watts))
        >>> for _ in range(3):
        ...     sampler.sample(reader)
        >>> sampler.drawn()  # (100 + 300) / 2 W for 2 s, 300 W for 1 s
        Drawn(joules=700.0, seconds=3.0, source='made up', failed=None)
    """

    def __init__(
        self,
        open_it: Callable[[], Reader | None],
        *,
        card: str = "",
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.card, self.every = card, every
        self._open, self._clock = open_it, clock
        self._latest: tuple[float, float] | None = None  # time and value
        self._drawn: Drawn | None = None  # replaced whole: the other thread never sees a half of it
        self._failed: str | None = None
        self._first, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="spikezip-power", daemon=True)

    def sample(self, reader: Reader) -> None:
        """Read once, and add what was drawn since the reading before."""
        value, now = reader.read(), self._clock()
        if self._latest is None or self._drawn is None:
            joules, seconds = 0.0, 0.0
        else:
            then, before = self._latest
            new = value - before if reader.counts else (value + before) / 2 * (now - then)
            if not new >= 0:
                raise ValueError(f"{reader.source} went from {before:g} to {value:g}")
            joules, seconds = self._drawn.joules + new, self._drawn.seconds + now - then
        self._latest, self._drawn = (now, value), Drawn(joules, seconds, reader.source)

    def drawn(self) -> Drawn | None:
        """What was drawn so far; None where there is nothing to read."""
        found = self._drawn
        if self._failed is not None:
            return Drawn(found.joules, found.seconds, found.source, self._failed) if found else _nothing(self._failed)
        return found

    def __enter__(self) -> "Sampler":
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads
            self._failed = str(error)
        else:
            self._first.wait(FIRST)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        self._stop.set()
        if not self._thread.ident:
            return
        self._thread.join(LAST)
        if self._thread.is_alive() and self._failed is None:
            self._failed = f"a reading did not come back within {LAST:g} s"

    def _run(self) -> None:
        """The thread: a reading at the start, one every now and then, and one at the end."""
        try:
            reader = self._open()
            failures = 0
            while reader is not None:
                is_last = self._stop.is_set()
                try:
                    self.sample(reader)
                    failures = 0
                except Exception as error:  # drivers and libraries fail in ways of their own
                    failures += 1
                    if failures > PATIENCE or self._latest is None:
                        self._failed = f"{reader.source}: {type(error).__name__}: {error}"
                        return
                self._first.set()
                if is_last:
                    return
                self._stop.wait(self.every)
        except Exception as error:
            self._failed = f"{type(error).__name__}: {error}"
        finally:
            self._first.set()


def _nothing(failed: str) -> Drawn:
    return Drawn(0.0, 0.0, "", failed)


def watch(device: torch.device) -> Sampler | None:
    """A sampler for the card that this device is; None for a CPU.

    Example:
        >>> watch(torch.device("cpu"))
    """
    if device.type != "cuda":
        return None
    card = card_of(device)
    return Sampler(lambda: open_reader(card), card=card)


def card_of(device: torch.device) -> str:
    """The name of a card that its driver knows: its UUID. CUDA numbers only those cards that it was told to see."""
    index = torch.cuda.current_device() if device.index is None else device.index
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if uuid is not None:
        return f"GPU-{str(uuid).removeprefix('GPU-')}"
    visible = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    return visible[index] if index < len(visible) else str(index)


def open_reader(card: str) -> Reader | None:
    """The best way to read a card that works here; None if there is none.

    Args:
        card: its UUID, or its number among all cards of the machine.
    """
    for make in (_nvml_energy, _nvml_power, _nvidia_smi):
        with contextlib.suppress(Exception):  # not installed, no driver, not supported by this card …
            reader = make(card)
            reader.read()
            return reader
    return None


def _nvml_energy(card: str) -> Reader:
    nvml, handle = _nvml(card)
    return Reader("nvml energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000, counts=True)


def _nvml_power(card: str) -> Reader:
    nvml, handle = _nvml(card)
    return Reader("nvml power", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)


def _nvml(card: str) -> tuple[Any, Any]:
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    by_number = card.isdigit()
    return nvml, nvml.nvmlDeviceGetHandleByIndex(int(card)) if by_number else nvml.nvmlDeviceGetHandleByUUID(card)


def _nvidia_smi(card: str) -> Reader:
    command = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits", "-i", card]

    def read() -> float:
        # In a session of its own: a Ctrl-C that is meant for the training must not end it.
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, check=True, start_new_session=True
        )
        return float(said.stdout)

    return Reader("nvidia-smi", read)
