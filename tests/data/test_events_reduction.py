"""The reduction in front of the patch convolution: what it computes, that it trains, and that it folds away."""

from pathlib import Path

import pytest
import tiny_models
import torch
import torch.nn.functional as F
import transformers

import spikezip
from spikezip.data.reduction import add_reduction, fold_reduction, stretches
from spikezip.errors import ConfigError

VISION = [name for name in tiny_models.HEADS if tiny_models.HEADS[name]().main_input_name == "pixel_values"]
CHANNELS = 8


def frames(size: int = 3) -> torch.Tensor:
    return torch.rand(size, CHANNELS, 32, 32, generator=torch.Generator().manual_seed(3))


def reduced(name: str = "ViTForImageClassification") -> transformers.PreTrainedModel:
    model = tiny_models.make(name)
    add_reduction(model, CHANNELS)
    return model


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7, 18, 32])
def test_the_start_is_three_different_means(channels: int) -> None:
    matrix = stretches(channels)
    # Shares are n / channels rounded to float32, so a row sums to one up to that rounding.
    torch.testing.assert_close(matrix.sum(1), torch.ones(3))
    assert (matrix >= 0).all()
    assert channels == 1 or len(matrix.unique(dim=0)) == 3
    if channels == 3:
        assert torch.equal(matrix, torch.eye(3))


@pytest.mark.parametrize("name", VISION)
def test_it_is_a_1x1_convolution_in_front(name: str) -> None:
    plain, model = tiny_models.make(name), reduced(name)
    with torch.no_grad():
        (layer,) = (m for m in model.modules() if hasattr(m, "parametrizations"))
        matrix = layer.parametrizations.weight[0].matrix.normal_()
        expected = plain(pixel_values=F.conv2d(frames(), matrix[:, :, None, None])).logits
        got = model(pixel_values=frames()).logits
    assert model.config.num_channels == CHANNELS
    # Two sums in another order: channels first and then pixels, or all at once. Equal in real numbers, not in float32.
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_gradients_reach_both_factors() -> None:
    model = reduced()
    model(pixel_values=frames(), labels=torch.tensor([0, 1, 2])).loss.backward()
    names = [n for n, _ in model.named_parameters() if "parametrizations" in n]
    assert [n.rsplit(".", 1)[1] for n in names] == ["original", "matrix"]
    assert all(model.get_parameter(n).grad.abs().sum() > 0 for n in names)


def test_a_state_in_training_loads_into_another_model_with_a_reduction() -> None:
    model, other = reduced(), reduced()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(other(pixel_values=frames()).logits, model(pixel_values=frames()).logits)


@pytest.mark.parametrize("name", VISION)
def test_folding_keeps_the_output_and_the_plain_names(name: str, tmp_path: Path) -> None:
    model = reduced(name)
    with torch.no_grad():
        before = model(pixel_values=frames()).logits
        fold_reduction(model)
        assert torch.equal(model(pixel_values=frames()).logits, before)
        assert set(model.state_dict()) == set(tiny_models.make(name).state_dict())
        assert all(p.requires_grad for p in model.parameters())
        model.save_pretrained(tmp_path)
        again = type(model).from_pretrained(tmp_path).eval()
        assert again.config.num_channels == CHANNELS
        assert torch.equal(again(pixel_values=frames()).logits, before)


def test_the_spiking_network_behind_it_is_exact() -> None:
    model = reduced()
    fold_reduction(model)
    batch = {"pixel_values": frames()}
    qann = spikezip.quantize(model, spikezip.QuantConfig(levels=16, weight_bits=8))
    spikezip.calibrate(qann, [batch])
    certificate = spikezip.verify(qann, spikezip.convert(qann), [batch])
    assert certificate.exact
    assert certificate.codes > 0


def test_an_unfolded_model_is_the_same_network() -> None:
    frames = torch.randn(3, CHANNELS, 32, 32)
    model = reduced().eval()
    qann = spikezip.calibrate(spikezip.quantize(model, example={"pixel_values": frames}), frames).eval()
    fold_reduction(model)
    folded = spikezip.calibrate(spikezip.quantize(model), frames).eval()
    assert torch.equal(qann(frames).logits, folded(frames).logits)
    assert spikezip.verify(qann, spikezip.convert(qann), frames).exact


def test_errors_name_the_remedy() -> None:
    with pytest.raises(ConfigError, match="from 1 on, not 0"):
        add_reduction(tiny_models.make("ViTForImageClassification"), 0)
    with pytest.raises(ConfigError, match="needs a vision model"):
        add_reduction(tiny_models.make("BertForSequenceClassification"), 4)
    with pytest.raises(ConfigError, match="fold_reduction makes it permanent"):
        add_reduction(reduced(), 4)
    with pytest.raises(ConfigError, match="no reduction to fold"):
        fold_reduction(tiny_models.make("ViTForImageClassification"))
