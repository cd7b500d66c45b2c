"""Frames of events: more channels than the model takes, brought together by a convolution that is folded away."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import toys

from spikezip.data.reduction import has_reduction
from spikezip.training import InterruptedRunError, Trained

DATA = toys.frames()
FINISH: dict[str, Any] = {
    "quantize": {"batches": 2},
    "qat": toys.stage(learning_rate=1e-3, distill={}, augmentation={"shift": 1, "drop": 0.1}),
    "convert": True,
    "verify": {"samples": 16},
}
SHORT = {"relu": toys.stage(augmentation={"rotate": 10.0}), **FINISH, "convert": False, "verify": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    stages = {"relu": toys.stage(epochs=12, learning_rate=1e-2, dropout=0.0), **FINISH}
    return toys.run(toys.vit(seed=1, hidden_act="gelu"), stages, DATA, tmp_path_factory.mktemp("events") / "run")


def test_four_channels_through_a_model_of_three(trained: Trained) -> None:
    assert trained.metrics["relu"]["accuracy"] > 0.9
    assert trained.metrics["qat"]["grid_agreement"] == 1.0
    assert trained.certificate is not None
    assert trained.certificate.exact
    assert not has_reduction(trained.qann)
    assert trained.qann.config.num_channels == 4
    assert trained.qann.vit.embeddings.patch_embeddings.projection.weight.shape == (16, 4, 4, 4)


def test_the_reduction_was_trained(trained: Trained, tmp_path: Path) -> None:
    """What is folded is not the reduction that it started from: the weights of its channels differ."""
    weight = toys.load(trained.folder / "quantize" / "model").vit.embeddings.patch_embeddings.projection.weight
    start = toys.run(toys.vit(seed=1, hidden_act="relu"), {"quantize": {"batches": 1}}, DATA, tmp_path / "run")
    folded = start.qann.vit.embeddings.patch_embeddings.projection.weight
    assert weight.shape == folded.shape
    assert not torch.allclose(weight, folded, atol=1e-2)  # far more than rounding


def test_saved_networks_take_four_channels(trained: Trained) -> None:
    batch = DATA.test.__getitems__(range(8))["pixel_values"]
    qann = toys.load(trained.folder / "qann")
    with torch.no_grad():
        assert torch.equal(qann(pixel_values=batch).logits, trained.qann.eval()(pixel_values=batch).logits)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return toys.run(toys.vit(), SHORT, DATA, tmp_path_factory.mktemp("events") / "short")


@pytest.mark.parametrize("stage", ["relu", "qat"])
def test_a_stopped_run_goes_on_bit_for_bit(short: Trained, tmp_path: Path, stage: str) -> None:
    """In the float stage with its reduction; in the quantized one, which finds the reduction folded."""
    stop = toys.stop_at(stage, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(InterruptedRunError, match=f"in stage {stage} at step 3 of 4"):
        toys.run(toys.vit(), SHORT, DATA, tmp_path / "run", tried=False, progress=stop)
    resumed = toys.run(toys.vit(), SHORT, DATA, tmp_path / "run", tried=False, resume=True)
    assert toys.same_weights(resumed.qann, short.qann)


def test_one_channel_through_a_model_of_three(tmp_path: Path) -> None:
    """Grey images, too: with no float stage the reduction is folded as it starts."""
    stages = {"quantize": {"batches": 1}, "convert": True, "verify": {"samples": 4}}
    result = toys.run(toys.vit(hidden_act="relu"), stages, toys.frames(64, 8, channels=1), tmp_path / "run")
    assert result.metrics["snn"]["exact"]
    assert result.qann.config.num_channels == 1
