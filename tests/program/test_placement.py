"""Where sites stand: those of the first edition for its twelve architectures, and the least for products alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
import transformers as tf
from captured import frozen
from tiny_models import DISTIL, GPT2, LLAMA, TEXT, VISION
from torch import nn

from spikezip.errors import ConfigError, CoverageError
from spikezip.program.capture import capture
from spikezip.program.nodes import Convolution, Grid, Linear, Matmul, Program, Site
from spikezip.program.place import place
from spikezip.program.tidy import tidy
from spikezip.quant.config import QuantConfig, SiteConfig

FIRST_EDITION = json.loads((Path(__file__).parent / "first_edition_sites.json").read_text(encoding="utf-8"))
ROBERTA = {**TEXT, "pad_token_id": 1}
MORE: dict[str, Callable[[], Any]] = {
    "ViTModelNoPool": lambda: tf.ViTModel(tf.ViTConfig(**VISION), add_pooling_layer=False),
    "BertForMultipleChoice": lambda: tf.BertForMultipleChoice(tf.BertConfig(**TEXT)),
    "RobertaForTokenClassification": lambda: tf.RobertaForTokenClassification(tf.RobertaConfig(**ROBERTA)),
    "RobertaForQuestionAnswering": lambda: tf.RobertaForQuestionAnswering(
        tf.RobertaConfig(**{**ROBERTA, "num_labels": 2})
    ),
    "DistilBertForTokenClassification": lambda: tf.DistilBertForTokenClassification(tf.DistilBertConfig(**DISTIL)),
    "DistilBertForQuestionAnswering": lambda: tf.DistilBertForQuestionAnswering(
        tf.DistilBertConfig(**{**DISTIL, "num_labels": 2})
    ),
    "ElectraForTokenClassification": lambda: tf.ElectraForTokenClassification(
        tf.ElectraConfig(embedding_size=16, **TEXT)
    ),
    "GPT2ForTokenClassification": lambda: tf.GPT2ForTokenClassification(tf.GPT2Config(**GPT2, num_labels=3)),
    "GPT2ForQuestionAnswering": lambda: tf.GPT2ForQuestionAnswering(tf.GPT2Config(**GPT2)),
    "LlamaForTokenClassification": lambda: tf.LlamaForTokenClassification(tf.LlamaConfig(**LLAMA)),
    "LlamaForQuestionAnswering": lambda: tf.LlamaForQuestionAnswering(tf.LlamaConfig(**LLAMA)),
    "Dinov2Swiglu": lambda: tf.Dinov2Model(tf.Dinov2Config(**VISION, use_swiglu_ffn=True)),
}
MODELS = {**tiny_models.ALL, **MORE}


def placed(model: nn.Module, batch: Any, config: QuantConfig | None = None) -> Program:
    captured = capture(model, batch)
    return place(tidy(captured.program), config or QuantConfig(levels=16), captured.modules)


@pytest.mark.parametrize("name", list(FIRST_EDITION))
def test_sites_of_the_first_edition(name: str) -> None:
    model = MODELS[name]().eval()
    batch = tiny_models.inputs(model)
    if name.endswith("MultipleChoice"):
        batch = {key: x[:, None].expand(-1, 2, -1).contiguous() for key, x in batch.items()}
    sites = placed(model, batch).sites.values()
    expected = FIRST_EDITION[name].split()
    if name == "BeitModel":  # its table had forgotten the last norm
        expected.append("layernorm")
    assert [site.name + ("" if site.lo < 0 else "+") for site in sites] == expected


def test_every_varying_operand_of_a_product_passes_a_site() -> None:
    model = tiny_models.make("BertForSequenceClassification")
    for placement in ("paper", "products"):
        program = placed(model, tiny_models.inputs(model), QuantConfig(placement=placement))
        for product in program.products:
            operands = (
                [product.x, product.weight] if isinstance(product, (Linear, Convolution)) else [product.a, product.b]
            )
            for name in operands:
                node = program[name]
                while not isinstance(node, (Site, Grid)):
                    assert node.name.endswith(".codes") or ".codes~" in node.name, f"{product.name} reads {name}"
                    node = program[node.reads[0]]


def test_products_places_fewer_sites_than_the_paper() -> None:
    model = tiny_models.make("ViTForImageClassification")
    batch = tiny_models.inputs(model)
    paper, least = (placed(model, batch, QuantConfig(placement=p)).sites for p in ("paper", "products"))
    extra = set(paper) - set(least)
    assert {"embeddings", "layers.0.attention.o_proj", "layers.1.mlp.fc2"} <= extra
    assert "layers.0.attention.q" in least
    assert len(least) < len(paper)


class Scaled(nn.Module):
    """A residual branch behind a LayerScale, and one product of constants."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.gamma = nn.Parameter(torch.rand(8) + 0.5)
        self.table, self.project = nn.Parameter(torch.randn(5, 8)), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = y + self.second(torch.relu(y)) * self.gamma
        scores = y @ self.project(self.table).t()  # of the weights alone: no site, but a grid
        return self.head(y) + scores.softmax(-1).sum(-1, keepdim=True)


def test_a_layer_scale_is_folded_and_a_constant_product_has_no_site() -> None:
    model, x = Scaled().eval(), torch.randn(3, 4)
    program = placed(model, x)
    second = next(n for n in program.products if n.module == "second")
    assert isinstance(second, Linear)
    assert "folded" in second.weight
    assert all(site.u != second.name or not program.readers[second.name][1:] for site in program.sites.values())
    (scores,) = (n for n in program.products if isinstance(n, Matmul))
    (constant,) = (n for n in program.nodes if isinstance(n, Grid) and not n.rows)
    assert constant.weight == "project.linear"
    assert constant.name in program.nodes[program.nodes.index(scores) - 1].reads + scores.reads
    network = frozen(model, {"x": x})
    folded = network.tensors[f"{network.program['second.linear'].weight}.scale"]  # type: ignore[attr-defined]
    expected = (model.second.weight * model.gamma[:, None]).abs().amax(dim=1) / 127
    torch.testing.assert_close(folded, expected.detach())


def test_settings_by_name_and_their_errors() -> None:
    model = tiny_models.make("ViTForImageClassification")
    batch = tiny_models.inputs(model)
    config = QuantConfig(levels=16, sites={"*.p": SiteConfig(levels=64), "*.layernorm_*": SiteConfig(per_channel=True)})
    sites = placed(model, batch, config).sites
    assert (sites["layers.0.attention.p"].lo, sites["layers.0.attention.p"].hi) == (0, 63)
    assert sites["layers.1.layernorm_after"].by_channel
    with pytest.raises(ConfigError, match=r"no site matches '\*\.nothing'"):
        placed(model, batch, QuantConfig(sites={"*.nothing": SiteConfig(levels=8)}))
    with pytest.raises(ConfigError, match=r"layers.0.attention.q.*one scale for all channels"):
        placed(model, batch, QuantConfig(sites={"*.attention.q": SiteConfig(per_channel=True)}))
    with pytest.raises(ConfigError, match="this site is the ReLU itself"):
        placed(model, batch, QuantConfig(sites={"*.activation_fn": SiteConfig(signed=True)}))
    with pytest.raises(ConfigError, match="placement='all'"):
        QuantConfig(placement="all")
    with pytest.raises(CoverageError, match="at least two layers"):
        placed(nn.Linear(3, 2), torch.randn(2, 3))
