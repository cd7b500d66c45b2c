"""Embedding tables on the integer grid: equal in training, evaluation and the spiking network."""

import copy
from typing import Any

import pytest
import tiny_models
import torch
import transformers
from torch import nn

import spikezip
from spikezip.ops.grid import weight_grid
from spikezip.quant.embedding import QuantEmbedding, adopt_embedding
from spikezip.spiking.embedding import SpikingEmbedding

# Post-norm and pre-norm, a site on the table itself (Llama), tied output layers (GPT-2, masked language models).
TEXT = [
    "BertForSequenceClassification",
    "RobertaForMaskedLM",
    "DistilBertForSequenceClassification",
    "ElectraForSequenceClassification",
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
]


def table(bits: int, rows: int = 11, width: int = 7, **settings: Any) -> QuantEmbedding:
    embedding = nn.Embedding(rows, width, **settings)
    with torch.no_grad():
        embedding.weight[3] = 0.0
        embedding.weight[4] *= 1e-3
    adopt_embedding(embedding, "words", bits)
    assert isinstance(embedding, QuantEmbedding)
    return embedding


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_those_of_the_whole_table(bits: int, dtype: torch.dtype) -> None:
    embedding = table(bits).to(dtype)
    codes, scale = weight_grid(embedding.weight, bits)
    whole = codes * scale[:, None]
    assert not torch.equal(whole, embedding.weight), "the grid must be visible, or the test shows nothing"
    ids = torch.tensor([[3, 10, 4], [0, 3, 3]])
    for mode in (True, False):
        assert torch.equal(embedding.train(mode)(ids), whole[ids])
    assert torch.equal(embedding(torch.tensor(5)), whole[5])
    assert embedding(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, 7)


def test_gradients_go_straight_through_except_to_padding() -> None:
    embedding, plain = table(8, padding_idx=2), nn.Embedding(11, 7, padding_idx=2)
    ids = torch.tensor([1, 2, 2, 5, 1])
    weights = torch.randn(5, 7)
    for one in (embedding, plain):
        (one(ids) * weights).sum().backward()
    assert torch.equal(embedding.weight.grad, plain.weight.grad)
    assert not embedding.weight.grad[2].any()
    assert embedding.weight.grad[1].any()


@pytest.mark.parametrize("bits", [8, 16])
def test_the_frozen_table_gives_the_same_values(bits: int) -> None:
    embedding = table(bits)
    frozen = SpikingEmbedding("words", *embedding.grid_weight(), bits, None)
    assert frozen.codes.dtype == (torch.int8 if bits == 8 else torch.int16)
    ids = torch.tensor([[0, 3], [4, 10]])
    assert torch.equal(frozen(ids), embedding(ids))
    assert torch.equal(frozen.weight[ids], frozen(ids))


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("bits", [8, 16])
def test_text_models_convert_exactly(name: str, bits: int) -> None:
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)
    config = spikezip.QuantConfig(levels=16, weight_bits=bits, embedding_bits=bits)
    qann = spikezip.calibrate(spikezip.quantize(model, config), [batch]).eval()
    tables = [m for m in qann.modules() if isinstance(m, nn.Embedding)]
    assert tables
    assert all(isinstance(m, QuantEmbedding) for m in tables)
    snn = spikezip.convert(qann)
    assert sum(isinstance(m, SpikingEmbedding) for m in snn.modules()) == len(tables)
    assert not any(isinstance(m, nn.Embedding) for m in snn.modules())
    for engine in ("folded", "spike", "event"):
        certificate = spikezip.verify(qann, snn, [batch], engine=engine)
        assert certificate.exact, str(certificate)


def test_the_grid_changes_the_function_and_trains() -> None:
    model = tiny_models.make("BertForSequenceClassification")
    batch = tiny_models.inputs(model)
    coarse, plain = (
        spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(levels=256, embedding_bits=bits)), [batch])
        for bits in (8, None)
    )
    with torch.no_grad():
        assert not torch.equal(coarse.eval()(**batch).logits, plain.eval()(**batch).logits)
    coarse.train()(**batch, labels=torch.tensor([0, 1, 2])).loss.backward()
    gradient = coarse.get_input_embeddings().weight.grad
    assert gradient[batch["input_ids"][0, 0]].any()


def test_tied_tables_stay_one_table() -> None:
    model = tiny_models.make("GPT2LMHeadModel")
    batch = tiny_models.inputs(model)
    config = spikezip.QuantConfig(levels=16, embedding_bits=8)
    qann = spikezip.calibrate(spikezip.quantize(model, config), [batch])
    assert qann.lm_head.weight is qann.transformer.wte.weight
    snn = spikezip.convert(qann)
    assert snn.transformer.wte.codes is snn.lm_head.codes
    twin = copy.deepcopy(snn)
    assert twin.transformer.wte.codes is twin.lm_head.codes


@pytest.mark.parametrize("weight_bits", [16, None])
def test_a_tied_table_on_two_grids_is_refused(weight_bits: int | None) -> None:
    config = spikezip.QuantConfig(weight_bits=weight_bits, embedding_bits=8)
    with pytest.raises(spikezip.ConfigError, match=r"transformer\.wte and lm_head are one table"):
        spikezip.quantize(tiny_models.make("GPT2LMHeadModel"), config)
    spikezip.quantize(tiny_models.make("GPT2Model"), config)  # no output layer, no conflict


def test_what_has_no_grid_is_refused() -> None:
    with pytest.raises(spikezip.ConfigError, match="ViTModel has no embedding table"):
        spikezip.quantize(tiny_models.make("ViTModel"), spikezip.QuantConfig(embedding_bits=8))

    class Scaled(nn.Embedding):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * 2

    with pytest.raises(spikezip.ConfigError, match="embedding words is a Scaled"):
        adopt_embedding(Scaled(2, 3), "words", 8)
    model = tiny_models.make("BertModel")
    model.embeddings.word_embeddings.max_norm = 1.0
    with pytest.raises(spikezip.ConfigError, match=r"word_embeddings: max_norm"):
        spikezip.quantize(model, spikezip.QuantConfig(embedding_bits=8))


def test_a_scale_per_channel_and_a_grid_of_rows_go_together() -> None:
    model = transformers.BertModel(transformers.BertConfig(**tiny_models.TEXT))
    batch = tiny_models.inputs(model)
    sites = {"*.LayerNorm": spikezip.SiteConfig(per_channel=True)}
    qann = spikezip.quantize(model, spikezip.QuantConfig(levels=16, embedding_bits=8, sites=sites))
    spikezip.calibrate(qann, [batch])
    assert qann.sites["embeddings.LayerNorm"].scale.shape == (32,)
    certificate = spikezip.verify(qann, spikezip.convert(qann), [batch])
    assert certificate.exact, str(certificate)
    with pytest.raises(spikezip.ConfigError, match=r"site 'encoder.layer.0.attention.self.q': per_channel"):
        spikezip.quantize(model, spikezip.QuantConfig(sites={"*.q": spikezip.SiteConfig(per_channel=True)}))
