"""Every architecture, exactly: the matrix of model, levels, weights, coding, engine and chunking, sampled pairwise."""

from itertools import product

import pytest
import tiny_models
import torch

import spikezip
from spikezip.engines.loop import find_primary as primary

# One row per test: (levels, weight_bits, coding, max_spike, chunk). Each pair of values occurs; models go round them.
SETTINGS = [
    (4, 8, "analog", 1, 5),
    (16, 8, "rate", 1, 8),
    (32, 8, "analog", 3, 1),
    (4, 16, "rate", 3, 8),
    (16, 16, "analog", 1, 16),
    (32, 16, "rate", 1, 3),
    (256, 8, "analog", 40, 7),
]
CASES = [
    (name, SETTINGS[(i + shift) % len(SETTINGS)]) for (i, name), shift in product(enumerate(tiny_models.HEADS), (0, 3))
]
CASES += [(name, SETTINGS[(i * 2) % len(SETTINGS)]) for i, name in enumerate(tiny_models.BACKBONES)]


@pytest.mark.parametrize(("name", "setting"), CASES, ids=[f"{n}-{'-'.join(map(str, s))}" for n, s in CASES])
def test_snn_equals_qann(name: str, setting: tuple[int, int, str, int, int]) -> None:
    levels, bits, coding, max_spike, chunk = setting
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)
    qann = spikezip.quantize(model, spikezip.QuantConfig(levels=levels, weight_bits=bits))
    spikezip.calibrate(qann, [batch]).eval()
    snn = spikezip.convert(qann)

    certificate = spikezip.verify(qann, snn, [batch], coding=coding, max_spike=max_spike, chunk=chunk)
    assert certificate.exact, str(certificate)
    assert certificate.sites == len(qann.sites)
    assert certificate.t_eq["max"] > (levels // 4) // max_spike, "the network settled at once: the test shows nothing"

    # The same samples one at a time, at the same padded length: not a bit may depend on the company they are in.
    with torch.no_grad():
        together = primary(qann(**batch))
        for i in range(3):
            alone = {k: v[i : i + 1] for k, v in batch.items()}
            assert torch.equal(primary(qann(**alone)), together[i : i + 1])
    alone = {k: v[1:2] for k, v in batch.items()}
    single = spikezip.verify(qann, snn, [alone], coding=coding, max_spike=max_spike)
    assert single.exact, str(single)


@pytest.mark.parametrize("name", list(tiny_models.HEADS))
def test_engines_give_equal_spike_trains(name: str) -> None:
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)
    snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(levels=16)), [batch]))
    everything = list(snn.neurons)
    # Stopped in the middle, where the engines are furthest from where they agree anyway.
    runs = [
        spikezip.simulate(snn, batch, 14, "spike", record=everything),
        spikezip.simulate(snn, batch, 14, "folded", record=everything, chunk=4),
        spikezip.simulate(snn, batch, 14, "folded", record=everything, chunk=14),
        spikezip.simulate(snn, batch, 14, "event", record=everything, chunk=6),
    ]
    assert len(runs[0].trains) == len(everything)
    for run in runs[1:]:
        assert torch.equal(run.logits_per_step, runs[0].logits_per_step)
        assert run.t_eq == runs[0].t_eq
        for site in everything:
            assert run.trains[site].dtype == torch.int8
            assert torch.equal(run.trains[site], runs[0].trains[site]), site
            assert torch.equal(run.spike_counts[site], runs[0].spike_counts[site]), site
