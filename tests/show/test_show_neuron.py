"""Single neurons and rasters: what is drawn is what fired."""

import pytest
import torch
from shown import VIT, networks

from spikezip.engines import simulate
from spikezip.errors import ConfigError, InputError
from spikezip.show.neuron import neuron_figure, trace_neurons
from spikezip.show.raster import raster

SITES = {"layers.0.attention.q": [0, 77], "layers.1.mlp.activation_fn": [5]}


@pytest.mark.parametrize("coding", ["analog", "rate"])
def test_traces_are_the_run(coding: str) -> None:
    _, snn, batch = networks(VIT)
    sites = {**SITES, "embeddings": [3]}
    traces = trace_neurons(snn, batch, sites, sample=1, coding=coding)
    run = simulate(snn, batch["pixel_values"][1:2], steps="equilibrium", coding=coding, record=list(sites))
    assert [trace.site for trace in traces] == ["layers.0.attention.q"] * 2 + [
        "layers.1.mlp.activation_fn",
        "embeddings",
    ]
    for trace in traces:
        train = run.trains[trace.site][:, 0][(slice(None), *trace.place)].tolist()
        assert trace.spikes == train
        assert trace.tracer[-1] == trace.code[-1]  # at rest the tracer is the quantizer's code
        before = 0
        for spike, code, u, v, s in zip(
            train, trace.code, trace.accumulated, trace.membrane, trace.tracer, strict=True
        ):
            assert spike == max(-1, min(1, code - before))  # the quantizer behind a slew-rate limiter
            assert v == pytest.approx(trace.scale / 2 + u - trace.scale * s, abs=1e-6)  # recomputed from rounded floats
            before = s


def test_neuron_figure() -> None:
    _, snn, batch = networks(VIT)
    traces = trace_neurons(snn, batch, SITES)
    axes = neuron_figure(traces).axes
    membranes = [axis for axis in axes if axis.get_ylabel().startswith("membrane")]
    assert [list(axis.lines[0].get_ydata()) for axis in membranes] == [trace.membrane for trace in traces]
    with pytest.raises(ConfigError, match="no neuron to draw"):
        neuron_figure([])


def test_wrong_neurons() -> None:
    _, snn, batch = networks(VIT)
    with pytest.raises(ConfigError, match="no site is called 'x'"):
        trace_neurons(snn, batch, {"x": [0]})
    with pytest.raises(ConfigError, match="embeddings has 544 neurons, counted from 0: there is no 544"):
        trace_neurons(snn, batch, {"embeddings": [544]})


def test_raster_shows_every_spike() -> None:
    _, snn, batch = networks(VIT)
    site = "layers.0.attention.q"
    run = simulate(snn, batch, steps="equilibrium", record=[site, "layernorm"])
    spikes, counts = raster(run, [site], sample=2, neurons=10**6).axes
    train = run.trains[site][:, 2].reshape(run.steps, -1)
    up, down = (collection.get_offsets() for collection in spikes.collections)
    assert (len(up), len(down)) == (int((train > 0).sum()), int((train < 0).sum()))
    step, neuron = (train > 0).nonzero(as_tuple=True)
    assert torch.equal(torch.tensor(up.data), torch.stack([step + 1, neuron], dim=1).double())
    heights = [bar.get_height() for bar in counts.patches]
    assert heights == [*train.clamp(min=0).sum(dim=1).tolist(), *train.clamp(max=0).sum(dim=1).tolist()]
    assert len(raster(run).axes) == 4


def test_wrong_rasters() -> None:
    _, snn, batch = networks(VIT)
    run = simulate(snn, batch, steps=3, record=["layernorm"])
    with pytest.raises(ConfigError, match="'embeddings' was recorded in this run"):
        raster(run, ["embeddings"])
    with pytest.raises(InputError, match="no sample 3"):
        raster(run, sample=3)
    with pytest.raises(ConfigError, match="no site was recorded"):
        raster(simulate(snn, batch, steps=3))
