"""Three ways through a training step: the Trainer's own, what a graph would record, its replay. All the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from torch import Tensor

from spikezip.training import graphs, train
from spikezip.training.trainer import StageTrainer


def trained(kind: str, folder: Path, graphed: bool) -> dict[str, Tensor]:
    """The weights of a quantized network, after two short trainings with everything random that there is."""
    if kind == "texts":
        model, data, settings = toys.bert(), toys.texts(), {"dropout": 0.1}
    else:
        model, data = toys.vit(), toys.images()
        settings = {"augmentation": {"flip": True, "mixup": 0.5}, "drop_path": 0.1}
    tokens = {"tokenizer": toys.tokenizer()} if kind == "texts" else {}
    stages: dict[str, Any] = {
        "relu": toys.stage(epochs=1, graphs=graphed, **settings),
        "quantize": {"levels": 16},
        "qat": toys.stage(epochs=1, graphs=graphed, distill={}, **settings),
    }
    found: dict[str, Tensor] = train(
        model, {"name": "t", "stages": stages}, data=data, output=folder, **tokens
    ).qann.state_dict()
    return found


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_what_would_be_recorded_computes_what_the_trainer_computes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trained(kind, tmp_path / "plain", graphed=False)
    calls = []
    whole = StageTrainer._whole_loss
    monkeypatch.setattr(graphs, "MOST", 0)  # nothing is recorded, what would be is run
    monkeypatch.setattr(StageTrainer, "uses_graphs", lambda self, model: True)
    monkeypatch.setattr(StageTrainer, "_whole_loss", lambda self, inputs: calls.append(1) or whole(self, inputs))
    found = trained(kind, tmp_path / "run", graphed=True)
    assert calls
    assert same(found, plain)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are recorded on a GPU")
@pytest.mark.parametrize("kind", ["images", "texts"])
def test_a_replayed_step_computes_what_the_trainer_computes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trained(kind, tmp_path / "plain", graphed=False)
    recorded = []
    record = graphs._recorded
    monkeypatch.setattr(graphs, "_recorded", lambda *given: recorded.append(1) or record(*given))
    found = trained(kind, tmp_path / "replayed", graphed=True)
    assert recorded
    assert same(found, plain)
