"""Calibration sees what the float network computes, and finds codes and scales for that."""

from typing import Any

import pytest
import torch
import transformers

import spikezip
from spikezip import QuantConfig
from spikezip.errors import ConfigError, InputError
from spikezip.program.ranges import can_fold
from spikezip.quant.config import SiteConfig
from spikezip.quant.levels import error_at, share_levels
from spikezip.quant.plain import evaluate_plain
from spikezip.quant.ranges import best_range, error_of, splits
from spikezip.quant.samples import Sample, see

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def vit(act: str) -> Any:
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SMALL, hidden_act=act, image_size=8, patch_size=4, num_labels=5)
    return transformers.ViTForImageClassification(config).eval(), {"pixel_values": torch.randn(3, 3, 8, 8)}


def bert(act: str) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, hidden_act=act, vocab_size=50, max_position_embeddings=16, num_labels=5)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    batch = {"input_ids": torch.randint(0, 50, (2, 7)), "attention_mask": mask}
    return transformers.BertForSequenceClassification(config).eval(), batch


@pytest.mark.parametrize("make", [vit, bert])
@pytest.mark.parametrize("act", ["relu", "gelu"])
@pytest.mark.parametrize("placement", ["paper", "products"])
def test_what_calibration_evaluates_is_the_float_network(make: Any, act: str, placement: str) -> None:
    model, batch = make(act)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # far from linear: an activation left out is seen at once
        expected = model(**batch).logits
        qann = spikezip.quantize(model, QuantConfig(placement=placement)).eval()
        values = evaluate_plain(qann.program, qann.tensors(), qann.prepare(batch))
    (found,) = (values[name] for name in qann.program.returned)
    # Attention is written out here and fused there: other last bits.
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_the_site_of_a_relu_begins_at_zero() -> None:
    model, batch = vit("relu")
    with pytest.raises(ConfigError, match=r"mlp\.activation_fn.*this site is the ReLU itself"):
        spikezip.quantize(model, QuantConfig(sites={"*.activation_fn": SiteConfig(signed=True)}))
    qann = spikezip.calibrate(spikezip.quantize(model), batch)
    assert all(site.lo == 0 for site in qann.sites.values() if site.relu)


def test_the_gradient_at_a_site_is_that_of_the_network() -> None:
    """Move what a site hands on a little: the loss moves by the gradient's share. The site is the network's first."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    qann = spikezip.quantize(model, QuantConfig(), example=x)
    sample = see(qann.program, qann.tensors(), [qann.prepare(x)])["2.in"]
    # The loss is the sum of outputs with random signs: its gradient is a combination of the last layer's rows.
    weights = model[2].weight.detach()
    signs = torch.linalg.lstsq(weights.T, sample.gradient.T).solution
    assert torch.allclose(weights.T @ signs, sample.gradient.T)
    assert torch.allclose(signs.abs(), signs.abs()[0, 0].expand_as(signs))


def test_a_sample_stands_for_all_rows() -> None:
    torch.manual_seed(0)
    u = torch.randn(4000, 3) * torch.rand(4000, 1) ** 4 * 30
    gradient = torch.randn(4000, 3)
    drawn = [Sample.draw(u, gradient, 400, torch.Generator().manual_seed(seed)) for seed in range(20)]
    whole = Sample(u, gradient, torch.ones(4000))
    expected = error_of(whole, torch.tensor(2.0), -4, 3)
    found = torch.tensor([error_of(sample, torch.tensor(2.0), -4, 3) for sample in drawn]).mean()
    assert abs(float(found) / expected - 1) < 0.1  # the mean of 20 samples of a tenth


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("place", ["token", "channel"])
def test_a_few_large_values_are_not_passed_over(place: str, by_channel: bool) -> None:
    """One token in 32, or one channel in 96, is large: fewer than an even sample of few rows might meet."""
    torch.manual_seed(0)
    u = torch.rand(64, 32, 96)
    if place == "token":
        u[:, 5] += 9
    else:
        u[..., 7] += 9
    sample = Sample.draw(u, torch.ones_like(u), 256, torch.Generator().manual_seed(0))
    reach = best_range(sample, [(0, 31)], by_channel).scale * 31
    assert bool((reach[7] if by_channel and place == "channel" else reach.min()) > 9)


def test_the_scale_found_on_a_sample_is_nearly_the_best_on_all() -> None:
    torch.manual_seed(0)
    u = torch.randn(192, 40, 32) * torch.linspace(0.1, 5, 32)
    gradient = torch.randn(192, 40, 32)
    whole = Sample(u.view(-1, 32), gradient.view(-1, 32), torch.ones(192 * 40))
    sample = Sample.draw(u, gradient, 2048, torch.Generator().manual_seed(0))
    covers = u.view(-1, 32).abs().amax(0) / 8
    for by_channel, cover in ((False, covers.max()), (True, covers)):
        found = error_of(whole, best_range(sample, [(-8, 7)], by_channel).scale, -8, 7)
        others = [error_of(whole, cover * part, -8, 7) for part in torch.linspace(0.1, 1, 30)]
        assert found <= 1.02 * min(others)  # 2 %: a sample is not the whole


def test_errors_that_add_up_count_for_more() -> None:
    """Probabilities too small for a code all become zero: their sum is missing, and a finer scale is worth a cut."""
    u = torch.full((64, 100), 0.5 / 99)
    u[:, 0] = 0.5
    alike, mixed = torch.ones_like(u), torch.ones_like(u)
    mixed[:, ::2] = -1
    ones = torch.ones(64)
    together, apart = (best_range(Sample(u, g, ones), [(0, 15)], False).scale for g in (alike, mixed))
    assert together < apart


@pytest.mark.parametrize("levels", [4, 6, 16, 30, 256])
def test_splits_have_all_levels_and_zero(levels: int) -> None:
    for negative in (False, True):
        found = splits(levels, negative)
        assert all(hi - lo + 1 == levels and lo <= 0 < hi for lo, hi in found)
        assert len(set(found)) == len(found)
        assert ((-levels // 2, levels // 2 - 1) in found) == negative


def test_shared_levels_have_the_mean_and_the_least_error() -> None:
    curves = {str(i): [(8, 4.0**i), (64, 4.0**i / 64)] for i in range(5)}
    found = share_levels(curves, 32)
    assert sum(found.values()) <= 32 * 5 < sum(found.values()) + 16
    assert list(found.values()) == sorted(found.values())

    def total(levels: dict[str, int]) -> float:
        return sum(error_at(curves[name], n) for name, n in levels.items())

    for more in found:
        for fewer in found:
            if more != fewer and found[fewer] > 6:
                other = {**found, more: found[more] + 2, fewer: found[fewer] - 2}
                assert total(found) <= total(other) * 1.02  # levels go up in steps of an eighth
    assert share_levels(curves, 4) == dict.fromkeys(curves, 4)
    assert share_levels(curves, 256) == dict.fromkeys(curves, 256)


def test_what_the_config_sets_stays() -> None:
    model, batch = vit("gelu")
    sites = {
        "*.activation_fn": SiteConfig(lo=-3, hi=20),
        "*.p": SiteConfig(levels=64),
        "*.q": SiteConfig(signed=True),
        "*.layernorm_before": SiteConfig(per_channel=False),
    }
    for placement in ("paper", "products"):
        config = QuantConfig(levels=16, sites=sites, placement=placement)
        qann = spikezip.calibrate(spikezip.quantize(model, config), batch)
        for name, site in qann.sites.items():
            if name.endswith(".activation_fn"):
                assert (site.lo, site.hi) == (-3, 20)
            if name.endswith(".p"):
                assert (site.lo, site.hi) == (0, 63)
            if name.endswith(".q"):
                assert site.lo == -site.levels // 2
            assert not (site.by_channel and name.endswith("layernorm_before"))
        free = [site.levels for name, site in qann.sites.items() if not name.endswith((".activation_fn", ".p"))]
        assert 16 * len(free) - 16 < sum(free) <= 16 * len(free)


@pytest.mark.parametrize("placement", ["paper", "products"])
@pytest.mark.parametrize("make", [vit, bert])
def test_a_network_is_exact_whatever_calibration_chose(make: Any, placement: str) -> None:
    model, batch = make("gelu")
    qann = spikezip.quantize(model, QuantConfig(levels=16, placement=placement)).eval()
    before = {name: site.levels for name, site in qann.sites.items()}
    spikezip.calibrate(qann, batch)
    assert any(site.by_channel for site in qann.sites.values())
    assert {name: site.levels for name, site in qann.sites.items()} != before
    snn = spikezip.convert(qann)
    for engine in ("spike", "folded", "event"):
        assert spikezip.verify(qann, snn, batch, engine=engine).exact
    spikezip.calibrate(qann, batch, "quick", equal_levels=True)  # once more: nothing of the first time is in the way
    assert spikezip.verify(qann, spikezip.convert(qann), batch).exact


def test_scales_per_channel_go_where_they_cost_nothing() -> None:
    model, _ = vit("gelu")
    found = can_fold(spikezip.quantize(model, QuantConfig(placement="paper")).program)
    assert "layers.0.layernorm_before" in found
    assert "layers.0.mlp.activation_fn" in found
    assert not any(name.endswith((".q", ".k", ".v", ".p", ".o")) for name in found)


class Twice(torch.nn.Module):
    """One layer, used twice: its weights cannot hold the scales of two sites."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = torch.nn.Linear(4, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(torch.tanh(self.layer(torch.tanh(self.first(x)))))
        return found


def test_a_layer_that_is_used_twice_keeps_one_scale() -> None:
    x = torch.randn(16, 4)
    qann = spikezip.calibrate(spikezip.quantize(Twice(), example=x), x)
    assert not any(site.by_channel for site in qann.sites.values())
    assert spikezip.verify(qann, spikezip.convert(qann), x).exact


def test_seed_and_effort() -> None:
    model, batch = vit("gelu")
    scales = []
    for seed in (0, 0, 1):
        qann = spikezip.calibrate(spikezip.quantize(model, QuantConfig()), batch, seed=seed)
        scales.append(torch.cat([qann.scale(name).detach() for name in qann.sites]))
    assert torch.equal(scales[0], scales[1])
    assert scales[0].shape != scales[2].shape or not torch.equal(scales[0], scales[2])
    with pytest.raises(ConfigError, match="effort='fast': choose one of 'quick', 'default'"):
        spikezip.calibrate(qann, batch, "fast")
    with pytest.raises(InputError, match="at least one batch"):
        spikezip.calibrate(qann, [])


def test_calibration_goes_on_in_inference_mode_and_without_gradients() -> None:
    model, batch = vit("gelu")
    for context in (torch.inference_mode(), torch.no_grad()):
        qann = spikezip.quantize(model, QuantConfig())
        with context:
            fresh = {name: x.clone() for name, x in batch.items()}
            spikezip.calibrate(qann, fresh)
        assert not qann.waiting()
        qann.train()(**batch).logits.sum().backward()  # and can be trained afterwards
        assert all(qann.scale(name).grad is not None for name in qann.sites)


def test_codes_wider_than_a_byte_stay_what_they_are() -> None:
    """Codes up to 159 are floats on the way; their values are made from them, and must not take their place."""
    model, batch = bert("gelu")
    sites = {"embeddings.LayerNorm": SiteConfig(lo=-96, hi=159), "*.output.LayerNorm": SiteConfig(lo=-96, hi=159)}
    qann = spikezip.calibrate(spikezip.quantize(model, QuantConfig(levels=256, sites=sites)), batch, "quick").eval()
    snn = spikezip.convert(qann)
    for engine in ("spike", "folded", "event"):
        for chunk in (1, 7):  # what fires in one chunk alone is read again in the next
            certificate = spikezip.verify(qann, snn, batch, engine=engine, max_spike=40, chunk=chunk)
            assert certificate.exact, f"{engine}: {certificate}"


def test_the_report_says_where_the_error_is() -> None:
    model, batch = vit("gelu")
    qann = spikezip.calibrate(spikezip.quantize(model, QuantConfig(levels=256)), batch)
    report = qann.calibration
    assert report is not None
    assert report.errors.keys() == qann.sites.keys()
    assert sum(report.blocks.values()) == pytest.approx(1)
    assert {"layers.0", "layers.1"} <= report.blocks.keys()
    assert report.errors[report.worst(1)[0]] == max(report.errors.values())
    assert report.levels == {name: site.levels for name, site in qann.sites.items()}
    assert not report.has_drifted
    assert "layers.1" in str(report)
    assert report.drift < 0.01
    with pytest.warns(UserWarning, match=r"far from the float one: .* Most is lost at .*Give more levels"):
        coarse = spikezip.calibrate(spikezip.quantize(model, QuantConfig(levels=4)), batch)
    assert coarse.calibration is not None
    assert coarse.calibration.drift > 10 * report.drift
