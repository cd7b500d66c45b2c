"""Two processes train the network that one process trains: batches, evaluation, stopping, files."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import several_processes
import torch
import transformers
from safetensors.torch import load_file

from spikezip.training import Trained, callbacks
from spikezip.training.callbacks import StopOnSignal


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both processes have left what they found."""
    home = tmp_path_factory.mktemp("processes")
    here = Path(__file__)
    script = here.with_name("several_processes.py")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", script]
    paths = os.pathsep.join([str(here.parents[2]), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, command), str(home)], env=settings, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return home


@pytest.fixture(scope="module")
def ranks(home: Path) -> list[dict[str, Any]]:
    return [json.loads((home / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return several_processes.whole(tmp_path_factory.mktemp("one") / "one")


def test_both_processes_end_with_one_network(ranks: list[dict[str, Any]]) -> None:
    first, second = ranks
    for key in ("weights", "random", "resumed"):
        assert first[key] == second[key]


def test_it_is_the_network_of_one_process(home: Path, one: Trained, ranks: list[dict[str, Any]]) -> None:
    """Not bit for bit: gradients are sums in another order. (With the epsilon of the recipe that does not grow.)"""
    for stage in ("relu", "qat"):
        file = f"{stage}/model/model.safetensors"
        found, expected = load_file(home / "two" / file), load_file(one.folder / file)
        start = load_file(one.folder / "quantize/model/model.safetensors") if stage == "qat" else None
        assert found.keys() == expected.keys()
        for name in expected:
            assert torch.allclose(found[name].double(), expected[name].double(), rtol=0, atol=1e-5), name
        if start is not None:  # training moved them a hundred times further
            assert max(float((start[n].double() - expected[n].double()).abs().max()) for n in start) > 1e-3
    ours, theirs = ranks[0]["metrics"], one.metrics
    for stage in ("relu", "quantize", "qat", "qann", "snn"):
        assert ours[stage]["accuracy"] == pytest.approx(theirs[stage]["accuracy"], abs=1 / 37 + 1e-9)  # one sample
    for stage in ("relu", "qat"):
        assert ours[stage]["loss"] == pytest.approx(theirs[stage]["loss"], abs=1e-3)  # as above
        assert ours[stage]["steps"] == theirs[stage]["steps"] == 6
    assert ours["qat"]["grid_agreement"] == ours["qann"]["grid_agreement"] == 1.0
    assert ours["snn"]["exact"]


def test_only_the_first_writes(home: Path, one: Trained) -> None:
    def files(folder: Path) -> list[str]:
        # TensorBoard puts time, machine and process into the names of its files.
        found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        return sorted(name.split(".tfevents.")[0] for name in found)

    assert files(home / "two") == files(one.folder)

    def lines(folder: Path) -> list[tuple[Any, ...]]:
        read = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        return [(line["stage"], line.get("step"), sorted(line)) for line in read]

    assert lines(home / "two") == lines(one.folder)


def test_a_signal_to_one_stops_both(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["interrupted"].startswith("stopped in stage relu at step 4 of 6; saved in ")


@pytest.mark.parametrize(("processes", "steps", "every"), [(1, 5000, 1), (2, 50, 1), (2, 500, 5), (2, 5000, 10)])
def test_long_runs_ask_seldom(processes: int, steps: int, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, step, asked = StopOnSignal(), 0, []

    def ask(flag: bool, device: Any) -> bool:
        asked.append(step)
        return step == 2 * every

    monkeypatch.setattr(callbacks, "any_process", ask)
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    while not control.should_training_stop:
        step += 1
        state = SimpleNamespace(global_step=step, max_steps=steps)
        stop.on_step_end(SimpleNamespace(world_size=processes, device="cpu"), state, control)
    assert asked == [every, 2 * every]
    assert control.should_save


def test_both_go_on_bit_for_bit(ranks: list[dict[str, Any]]) -> None:
    version = tuple(map(int, transformers.__version__.split(".")[:2]))
    if ranks[0]["resumed"] is None and version < (5, 22):
        pytest.skip("this transformers cannot resume several processes on the CPU")
    for rank in ranks:
        assert rank["resumed"] == rank["random"]


def test_each_throws_its_own_dice(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["seed"] != ranks[1]["seed"]


def test_both_say_where_it_diverged(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "the parameter classifier.weight holds values that are not finite" in rank["diverged"]
