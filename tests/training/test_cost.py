"""What a stage took, over stops and processes too; and nothing that fails there stops a run."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import toys

from spikezip.training import InterruptedRunError, Trained, cost, power
from spikezip.training.cost import Cost, Meter, of_all
from spikezip.training.power import Drawn, Reader, Sampler

STAGES: dict[str, Any] = {
    "relu": toys.stage(epochs=2),
    "quantize": {"batches": 1},
    "qat": toys.stage(epochs=1, learning_rate=1e-3, distill={}),
    "convert": True,
    "verify": {"samples": 8},
}
KEYS = {"joules", "watts", "device_seconds", "power_source"}


def run(output: Path, stages: dict[str, Any] = STAGES, **more: Any) -> Trained:
    return toys.run(toys.vit(hidden_act="relu"), stages, toys.images(train=64, test=32), output, tried=False, **more)


def constant(watts: float) -> Callable[[], Reader]:
    return lambda: Reader("nvml power", lambda: watts)


def read_with(monkeypatch: pytest.MonkeyPatch, open_it: Callable[[], Reader | None], **more: Any) -> None:
    """Give the CPU a card that is read like this, many times a second."""
    monkeypatch.setattr(power, "watch", lambda device: Sampler(open_it, card="GPU-toy", every=0.01, **more))


# ---- runs ----


def test_a_run_on_the_cpu_has_seconds_and_no_joules(tmp_path: Path) -> None:
    result = run(tmp_path / "run")
    for stage in ("relu", "qat", "snn"):
        assert result.metrics[stage]["seconds"] > 0
        assert not (KEYS | {"cost_note"}) & result.metrics[stage].keys()
    assert power.watch(torch.device("cpu")) is None


def test_where_nothing_can_be_read_there_are_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_with(monkeypatch, lambda: None)
    metrics = run(tmp_path / "run").metrics
    assert not (KEYS | {"cost_note"}) & (metrics["relu"].keys() | metrics["snn"].keys())


def test_the_figures_are_in_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_with(monkeypatch, constant(200.0))
    result = run(tmp_path / "run")
    results = json.loads((result.folder / "results.json").read_text())["metrics"]
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    for stage in ("relu", "qat", "snn"):
        found = results[stage]
        assert found["joules"] == pytest.approx(200.0 * found["device_seconds"], abs=0.2)  # rounded to thousandths
        assert found["watts"] == 200.0
        assert found["device_seconds"] >= found["seconds"] > 0  # the first reading comes before, the last one after
        assert found["power_source"] == "nvml power"
        assert found == json.loads(json.dumps(result.metrics[stage]))
        ends = {entry["stage"]: entry for entry in lines if entry.get("done") or entry["stage"] == "verify"}
        logged = ends["verify" if stage == "snn" else stage]
        assert {key: logged[key] for key in KEYS} == {key: found[key] for key in KEYS}


@pytest.mark.parametrize("how", ["stopped", "broken"])
def test_a_resumed_stage_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The clocks are ours: 10 s, and 100 J, for every step. After a stop all are counted, after a crash those kept."""
    steps = 0
    monkeypatch.setattr(cost, "time", SimpleNamespace(monotonic=lambda: 10.0 * steps))

    class Counter:
        card = "GPU-toy"

        def __init__(self) -> None:
            self.began = steps

        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

        def drawn(self) -> Drawn:
            return Drawn(100.0 * (steps - self.began), 10.0 * (steps - self.began), "nvml energy")

    monkeypatch.setattr(power, "watch", lambda device: Counter())

    def watching(act: Callable[[], None] | None) -> Callable[[Any], None]:
        stop = toys.stop_at("relu", 5, act) if act else lambda progress: None
        seen = 0

        def watch(progress: Any) -> None:
            nonlocal steps, seen
            if progress.stage == "relu" and progress.done > seen:
                seen, steps = progress.done, steps + 1
            stop(progress)

        return watch

    def break_down() -> None:
        raise toys.StopError

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    stages = {"relu": toys.stage(epochs=4)}  # two steps each
    act, error = (interrupt, InterruptedRunError) if how == "stopped" else (break_down, toys.StopError)
    with pytest.raises(error):
        run(tmp_path / "run", stages, progress=watching(act))
    metrics = run(tmp_path / "run", stages, resume=True, progress=watching(None)).metrics["relu"]
    assert metrics["steps"] == 8
    assert steps == (8 if how == "stopped" else 9)  # the fifth was lost, and taken again
    assert {key: metrics[key] for key in ("seconds", "device_seconds", "joules", "watts")} == {
        "seconds": 80.0,
        "device_seconds": 80.0,
        "joules": 800.0,
        "watts": 10.0,
    }


def test_a_checkpoint_without_its_cost_goes_on(tmp_path: Path) -> None:
    stages = {"relu": toys.stage(epochs=4)}
    with pytest.raises(InterruptedRunError):
        run(tmp_path / "run", stages, progress=toys.stop_at("relu", 5, lambda: os.kill(os.getpid(), signal.SIGINT)))
    (tmp_path / "run" / "relu" / "checkpoint-6" / "cost.json").write_text("{")
    metrics = run(tmp_path / "run", stages, resume=True).metrics["relu"]
    assert metrics["cost_note"] == "what came before checkpoint-6 was not counted"
    assert metrics["seconds"] > 0


# ---- what fails ----


def failing_later() -> Reader:
    values: Iterator[float] = iter([10.0])  # the first reading; there is one at the end at least
    return Reader("nvidia-smi", lambda: next(values))


def failing_at_once() -> Reader:
    return Reader("nvidia-smi", lambda: float("[N/A]"))


def failing_to_open() -> Reader:
    raise PermissionError("not for you")


@pytest.mark.parametrize(
    ("open_it", "says"),
    [
        (failing_later, "nvidia-smi: StopIteration"),
        (failing_at_once, r"after 0 s: nvidia-smi: ValueError: could not convert .*N/A"),
        (failing_to_open, "after 0 s: PermissionError: not for you"),
    ],
)
def test_what_fails_is_said_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_it: Callable[[], Reader], says: str
) -> None:
    read_with(monkeypatch, open_it)
    monkeypatch.setattr(power, "PATIENCE", 0)
    metrics = run(tmp_path / "run").metrics
    for stage in ("relu", "qat", "snn"):
        assert metrics[stage]["seconds"] > 0
        assert not KEYS & metrics[stage].keys()
    assert re.search(says, metrics["relu"]["cost_note"])
    assert metrics["snn"]["exact"]


def test_a_reader_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "FIRST", 0.05)
    monkeypatch.setattr(power, "LAST", 0.05)
    release = threading.Event()
    monkeypatch.setattr(power, "watch", lambda device: Sampler(lambda: Reader("nvml power", lambda: release.wait(60))))
    with Meter(torch.device("cpu")) as meter:
        pass
    assert meter.sampler is not None
    assert meter.sampler._thread.is_alive()
    assert meter.own().joules is None
    assert "did not come back" in str(meter.own().note)
    release.set()


# ---- parts and processes ----


def test_a_part_that_was_not_read_leaves_no_joules() -> None:
    read, unread = Cost(10.0, 500.0, 10.0, "nvml power"), Cost(5.0, note="reading the card failed")
    for whole in (read + unread, unread + read):
        assert whole.seconds == 15.0
        assert whole.joules is None
        assert whole.note == "reading the card failed; the power of 5 of these 15 s was not read"
    assert Cost(1.0) + Cost(2.0) == Cost(3.0)  # no card, nothing to say
    both = read + Cost(10.0, 700.0, 10.0, "nvidia-smi")
    assert (both.joules, both.source) == (1200.0, "nvml power, nvidia-smi")
    assert Cost.from_json(json.loads(json.dumps(both.to_json()))) == both


def test_all_cards_count_and_each_once() -> None:
    first, second = Cost(10.0, 500.0, 9.0, "nvml energy"), Cost(11.0, 700.0, 10.0, "nvml energy")
    whole = of_all([("GPU-1", first), ("GPU-2", second), ("GPU-2", second)])
    assert whole == Cost(10.0, 1200.0, 19.0, "nvml energy")
    assert whole.to_json()["watts"] == round(1200 / 19, 3)  # of one card, on the average
    one_less = of_all([("GPU-1", first), ("GPU-2", Cost(10.0))])
    assert (one_less.joules, one_less.note) == (None, "the power of 1 of 2 cards was not read")
    assert of_all([(None, Cost(10.0)), (None, Cost(11.0))]) == Cost(10.0)


def test_a_run_adds_the_cards_of_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How processes hear of each other is tested with two of them in test_processes.py."""
    read_with(monkeypatch, constant(100.0))
    alone: list[Cost] = []

    def everybodys(part: tuple[str, Cost]) -> list[tuple[str, Cost]]:
        alone.append(part[1])
        return [part, part, ("GPU-other", part[1])]

    monkeypatch.setattr(cost, "everybodys", everybodys)
    metrics = run(tmp_path / "run", {"relu": toys.stage()}).metrics["relu"]
    own = alone[-1]
    assert own.joules is not None
    assert metrics["joules"] == round(2 * own.joules, 3)
    assert metrics["device_seconds"] == round(2 * own.device_seconds, 3)
    assert metrics["seconds"] == round(own.seconds, 3)
    assert metrics["watts"] == 100.0
