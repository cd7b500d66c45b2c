"""TensorBoard gets the curves of a stage, in one folder."""

from pathlib import Path

import toys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def test_tensorboard_has_the_curves_of_a_stage(tmp_path: Path) -> None:
    toys.run(toys.vit(hidden_act="relu"), {"relu": toys.stage(epochs=2)}, toys.images(64, 32), tmp_path / "run")
    assert {path.parent for path in tmp_path.rglob("events.out.*")} == {tmp_path / "run" / "relu" / "tensorboard"}
    events = EventAccumulator(str(tmp_path / "run" / "relu" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("eval/accuracy")] == [2, 4]
    assert len(events.Scalars("train/loss")) == 4
