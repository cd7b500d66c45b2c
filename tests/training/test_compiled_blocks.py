"""Blocks through torch.compile: the same training, and nothing left behind. The backend that only traces stands in for
the compiler, which takes half a minute and needs one of its own."""

from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
import toys
from torch._dynamo.utils import counters

from spikezip.training import compiled
from spikezip.training.depth import dropping_paths

# Where a tensor is no leaf, torch's tracing hears a warning and hides it; as an error it would not get that far.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def _traced(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


def step(model: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits and gradients of a training step."""
    model.zero_grad()
    torch.manual_seed(1)
    logits = model(**batch).logits
    logits.square().sum().backward()
    return logits.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("name", "graphs"),
    [
        ("ViTForImageClassification", 1),
        ("BertForSequenceClassification", 1),
        ("SwinForImageClassification", None),  # by stage and shift
    ],
)
def test_a_compiled_step_is_the_same_step(name: str, graphs: int | None) -> None:
    model = tiny_models.make(name).train()
    batch = tiny_models.inputs(model)
    with dropping_paths(model, 0.0 if "Bert" in name else 0.3):
        logits, gradients = step(model, batch)
        with compiled.compiled_blocks(model):
            found, their_gradients = step(model, batch)
            assert counters["stats"]["unique_graphs"] > 0
            assert graphs is None or counters["stats"]["unique_graphs"] == graphs  # blocks that are alike: once
            assert not counters["graph_break"]
    # Decomposed operators sum in another order: rounding of float32.
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(gradients, their_gradients, strict=True):
        torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=1e-4)


def test_evaluation_is_not_compiled() -> None:
    model = tiny_models.make("ViTForImageClassification").eval()
    batch = tiny_models.inputs(model)
    expected = model(**batch).logits
    with compiled.compiled_blocks(model):
        assert torch.equal(model(**batch).logits, expected)
        with torch.no_grad():
            model.train()(**batch)
    assert not counters["stats"]


def test_a_run_is_compiled_where_it_is_asked_for(tmp_path: Path) -> None:
    accuracies = {}
    for wanted in (False, True):
        model = toys.vit(hidden_act="relu", hidden_dropout_prob=0.0)
        stages = {"relu": toys.stage(epochs=12, compile=wanted)}
        result = toys.run(model, stages, toys.images(), tmp_path / str(wanted))
        accuracies[wanted] = result.metrics["relu"]["accuracy"]
        assert bool(counters["stats"]) == wanted
        assert not any("forward" in vars(module) for module in model.modules())
    assert accuracies[True] == pytest.approx(accuracies[False], abs=0.05)  # sums in another order, 96 steps on
    assert accuracies[True] > 0.8
