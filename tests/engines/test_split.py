"""A batch on several threads: the same run, whatever the number of threads; errors come through."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

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


class Two(nn.Module):
    """Two layers; subclasses say what is done before and behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)

    def layers(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class BatchLast(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).transpose(0, 2)


class Flat(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).reshape(-1)


class TokensFirst(Two):
    """Sites hold the samples within a dimension: all first tokens, then all second ones."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x.transpose(0, 1).reshape(-1, 6))
        return y.reshape(x.shape[1], x.shape[0], 4).transpose(0, 1)


class WeightsFirst(Two):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first.weight * 1, self.layers(x)


class Total(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).sum()


class Squeezed(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)[:, :1, :1].squeeze()


class Shared(Two):
    """The neurons behind the moment are the same for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.moments = nn.Embedding(5, 6)

    def forward(self, x: Tensor, moment: Tensor) -> Tensor:
        return self.layers(x) + self.layers(self.moments(moment))


@pytest.mark.parametrize("engine", ["spike", "folded", "event"])
@pytest.mark.parametrize("network", [BatchLast, Flat, TokensFirst, WeightsFirst, Total, Squeezed, Shared])
def test_outputs_of_any_form(network: Any, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {"x": torch.randn(3, 5, 6)}
    if network is Shared:
        batch["moment"] = torch.tensor(3)
    snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(network(), example=batch), batch))
    settings: dict[str, Any] = {"steps": "equilibrium", "record": list(snn.neurons), "count_neurons": True}
    if engine == "folded" and network in (Total, Shared):  # samples meet there
        return
    alone = spikezip.simulate(snn, batch, engine="spike", **settings)
    assert alone.logits.shape == snn_output(snn, batch).shape
    for threads in (1, 2, 3):
        on_threads(threads, monkeypatch)
        run = spikezip.simulate(snn, batch, engine=engine, **settings)
        assert torch.equal(run.logits_per_step, alone.logits_per_step), threads
        for name in ("trains", "tracers", "neuron_spikes", "spike_counts"):
            assert all(torch.equal(x, getattr(alone, name)[site]) for site, x in getattr(run, name).items()), name


def snn_output(snn: Any, batch: Any) -> Tensor:
    output = snn(batch)
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


class Centred(nn.Module):
    """Samples meet one another before the first site: what depends on them does not vary over time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return self.last(h - h.mean(0))


def test_a_batch_whose_samples_meet_in_the_input_layer_is_not_split() -> None:
    batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    qann = spikezip.calibrate(spikezip.quantize(Centred(), example=batch), batch)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for engine in ("folded", "event", "spike"):
            assert spikezip.verify(qann, spikezip.convert(qann), batch, engine=engine).exact
    finally:
        torch.set_num_threads(threads)
