"""A chunk that does not fit into a GPU's memory is taken in parts, and nothing is lost."""

from typing import Any

import pytest
import torch
import transformers

import spikezip
from spikezip.simulate.folded import FoldedEngine


@pytest.fixture(scope="module")
def network() -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    images = torch.randn(3, 3, 8, 8)
    model = transformers.ViTForImageClassification(config)
    return spikezip.convert(spikezip.calibrate(spikezip.quantize(model), images)), images


def full_after(calls: int, most: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A memory in which only `most` steps fit, from the middle of a forward pass on; the sizes that were tried."""
    tried: list[int] = []
    walk, begin = FoldedEngine._walk, FoldedEngine.begin
    seen = {"sites": 0}

    def start(self: Any, steps: int) -> None:
        tried.append(steps)
        seen["sites"] = 0
        begin(self, steps)

    def spoiled(self: Any, *args: Any) -> Any:
        seen["sites"] += 1
        if self.steps > most and seen["sites"] > calls:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return walk(self, *args)

    monkeypatch.setattr(FoldedEngine, "begin", start)
    monkeypatch.setattr(FoldedEngine, "_walk", spoiled)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    return tried


@pytest.mark.parametrize("chunk", [12, None])
@pytest.mark.parametrize("calls", [0, 7])
def test_a_chunk_that_does_not_fit_is_taken_in_parts(
    network: Any, chunk: int | None, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    snn, images = network
    site = next(iter(snn.neurons))
    settings: dict[str, Any] = {
        "engine": "folded",
        "chunk": chunk,
        "record": [site],
        "count_neurons": True,
        "stagger": 0.25,
    }
    expected = spikezip.simulate(snn, images, 20, stop_early=False, **settings)
    tried = full_after(calls, 3, monkeypatch)
    with pytest.warns(UserWarning, match="6 steps at once do not fit .* taking 3" if chunk else "4 steps .* taking 2"):
        found = spikezip.simulate(snn, images, 20, stop_early=False, **settings)
    assert max(tried) > 3
    assert sum(n for n in tried if n <= 3) == 20
    assert torch.equal(found.logits_per_step, expected.logits_per_step)
    assert torch.equal(found.trains[site], expected.trains[site])
    for name, counts in expected.spike_counts.items():
        assert torch.equal(found.spike_counts[name], counts)
        assert torch.equal(found.tracers[name], expected.tracers[name])
        assert torch.equal(found.neuron_spikes[name], expected.neuron_spikes[name])


def test_a_step_that_does_not_fit_is_an_error(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    snn, images = network
    full_after(3, 0, monkeypatch)
    with pytest.raises(torch.OutOfMemoryError):
        spikezip.simulate(snn, images, 8, "folded", chunk=8)


@pytest.mark.parametrize("engine", ["folded", "spike", "event"])
def test_codes_are_kept_in_bytes_where_they_fit(network: Any, engine: str) -> None:
    snn, images = network
    run = spikezip.simulate(snn, images, 3, engine)
    assert {codes.dtype for codes in run.tracers.values()} == {torch.int8}
    model = transformers.ViTForImageClassification(snn.config)
    wide = spikezip.convert(spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(levels=256)), images))
    found = spikezip.simulate(wide, images, 300, engine, stop_early=False)
    for name, codes in found.tracers.items():
        assert codes.dtype == (torch.int16 if wide.neurons[name].hi > 127 else torch.int8)
    assert max(int(codes.max()) for codes in found.tracers.values()) > 127
