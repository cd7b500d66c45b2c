"""What a CUDA graph would record, run without recording: the same training, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
import toys

from spikezip.training import graphs, train
from spikezip.training.trainer import StageTrainer


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_a_recorded_step_computes_what_the_trainer_computes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> tuple[Any, Any, dict[str, Any]]:
        torch.manual_seed(0)
        if kind == "texts":
            return toys.bert(), toys.texts(), {"dropout": 0.1}
        return toys.vit(), toys.images(), {"augmentation": {"flip": True, "mixup": 0.5}, "drop_path": 0.1}

    model, data, settings = make()
    tokens = {"tokenizer": toys.tokenizer()} if kind == "texts" else {}
    stages = {
        "relu": toys.stage(epochs=1, **settings),
        "quantize": {"levels": 16},
        "qat": toys.stage(epochs=1, distill={}, **settings),
    }
    recipe = {"name": "t", "stages": stages}
    plain = train(model, recipe, data=data, output=tmp_path / "plain", **tokens).qann.state_dict()
    calls = []
    whole = StageTrainer._whole_loss
    monkeypatch.setattr(graphs, "MOST", 0)  # nothing is recorded, what would be is run
    monkeypatch.setattr(StageTrainer, "uses_graphs", lambda self, model: True)
    monkeypatch.setattr(StageTrainer, "_whole_loss", lambda self, inputs: calls.append(1) or whole(self, inputs))
    model, data, settings = make()
    found = train(model, recipe, data=data, output=tmp_path / "graphs", **tokens).qann.state_dict()
    assert calls
    assert all(torch.equal(found[name], value) for name, value in plain.items())
