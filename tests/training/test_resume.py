"""A run that was stopped and resumed ends where a run that was not stopped ends, bit for bit."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import toys

from spikezip.data.images import Images
from spikezip.errors import ConfigError
from spikezip.training import InterruptedRunError, Trained

DATA = toys.images(train=208, test=40)  # 6 batches of 32 per epoch, and some samples left out
RANDOM = {"dropout": 0.1, "augmentation": {"crop_padding": 1, "mixup": 0.8, "erase": 0.3}}
STAGES: dict[str, Any] = {
    "relu": toys.stage(epochs=3, **RANDOM, warmup_epochs=0.5),
    "quantize": {"batches": 2},
    "qat": toys.stage(epochs=3, learning_rate=1e-3, distill={}, scale_learning_rate=2.0, **RANDOM),
}


def run(output: Path, **more: Any) -> Trained:
    return toys.run(toys.vit(hidden_dropout_prob=0.2), STAGES, DATA, output, tried=False, **more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return run(tmp_path_factory.mktemp("whole") / "run")


def interrupt(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def raise_stop() -> None:
    raise toys.StopError


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("stage", "sent", "stops", "number"),
    [
        ("relu", 2, 3, signal.SIGINT),  # in the first epoch, before any evaluation
        ("relu", 15, 16, signal.SIGTERM),  # in the last, when there is a best checkpoint as well
        ("relu", 11, 12, signal.SIGINT),  # between two epochs
        ("relu", 17, 18, signal.SIGINT),  # at the last step
        ("relu", 18, 18, signal.SIGINT),  # after it
        ("qat", 8, 9, signal.SIGINT),
    ],
)
def test_a_stopped_run_goes_on_bit_for_bit(
    tmp_path: Path, whole: Trained, stage: str, sent: int, stops: int, number: int
) -> None:
    """The watcher is told of a step when that step's chance to stop is over: the run stops at the next one."""
    output = tmp_path / "run"
    before = signal.getsignal(number)
    with pytest.raises(InterruptedRunError, match=f"in stage {stage} at step {stops} of 18; saved in .*{stage}"):
        run(output, progress=toys.stop_at(stage, sent, lambda: interrupt(number)))
    assert signal.getsignal(number) is before
    assert f"checkpoint-{stops}" in checkpoints(output / stage)
    steps: list[int] = []
    resumed = run(output, resume=True, progress=lambda p: steps.append(p.done) if p.stage == stage else None)
    assert min(steps) == min(stops + 1, 18)  # nothing is done twice
    assert_same(resumed, whole)


def assert_same(one: Trained, other: Trained) -> None:
    assert toys.same_weights(one.qann, other.qann)
    for stage in ("relu", "qat"):
        ours, theirs = ({k: v for k, v in r.metrics[stage].items() if k != "seconds"} for r in (one, other))
        assert ours == theirs
    assert checkpoints(one.folder / "relu") == checkpoints(one.folder / "qat") == []


def test_the_best_network_is_kept_over_a_stop(tmp_path: Path) -> None:
    stages = {"relu": {**STAGES["relu"], "keep": "best", "label_smoothing": 0.1}}

    def best(output: Path, **more: Any) -> Trained:
        return toys.run(toys.vit(), stages, DATA, output, **more)

    whole = best(tmp_path / "whole")
    with pytest.raises(InterruptedRunError, match="at step 14 of 18"):
        best(tmp_path / "run", progress=toys.stop_at("relu", 13, interrupt))
    resumed = best(tmp_path / "run", resume=True)
    assert toys.same_weights(resumed.model, whole.model)
    assert resumed.metrics["relu"]["best_step"] == whole.metrics["relu"]["best_step"]
    assert (tmp_path / "run" / "relu" / "best" / "model.safetensors").is_file()


@pytest.mark.parametrize(("stage", "step", "begins"), [("relu", 15, 13), ("qat", 8, 7)])
def test_a_run_that_broke_goes_on_from_its_last_evaluation(
    tmp_path: Path, whole: Trained, stage: str, step: int, begins: int
) -> None:
    output = tmp_path / "run"
    with pytest.raises(toys.StopError):
        run(output, progress=toys.stop_at(stage, step, raise_stop))
    seen: list[int] = []
    resumed = run(output, resume=True, progress=lambda p: seen.append(p.done) if p.stage == stage else None)
    assert min(seen) == begins
    assert_same(resumed, whole)


class Flipped(Images):
    """Random as pictures that are cut when they are read: each is mirrored, or not."""

    def __getitems__(self, indices: Any) -> dict[str, Any]:
        batch = super().__getitems__(indices)
        chosen = torch.rand(len(batch["labels"])) < 0.5
        batch["pixel_values"][chosen] = batch["pixel_values"][chosen].flip(-1)
        return batch


def test_what_is_drawn_while_reading_is_drawn_again(tmp_path: Path) -> None:
    """Whoever reads, and however far ahead: batches are drawn by their samples."""
    data = replace(DATA, train=Flipped(*toys.patches(208, seed=1)))
    stages = {"relu": toys.stage(epochs=3, dropout=0.1)}

    def flipped(name: str, **more: Any) -> Trained:
        return toys.run(toys.vit(), stages, data, tmp_path / name, **more)

    whole = flipped("whole")
    assert toys.same_weights(flipped("workers", workers=1).model, whole.model)
    with pytest.raises(InterruptedRunError):
        flipped("run", progress=toys.stop_at("relu", 7, interrupt), workers=1)
    assert toys.same_weights(flipped("run", resume=True, workers=1).model, whole.model)
    plain = toys.run(toys.vit(), stages, DATA, tmp_path / "plain")
    assert not toys.same_weights(plain.model, whole.model)


def test_finished_stages_are_not_run_again(tmp_path: Path, whole: Trained) -> None:
    lines = (whole.folder / "metrics.jsonl").read_text().splitlines()
    seen: list[str] = []
    again = run(whole.folder, resume=True, progress=lambda progress: seen.append(progress.stage))
    assert seen == []
    assert toys.same_weights(again.qann, whole.qann)
    assert again.metrics == json.loads(json.dumps(whole.metrics))
    assert (whole.folder / "metrics.jsonl").read_text().splitlines() == lines


def test_another_seed_gives_other_weights(tmp_path: Path, whole: Trained) -> None:
    assert not toys.same_weights(run(tmp_path / "run", seed=1).qann, whole.qann)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"stages": {**STAGES, "qat": {**STAGES["qat"], "epochs": 4}}},
            r"stages\.qat\.epochs was 3\.0, now it is 4\.0",
        ),
        ({"stages": {**STAGES, "quantize": {"levels": 8}}}, r"stages\.quantize\.batches was 2, now it is 8"),
        ({"seed": 5}, "seed was 0, now it is 5"),
        ({"stages": {"relu": STAGES["relu"]}}, r"stages\.qat.* now it is None"),
    ],
)
def test_another_recipe_is_refused(whole: Trained, change: dict[str, Any], says: str) -> None:
    stages = change.pop("stages", STAGES)
    with pytest.raises(ConfigError, match=f"was begun with another recipe: {says}"):
        toys.run(toys.vit(), stages, DATA, whole.folder, resume=True, **change)


def test_what_changes_nothing_may_change(whole: Trained) -> None:
    again = run(whole.folder, resume=True, note="a word more", workers=1)
    assert toys.same_weights(again.qann, whole.qann)


def test_folders_that_are_in_use_are_refused(tmp_path: Path, whole: Trained) -> None:
    with pytest.raises(ConfigError, match=r"holds a run already; resume it \(--resume\)"):
        run(whole.folder)
    (tmp_path / "notes.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(ConfigError, match="holds something that is not a run"):
            run(tmp_path, resume=resume)
    with pytest.raises(ConfigError, match="is a file; a run writes a folder"):
        run(tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
