"""Nothing is skipped silently: what has no rule is an error that says so."""

import pytest
import tiny_models
import torch
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel, PreTrainedModel, ViTConfig, ViTForMaskedImageModeling

import spikezip


@pytest.mark.parametrize("name", list(tiny_models.ALL))
def test_every_module_of_every_architecture_has_a_rule(name: str) -> None:
    model = tiny_models.make(name)
    report = spikezip.coverage(model)
    assert report.complete, str(report)
    assert len(report.rows) == sum(1 for n, _ in model.named_modules() if n)
    linear = [n for n, m in model.named_modules() if type(m).__name__ in ("Linear", "Conv1D")]
    assert report.products == len(linear)
    assert "NO RULE" not in str(report)


def test_an_unknown_architecture_is_refused_with_a_table() -> None:
    config = CLIPVisionConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8
    )
    model = CLIPVisionModel(config)
    with pytest.raises(spikezip.CoverageError, match=r"no table for model type 'clip_vision_model'.*known: beit"):
        spikezip.quantize(model)
    assert "NO RULE" in str(spikezip.coverage(model))


def test_an_unknown_head_is_refused() -> None:
    model = ViTForMaskedImageModeling(ViTConfig(**tiny_models.VISION))
    with pytest.raises(spikezip.CoverageError, match="head of ViTForMaskedImageModeling"):
        spikezip.quantize(model)


def test_a_product_without_a_rule_is_refused() -> None:
    model = tiny_models.make("ViTForImageClassification")
    model.vit.layers[0].extra = nn.Linear(4, 4)
    with pytest.raises(spikezip.CoverageError, match=r"product vit\.layers\.0\.extra \(Linear\) reads no site"):
        spikezip.quantize(model)


def test_a_module_without_a_rule_is_refused() -> None:
    model = tiny_models.make("BertModel")
    model.encoder.layer[1].extra = nn.BatchNorm1d(4)
    with pytest.raises(spikezip.CoverageError, match=r"module encoder\.layer\.1\.extra \(BatchNorm1d\) has no rule"):
        spikezip.quantize(model)


def test_a_renamed_module_is_noticed() -> None:
    model = tiny_models.make("ViTForImageClassification")
    for layer in model.vit.layers:
        layer.other_name = layer.layernorm_before
        del layer.layernorm_before
    with pytest.raises(spikezip.CoverageError, match=r"layernorm_before.*matches no module"):
        spikezip.quantize(model)


def patched(model: PreTrainedModel, change: str) -> PreTrainedModel:
    """A model whose MLP does something in functional code that no table knows."""
    mlp = model.vit.layers[0].mlp
    own = type(mlp).forward

    class Patched(type(mlp)):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if change == "product":
                return own(self, x) @ torch.eye(x.shape[-1])
            return own(self, x * 1.5)

    Patched.__module__ = type(mlp).__module__  # as if a new version of transformers did it
    mlp.__class__ = Patched
    return model


def test_a_functional_product_is_noticed_in_calibration() -> None:
    model = patched(tiny_models.make("ViTForImageClassification"), "product")
    qann = spikezip.quantize(model)
    with pytest.raises(spikezip.CoverageError, match=r"vit\.layers\.0\.mlp calls .*matmul"):
        spikezip.calibrate(qann, [tiny_models.inputs(model)])


def test_arithmetic_between_a_site_and_its_product_is_noticed() -> None:
    model = patched(tiny_models.make("ViTForImageClassification"), "scaling")
    qann = spikezip.quantize(model)
    with pytest.raises(spikezip.CoverageError, match=r"reads site 'layers\.0\.layernorm_after'.*not lie on that site"):
        spikezip.calibrate(qann, [tiny_models.inputs(model)])


def test_patterns_that_match_no_site_are_refused() -> None:
    config = spikezip.QuantConfig(sites={"layer.*.typo": spikezip.SiteConfig(levels=8)})
    with pytest.raises(spikezip.ConfigError, match=r"no site matches 'layer\.\*\.typo'"):
        spikezip.quantize(tiny_models.make("ViTForImageClassification"), config)


def test_attention_extras_are_refused() -> None:
    from spikezip.models.attention import attention

    qann = spikezip.quantize(tiny_models.make("ViTForImageClassification"))
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(spikezip.CoverageError, match="softcap"):
        attention(qann.vit.layers[0].attention, q, q, q, softcap=30.0)
    with pytest.raises(spikezip.CoverageError, match="no sites"):
        attention(nn.Linear(1, 1), q, q, q)
