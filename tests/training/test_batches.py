"""The batch of a recipe is the batch of a step, however it is cut into parts; and arguments that cannot be met."""

from pathlib import Path
from typing import Any

import pytest
import torch
import toys

from spikezip.data import Pixels, collate
from spikezip.errors import ConfigError
from spikezip.training.settings import TrainStage
from spikezip.training.trainer import StageTrainer, arguments_for

FINE: dict[str, Any] = {"processes": 1, "seed": 0, "precision": "float32", "workers": 0, "cpu": True}


def stage(**settings: Any) -> TrainStage:
    return TrainStage.from_json(toys.stage(**settings))


def trainer(stage: TrainStage, folder: Path, samples: int = 96, model: Any = None, **more: Any) -> StageTrainer:
    data = toys.images(train=samples)
    arguments = arguments_for(stage, folder, samples, **FINE)
    return StageTrainer(model or toys.vit(), stage, arguments, data.train, data.test, classes=4, **more)


class Seen:
    """The labels' split, that remembers which samples were asked for."""

    def __init__(self, split: Any) -> None:
        self.split, self.asked = split, []

    def __len__(self) -> int:
        return len(self.split)

    def __getitems__(self, indices: Any) -> Any:
        self.asked.append(list(indices))
        return self.split.__getitems__(indices)


@pytest.mark.parametrize("samples", [96, 104, 127])
def test_steps_of_parts_are_steps_of_whole_batches(tmp_path: Path, samples: int) -> None:
    """Samples that fill no batch are left out, also where they would fill a part of one."""
    ends = []
    for micro in (None, 8):
        settings = stage(epochs=2, micro_batch_size=micro, evaluate_every=0, clip=0.1, epsilon=1e-3)
        pixels = Pixels(8, (0.5,) * 3, (0.5,) * 3)
        made = trainer(settings, tmp_path / str(micro), samples, pixels=pixels)
        made.train_dataset = Seen(made.train_dataset)
        made.train()
        assert made.state.global_step == 6
        asked = [index for batch in made.train_dataset.asked for index in batch]
        epochs = [asked[:96], asked[96:192]]
        assert len(asked) == 192
        assert all(len(set(epoch)) == 96 for epoch in epochs)
        assert epochs[0] != epochs[1]
        ends.append((asked, made.model))
    assert ends[0][0] == ends[1][0]
    start = toys.vit().state_dict()
    for name, weight in ends[0][1].state_dict().items():
        # Not equal: gradients are summed in another order. (AdamW divides by their size, which makes noise of the
        # gradients that are 0 in theory, such as that of a key's bias; hence the epsilon.)
        assert torch.allclose(weight, ends[1][1].state_dict()[name], rtol=0, atol=1e-6), name
    assert max(float((start[n] - w).abs().max()) for n, w in ends[0][1].state_dict().items()) > 5e-3


@pytest.mark.parametrize(
    ("settings", "processes", "samples", "expected"),
    [
        ({}, 1, 100, (32, 1, 3)),
        ({"micro_batch_size": 8}, 1, 100, (8, 4, 3)),
        ({"micro_batch_size": 8}, 2, 100, (8, 2, 3)),
        ({"micro_batch_size": 32}, 4, 100, (8, 1, 3)),
        ({"epochs": 0.5}, 1, 256, (32, 1, 4)),
        ({"epochs": 0.01}, 1, 64, (32, 1, 1)),
        ({"epochs": 2}, 8, 67, (4, 1, 4)),
    ],
)
def test_arguments_by_hand(
    tmp_path: Path, settings: dict[str, Any], processes: int, samples: int, expected: tuple[int, int, int]
) -> None:
    made = arguments_for(stage(**settings), tmp_path, samples, **{**FINE, "processes": processes})
    assert (made.per_device_train_batch_size, made.gradient_accumulation_steps, made.max_steps) == expected


def test_warm_up_and_evaluations_in_steps(tmp_path: Path) -> None:
    made = arguments_for(stage(epochs=5, warmup_epochs=2, evaluate_every=0.5), tmp_path, 320, **FINE)
    assert (made.max_steps, made.warmup_steps, made.eval_steps, made.save_steps) == (50, 20, 5, 5)
    assert arguments_for(stage(epochs=5, evaluate_every=0), tmp_path, 320, **FINE).eval_steps == 50


@pytest.mark.parametrize(
    ("settings", "processes", "samples", "says"),
    [
        ({}, 3, 100, "batch_size 32 cannot be divided among 3 processes"),
        ({"micro_batch_size": 16}, 4, 31, "batch_size 32 is more than the 31 training samples"),
        ({"batch_size": 24, "micro_batch_size": 8}, 2, 100, "micro_batch_size 8 × 2 processes does not divide"),
    ],
)
def test_batches_that_cannot_be(
    tmp_path: Path, settings: dict[str, Any], processes: int, samples: int, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        arguments_for(stage(**settings), tmp_path, samples, **{**FINE, "processes": processes})


def test_evaluation_leaves_nothing_out(tmp_path: Path) -> None:
    """97 samples in batches of 64: the last is not full."""
    data = toys.images(train=64, test=97)
    settings = stage()
    made = StageTrainer(
        toys.vit(), settings, arguments_for(settings, tmp_path, 64, **FINE), data.train, data.test, classes=4
    )
    assert sum(len(batch["labels"]) for batch in made.get_eval_dataloader()) == 97
    assert sum(len(batch["labels"]) for batch in made.get_eval_dataloader(data.train.take(range(7)))) == 7
    assert made.data_collator is collate


def test_rates_rise_and_fall(tmp_path: Path) -> None:
    """Linear warm-up over 2 of 8 steps, then linear decay to 0, of each group's own rate."""
    settings = stage(epochs=8, batch_size=96, warmup_epochs=2, schedule="linear", layer_decay=0.5, learning_rate=1e-3)
    made = trainer(settings, tmp_path)
    made.create_optimizer_and_scheduler(8)
    seen = []
    for _ in range(9):
        seen.append([group["lr"] for group in made.optimizer.param_groups])
        made.optimizer.step()
        made.lr_scheduler.step()
    shares = [0.0, 0.5, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0]
    assert seen == [pytest.approx([share * top for top in seen[2]]) for share in shares]  # products of floats
    assert max(seen[2]) == pytest.approx(1e-3)
