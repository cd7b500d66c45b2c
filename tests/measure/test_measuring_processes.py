"""Two processes measure what one process measures."""

import builtins
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import measured
import pytest
import several_measuring

from spikezip.errors import CheckpointError, ConfigError
from spikezip.measure.document import Measurement
from spikezip.measure.measuring import measure
from spikezip.measure.processes import Processes

pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both processes have left what they found."""
    home = tmp_path_factory.mktemp("measuring")
    here = Path(__file__)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = here.with_name("several_measuring.py")
    paths = os.pathsep.join([str(here.parents[2]), str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *command, str(script), str(home)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return home


@pytest.fixture(scope="module")
def ranks(home: Path) -> list[dict[str, Any]]:
    return [json.loads((home / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_the_document_is_that_of_one_process(home: Path, ranks: list[dict[str, Any]]) -> None:
    one = several_measuring.whole()
    for said in ranks:
        assert Measurement.from_json(said["whole"]) == one
    assert Measurement.load(home / "whole" / "measurement.json") == one
    assert [said["seen"] for said in ranks] == [[2, 3, 5], [3, 5]]  # each had its share
    assert [said["few"] for said in ranks] == [2, 2]


def test_one_certificate_for_both(ranks: list[dict[str, Any]]) -> None:
    expected = several_measuring.altered()
    for said in ranks:
        assert Measurement.from_json(said["altered"]) == expected
        assert said["altered"]["certificate"]["first_mismatch"]["batch"] == 1
        assert said["whole"]["certificate"]["exact"]
        assert said["whole"]["certificate"]["samples"] == sum(several_measuring.SIZES)


def test_stopped_and_resumed(ranks: list[dict[str, Any]]) -> None:
    assert [said["stopped"] for said in ranks] == ["interrupted", "process 0 stopped: KeyboardInterrupt"]
    for said in ranks:
        assert said["resumed"] == said["whole"]


def test_a_mistake_of_one_stops_both(ranks: list[dict[str, Any]]) -> None:
    problem = "batch 4: the label 99 does not fit the head"
    assert ranks[0]["bad_labels"].startswith(f"InputError: {problem}")
    assert ranks[1]["bad_labels"].startswith(f"SpikezipError: process 0 stopped: {problem}")


def test_a_state_of_two_processes_is_not_one_of_one(home: Path) -> None:
    with pytest.raises(CheckpointError, match="another number of processes than the 1 of now"):
        several_measuring.whole(folder=home / "stopped", resume=True)


def test_accelerate_is_imported_only_for_several(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "accelerate":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert measure(measured.networks()[2], measured.batches(1)).data.samples == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="several processes needs accelerate: pip install accelerate"):
        Processes.here()
