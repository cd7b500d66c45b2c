"""Attention with quantized exponentials: the float function stays, and engines agree as ever."""

import families
import pytest
import tiny_models
import torch
from captured import assert_equal_runs, frozen, trains

import spikezip
from spikezip.engines.quantized import quantized
from spikezip.program.attention import is_exponential, weighs_places
from spikezip.program.batch import complete
from spikezip.quant.plain import evaluate_plain

EXPONENTIALS = spikezip.QuantConfig(levels=16, placement="products")
PROBABILITIES = spikezip.QuantConfig(levels=16, placement="products", attention="probabilities")


def model_and_batch(name: str) -> tuple:
    if name in families.FAMILIES:
        return families.build(name), families.FAMILIES[name].batch(0)
    model = tiny_models.make(name)
    return model, tiny_models.inputs(model)


def sites_of_attention(program: spikezip.program.nodes.Program) -> list[str]:
    return [name for name, site in program.sites.items() if is_exponential(program, site.u)]


@pytest.mark.parametrize("name", ["ViTModel", "BertModel", "LlamaForCausalLM", "swinv2", "nn.MultiheadAttention"])
def test_the_float_function_stays(name: str) -> None:
    model, batch = model_and_batch(name)
    values = []
    for config in (EXPONENTIALS, PROBABILITIES):
        qann = spikezip.quantize(model, config, example=batch).eval()
        assert bool(sites_of_attention(qann.program)) == config.exponentials
        assert [weighs_places(qann.program, site.u) for site in qann.sites.values()].count(True) > 0
        with torch.no_grad():
            values.append(evaluate_plain(qann.program, qann.tensors(), complete(qann.program, batch, qann.device)))
    for one, other in zip(*(v.values() for v in values), strict=True):
        # A sum is divided once, where each probability was: last bits differ.
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ViTModel", "BertModel", "LlamaForCausalLM", "swinv2", "nn.MultiheadAttention"])
def test_engines_agree(name: str) -> None:
    model, batch = model_and_batch(name)
    network = frozen(model, batch, EXPONENTIALS)
    _, codes = quantized(network, batch)
    judge = trains(network, batch, "spike", steps="equilibrium")
    assert judge.settled
    assert all(torch.equal(judge.tracers[site].to(codes[site].dtype), codes[site]) for site in codes)
    for engine in ("folded", "event"):
        assert_equal_runs(trains(network, batch, engine, steps="equilibrium", chunk=5), judge)


def test_the_largest_of_every_row_has_a_code() -> None:
    model, batch = model_and_batch("ViTModel")
    network = frozen(model, batch, EXPONENTIALS)
    _, codes = quantized(network, batch)
    for name in sites_of_attention(network.program):
        assert bool((codes[name].amax(-1) > 0).all())


def test_a_softmax_that_something_else_reads_stays() -> None:
    class Both(torch.nn.Module):
        """Returns what it mixes with, too."""

        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            p = (self.q(x) @ self.k(x).mT).softmax(-1)
            return p @ torch.tanh(self.q(x)), p

    x = torch.randn(2, 5, 4)
    qann = spikezip.calibrate(spikezip.quantize(Both(), EXPONENTIALS, example=x), x)
    assert not sites_of_attention(qann.program)
    assert spikezip.verify(qann, spikezip.convert(qann), x).exact


def test_the_paper_quantizes_probabilities() -> None:
    model, batch = model_and_batch("ViTModel")
    assert not sites_of_attention(spikezip.quantize(model, example=batch).program)
    asked = spikezip.QuantConfig(attention="exponentials")
    assert sites_of_attention(spikezip.quantize(model, asked, example=batch).program)
    assert spikezip.QuantConfig.from_json(asked.to_json()) == asked
    with pytest.raises(spikezip.ConfigError, match="attention='exp': choose one of probabilities, exponentials"):
        spikezip.QuantConfig(attention="exp")
