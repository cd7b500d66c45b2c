"""Accumulated attention: at equilibrium it is the quantized network's, to the last bit."""

import pytest
import tiny_models
import torch
import transformers
from shown import BERT, VIT, networks
from torch import Tensor, nn

from spikezip.engines import quantized, simulate
from spikezip.errors import InputError
from spikezip.models.networks import convert, quantize
from spikezip.quant.calibration import calibrate
from spikezip.show import attention
from spikezip.show.attention import ROLLED_OUT, attention_maps
from spikezip.show.feature_map import attention_figure, masked

WITH_ONE_ATTENTION = [name for name in tiny_models.HEADS if not name.startswith("Swin")]


@pytest.mark.parametrize("name", WITH_ONE_ATTENTION)
def test_last_step_is_the_qann(name: str) -> None:
    qann, snn, batch = networks(name)
    found = attention_maps(snn, batch, qann, sample=1)
    assert [one.name for one in found.maps] == [*(site for site in snn.neurons if site.endswith(".p")), ROLLED_OUT]
    assert len(found.maps) == 3  # two layers
    for one in found.maps:
        assert torch.equal(one.over_time[-1], one.qann)
        assert not torch.equal(one.over_time[0], one.qann)
        assert one.qann.sum() > 0
    if found.grid is not None:
        assert found.grid == (4, 4)
        assert found.maps[0].qann.shape == (16,)
    else:
        assert found.maps[0].qann.shape == (5,)  # the second sentence has five tokens; padding is not shown


def test_maps_are_the_spikes_so_far() -> None:
    """By hand: spikes of a site added up, times its scale, mean over heads, the row of the class token."""
    qann, snn, batch = networks(VIT)
    found = attention_maps(snn, batch, qann, sample=2, steps=7)
    inputs = {"pixel_values": batch["pixel_values"][2:]}
    for site in ("layers.0.attention.p", "layers.1.attention.p"):
        train = simulate(snn, inputs, steps=7, engine="spike", record=[site]).trains[site].double()
        scale = snn.frozen().step_size(site).double()
        for step in (1, 4, 7):
            expected = (train[:step].sum(dim=0)[0].mean(dim=0)[0, 1:] * scale).float()
            assert torch.equal(found[site].over_time[step - 1], expected)


def test_rolled_out_by_hand() -> None:
    qann, snn, batch = networks(BERT)
    found = attention_maps(snn, batch, qann, sample=0)
    inputs = {key: value[:1] for key, value in batch.items() if key != "labels"}
    product = torch.eye(9, dtype=torch.float64)
    network = qann.frozen()
    _, codes = quantized(network, qann.prepare(inputs))
    for layer in (0, 1):
        site = f"encoder.layer.{layer}.attention.self.p"
        mixed = (codes[site][0] * network.step_size(site)).double().mean(dim=0) + torch.eye(9, dtype=torch.float64)
        product = (mixed / mixed.sum(dim=-1, keepdim=True)) @ product
    # The order of the products differs, so the last bits may.
    torch.testing.assert_close(found[ROLLED_OUT].qann, product[0].float())


def test_without_a_qann_it_is_computed_from_the_snn() -> None:
    qann, snn, batch = networks(VIT)
    for with_, without in zip(attention_maps(snn, batch, qann).maps, attention_maps(snn, batch).maps, strict=True):
        assert torch.equal(with_.qann, without.qann)


def test_layers_recorded_apart_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    qann, snn, batch = networks(VIT)
    together = attention_maps(snn, batch, qann)
    monkeypatch.setattr(attention, "_BYTES", 1)
    apart = attention_maps(snn, batch, qann)
    for one, other in zip(together.maps, apart.maps, strict=True):
        assert torch.equal(one.over_time, other.over_time)


@pytest.mark.parametrize(
    ("name", "source"), [(VIT, "the class token"), (BERT, "the first token"), ("GPT2LMHeadModel", "the last token")]
)
def test_whose_attention_it_is(name: str, source: str) -> None:
    qann, snn, batch = networks(name)
    assert attention_maps(snn, batch, qann, sample=1).source == source


def test_what_cannot_be_shown() -> None:
    qann, snn, batch = networks("SwinForImageClassification")
    with pytest.raises(InputError, match="attends within windows"):
        attention_maps(snn, batch, qann)
    qann, snn, batch = networks(VIT)
    with pytest.raises(InputError, match="no sample 3: the batch holds 3"):
        attention_maps(snn, batch, qann, sample=3)
    with pytest.raises(InputError, match=r"no attention map 'x'; there are layers\.0"):
        attention_maps(snn, batch, qann)["x"]
    with pytest.raises(InputError, match="counted from 1"):
        attention_figure(snn, batch, at=(0, 1))


class Patches(nn.Module):
    """A network of nobody's library: patches of an image, one head that looks at all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, stride=8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        looked: Tensor = self.out(nn.functional.scaled_dot_product_attention(q, k, v)).mean(dim=1)
        return looked


def test_any_network() -> None:
    images = torch.randn(2, 3, 16, 32)
    qann = calibrate(quantize(Patches(), example=images), images).eval()
    found = attention_maps(convert(qann), images, qann, sample=1)
    assert (found.grid, found.source) == ((2, 4), "all patches, on average")
    for one in found.maps:
        assert torch.equal(one.over_time[-1], one.qann)
        assert one.qann.sum() > 0
    assert len(attention_figure(convert(qann), images, at=(1,)).axes) == 3


def test_encoder_and_decoder_look_at_different_places() -> None:
    config = transformers.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=99)
    model = transformers.T5ForConditionalGeneration(config).eval()
    batch = {"input_ids": torch.randint(5, 99, (2, 6)), "decoder_input_ids": torch.randint(5, 99, (2, 6))}
    qann = calibrate(quantize(model), batch).eval()
    with pytest.raises(InputError, match="there is no one map to show"):
        attention_maps(convert(qann), batch, qann)


def test_figures() -> None:
    qann, snn, batch = networks(VIT)
    axes = attention_figure(snn, batch, qann, at=(1, 99)).axes
    shown = [axis.images[0].get_array() for axis in axes]
    assert (shown[2] == shown[3]).all()  # step 99 is long after equilibrium
    assert not (shown[1] == shown[3]).all()
    qann, snn, batch = networks(BERT)
    (axis,) = attention_figure(snn, batch, qann, sample=1, at=(1, 2)).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["T = 1", "T = 2", "QANN"]
    assert len(axis.texts) == 3 * 5


@pytest.mark.parametrize("shape", [(32, 32, 3), (64, 32, 1), (24, 64, 3)])
def test_nothing_is_empty_below_the_images(shape: tuple[int, int, int]) -> None:
    qann, snn, batch = networks(VIT)
    figure = attention_figure(snn, batch, qann, at=(1, 2), image=torch.zeros(shape, dtype=torch.uint8))
    figure.draw_without_rendering()
    for axis in figure.axes:
        assert 0 <= axis.get_position().y0 * figure.get_figheight() < 0.1  # inches


def test_mask_follows_the_patches() -> None:
    image = torch.full((4, 6, 3), 100, dtype=torch.uint8)
    weights = torch.tensor([0.0, 1.0, 1.0, 0.0])
    found = masked(image, weights, (2, 2))[..., 0]
    assert found.tolist() == [[15, 15, 15, 100, 100, 100]] * 2 + [[100, 100, 100, 15, 15, 15]] * 2
