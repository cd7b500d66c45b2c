"""Samples that have settled leave the batch, and nobody can tell from what comes out."""

import pytest
import tiny_models
import torch

import spikezip
from spikezip.simulate import SpikingModel
from spikezip.simulate.folded import FoldedEngine


def several(name: str) -> tuple[SpikingModel, dict[str, torch.Tensor]]:
    """A network, and a batch whose samples take different times to settle."""
    model = tiny_models.make(name)
    batches = [tiny_models.inputs(model) for _ in range(4)]
    batch = {key: torch.cat([each[key] for each in batches]) for key in batches[0]}
    if "input_ids" in batch:  # sentences that say one word over and over are done sooner
        batch["input_ids"][: len(batch["input_ids"]) * 2 // 3, 1:] = 7
    qann = spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(levels=16)), [batch])
    for key, value in batch.items():
        if value.is_floating_point():  # dark pictures are done sooner
            batch[key] = value * torch.linspace(0.02, 1.0, len(value)).view(-1, *[1] * (value.ndim - 1))
    return spikezip.convert(qann), batch


@pytest.mark.parametrize("steps", [40, "equilibrium"])
@pytest.mark.parametrize(
    "name", ["ViTForImageClassification", "BertForSequenceClassification", "SwinForImageClassification"]
)
def test_nobody_can_tell(name: str, steps: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    snn, batch = several(name)
    sizes = []
    advance = FoldedEngine.advance

    def counting(self: FoldedEngine, *args: object) -> object:
        sizes.append(self.settings.batch)
        return advance(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(FoldedEngine, "advance", counting)
    sites = list(snn.neurons)[:3]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # else each thread has a part of the batch
    try:
        found = spikezip.simulate(snn, batch, steps, "folded", chunk=1, record=sites, count_neurons=True)
    finally:
        torch.set_num_threads(threads)
    assert len(set(sizes)) > 1, "nobody has left"
    assert sizes == sorted(sizes, reverse=True)
    expected = spikezip.simulate(snn, batch, steps, "spike", record=sites, count_neurons=True)
    assert found.t_eq == expected.t_eq
    assert len(set(found.t_eq)) > 1
    assert found.steps == expected.steps
    assert torch.equal(found.logits_per_step, expected.logits_per_step)
    assert torch.equal(found.logits, expected.logits)
    for what in ("spike_counts", "tracers", "trains", "neuron_spikes"):
        ours, theirs = getattr(found, what), getattr(expected, what)
        assert ours.keys() == theirs.keys()
        for site in theirs:
            assert torch.equal(ours[site], theirs[site]), (what, site)


def test_without_room_all_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    snn, batch = several("ViTForImageClassification")

    def full(self: FoldedEngine, samples: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("no room")

    expected = spikezip.simulate(snn, batch, "equilibrium", "folded", chunk=1)
    monkeypatch.setattr(FoldedEngine, "part", full)
    found = spikezip.simulate(snn, batch, "equilibrium", "folded", chunk=1)
    assert torch.equal(found.logits_per_step, expected.logits_per_step)
    assert found.t_eq == expected.t_eq
