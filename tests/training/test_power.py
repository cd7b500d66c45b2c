"""What a card draws: readings are added up, and the first way to read it that works is taken."""

import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spikezip.training import power
from spikezip.training.power import Drawn, Reader, Sampler


def in_time(values: list[float], times: list[float], counts: bool) -> Drawn | None:
    read, clock = iter(values), iter(times)
    sampler = Sampler(lambda: None, clock=lambda: next(clock))
    for _ in values:
        sampler.sample(Reader("made up", lambda: next(read), counts))
    return sampler.drawn()


# ---- adding up ----


def test_watts_are_added_up_as_trapezoids() -> None:
    found = in_time([100.0, 200.0, 200.0, 0.0], [5.0, 6.0, 8.0, 8.5], counts=False)
    assert found == Drawn(joules=150.0 + 400.0 + 50.0, seconds=3.5, source="made up")


def test_a_counter_is_subtracted() -> None:
    found = in_time([7000.0, 7100.0, 7350.0], [5.0, 6.0, 8.0], counts=True)
    assert found == Drawn(joules=350.0, seconds=3.0, source="made up")


@pytest.mark.parametrize("values", [[5.0, 4.0], [5.0, float("nan")]])
def test_a_counter_that_falls_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="made up went from 5 to"):
        in_time(values, [0.0, 1.0], counts=True)


def test_the_thread_reads_at_the_start_in_between_and_at_the_end() -> None:
    readings = 0
    enough = threading.Event()

    def read() -> float:
        nonlocal readings
        readings += 1
        if readings == 4:
            enough.set()
        return 50.0

    with Sampler(lambda: Reader("nvml power", read), every=0.01, clock=lambda: float(readings)) as sampler:
        assert readings  # a stage begins when its first reading is there
        assert enough.wait(60)
        before = readings
    drawn = sampler.drawn()
    assert readings > before
    assert drawn == Drawn(50.0 * (readings - 1), float(readings - 1), "nvml power")


def test_a_reader_that_fails_now_and_then_is_forgiven() -> None:
    """In between it is a straight line, from 10 W at 0 s to 30 W at 6 s. Then time stands still."""
    values: list[float | None] = [10.0, *[None] * power.PATIENCE, 30.0]
    seconds = -1.0
    over = threading.Event()

    def read() -> float:
        nonlocal seconds
        if not values:
            over.set()
            return 30.0
        seconds += 1.0
        value = values.pop(0)
        if value is None:
            raise OSError("busy")
        return value

    with Sampler(lambda: Reader("nvidia-smi", read), every=0.01, clock=lambda: seconds) as sampler:
        assert over.wait(60)
    assert sampler.drawn() == Drawn(20.0 * 6.0, 6.0, "nvidia-smi")


# ---- cards and their readers ----


def nvml(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {}

    def by(kind: str) -> Callable[[Any], tuple[str, Any]]:
        return lambda name: asked.setdefault("card", (kind, name))

    known = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": by("uuid"),
        "nvmlDeviceGetHandleByIndex": by("index"),
        **functions,
    }
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**known))
    return asked


def not_supported(handle: Any) -> int:
    raise RuntimeError("Not Supported")


def test_the_counter_of_the_card_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = nvml(
        monkeypatch,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: 123_456,
        nvmlDeviceGetPowerUsage=lambda handle: 98_700,
    )
    reader = power.open_reader("GPU-abc")
    assert reader is not None
    assert (reader.source, reader.counts, reader.read()) == ("nvml energy", True, 123.456)
    assert asked["card"] == ("uuid", "GPU-abc")


def test_then_its_power(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = nvml(
        monkeypatch,
        nvmlDeviceGetTotalEnergyConsumption=not_supported,
        nvmlDeviceGetPowerUsage=lambda handle: 98_700,
    )
    reader = power.open_reader("3")
    assert reader is not None
    assert (reader.source, reader.counts, reader.read()) == ("nvml power", False, 98.7)
    assert asked["card"] == ("index", 3)


def command(folder: Path, body: str) -> None:
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)


def test_then_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    command(tmp_path, f'echo "$@" > {tmp_path}/asked; echo 71.25')
    reader = power.open_reader("GPU-abc")
    assert reader is not None
    assert (reader.source, reader.counts, reader.read()) == ("nvidia-smi", False, 71.25)
    said = (tmp_path / "asked").read_text().split()
    assert said == ["--query-gpu=power.draw", "--format=csv,noheader,nounits", "-i", "GPU-abc"]
    command(tmp_path, "echo '[N/A]'")
    assert power.open_reader("GPU-abc") is None
    command(tmp_path, "exit 9")
    assert power.open_reader("GPU-abc") is None


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a card")
def test_then_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert power.open_reader("GPU-abc") is None


@pytest.mark.parametrize(
    ("uuid", "visible", "index", "card"),
    [
        ("1a2b", "5,3", 1, "GPU-1a2b"),  # what CUDA calls 1 may be any card of the machine: its UUID is not mistaken
        ("GPU-1a2b", None, 0, "GPU-1a2b"),
        (None, "5, 3", 1, "3"),
        (None, "GPU-77,GPU-88", 1, "GPU-88"),
        (None, None, 2, "2"),
        (None, "", None, "0"),
    ],
)
def test_which_card_it_is(
    monkeypatch: pytest.MonkeyPatch, uuid: str | None, visible: str | None, index: int | None, card: str
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuid))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    device = torch.device("cuda") if index is None else torch.device("cuda", index)
    assert power.card_of(device) == card
    sampler = power.watch(device)
    assert sampler is not None
    assert sampler.card == card
