"""A batch on several threads: the same run, whatever the number of threads; errors come through."""

from typing import Any

import pytest
import torch
import transformers

import spikezip
from spikezip.engines.folded import FoldedEngine
from spikezip.errors import ConfigError


@pytest.fixture(scope="module")
def bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=40,
        max_position_embeddings=16, hidden_act="relu", num_labels=3,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    ids = torch.randint(0, 40, (7, 9))
    mask = torch.arange(9) < torch.tensor([9, 4, 7, 9, 2, 5, 9])[:, None]
    batch = {"input_ids": ids, "attention_mask": mask.long()}
    return spikezip.convert(spikezip.calibrate(spikezip.quantize(model), batch)), batch


def on_threads(count: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let torch say that it has so many threads; returns what it is set to."""
    told: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    return told


@pytest.mark.parametrize("engine", ["folded", "spike", "event"])
@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 30},
        {"steps": "equilibrium"},
        {"steps": "equilibrium", "max_steps": 5},
        {"steps": 40, "coding": "rate", "max_spike": 2, "stagger": 0.5, "count_neurons": True},
        {"steps": 12, "stop_early": False, "chunk": 5},
    ],
    ids=str,
)
def test_parts_make_the_whole(
    bert: Any, engine: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    snn, batch = bert
    sites = list(snn.neurons)[::3]
    alone = spikezip.simulate(snn, batch, engine=engine, record=sites, **settings)
    for threads in (2, 3, 20):
        told = on_threads(threads, monkeypatch)
        parts = spikezip.simulate(snn, batch, engine=engine, record=sites, **settings)
        assert told == [1] * min(threads, 7) + [threads]
        for name, value in vars(alone).items():
            found = getattr(parts, name)
            if isinstance(value, torch.Tensor):
                assert torch.equal(found, value), name
            elif isinstance(value, dict) and value and isinstance(next(iter(value.values())), torch.Tensor):
                assert list(found) == list(value)
                assert all(torch.equal(found[site], value[site]) for site in value), name
            elif name != "computed_steps":  # a part that rests computes no further
                assert found == value, name
        assert parts.computed_steps <= alone.computed_steps


def test_an_error_comes_through(bert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    snn, batch = bert
    told = on_threads(3, monkeypatch)
    advance, seen = FoldedEngine.advance, []

    def fails(self: FoldedEngine, *args: Any) -> Any:
        seen.append(self.batch)
        if self.batch == 3:  # the last of 2 + 2 + 3
            raise ValueError("a part fails")
        return advance(self, *args)

    monkeypatch.setattr(FoldedEngine, "advance", fails)
    with pytest.raises(ValueError, match="a part fails"):
        spikezip.simulate(snn, batch, 10_000, "folded", chunk=1, stop_early=False)
    assert len(seen) < 1000  # the others did not go on to the end
    assert told[-1] == 3
    with pytest.raises(ConfigError, match="chunk"):
        spikezip.simulate(snn, batch, 8, chunk=0)
