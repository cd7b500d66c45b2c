"""Calibration sees what the float network computes, all of it, and finds scales for that."""

from typing import Any

import pytest
import torch
import transformers

import spikezip
from spikezip import QuantConfig
from spikezip.errors import ConfigError
from spikezip.quant.calibration import observe
from spikezip.quant.config import SiteConfig
from spikezip.quant.observer import RangeObserver

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


class Watching(RangeObserver):
    """An observer that also keeps what it sees."""

    def __init__(self, name: str, lo: int, hi: int, seen: dict[str, torch.Tensor]) -> None:
        super().__init__(name, lo, hi)
        self.kept = seen

    def see(self, u: torch.Tensor) -> None:
        self.kept[self.name] = u
        super().see(u)


@pytest.mark.parametrize("make", [vit, bert])
@pytest.mark.parametrize("act", ["relu", "gelu"])
def test_while_it_is_observed_a_network_computes_the_float_function(make: Any, act: str) -> None:
    model, batch = make(act)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # far from linear: an activation left out is seen at once
        expected = model(**batch).logits
        qann = spikezip.quantize(model, QuantConfig(weight_bits=None)).eval()
        seen: dict[str, torch.Tensor] = {}
        observers = {name: Watching(name, site.lo, site.hi, seen) for name, site in qann.sites.items()}
        observe(qann, qann.prepare(batch), observers)
        head = model.classifier
        last = seen[list(qann.sites)[-1]]
        found = head(last if last.ndim == 2 else last[:, 0])
    # Attention is written out here and fused there: other last bits.
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_the_site_of_a_relu_begins_at_zero() -> None:
    model, _ = vit("relu")
    with pytest.raises(ConfigError, match=r"mlp\.activation_fn.*this site is the ReLU itself"):
        spikezip.quantize(model, QuantConfig(sites={"*.activation_fn": SiteConfig(signed=True)}))


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("place", ["token", "channel"])
def test_a_few_large_values_are_not_passed_over(place: str, by_channel: bool) -> None:
    """One token in 32, or one channel in 96, is large: fewer than a sample at any even distance might meet."""
    torch.manual_seed(0)
    u = torch.rand(64, 32, 96)
    if place == "token":
        u[:, 5] += 9
    else:
        u[..., 7] += 9
    observer = RangeObserver("site", 0, 31, by_channel)
    observer.see(u)
    scale = observer.best_scale()
    reach = scale * 31
    assert bool((reach[7] if by_channel and place == "channel" else reach.min()) > 9)


def test_the_scale_found_on_a_sample_is_nearly_the_best_on_all() -> None:
    torch.manual_seed(0)
    u = torch.randn(48, 40, 32) * torch.linspace(0.1, 5, 32)
    for by_channel in (False, True):
        observer = RangeObserver("site", -8, 7, by_channel)
        observer.see(u)
        errors = []
        rows = u.reshape(-1, 32)
        for scale in (observer.best_scale(), *(rows.abs().amax(0) / 8 * f for f in torch.linspace(0.1, 1, 30))):
            if not by_channel and scale.ndim:
                scale = scale.max()
            codes = (rows / scale).round().clamp(-8, 7)
            errors.append((codes * scale - rows).square().mean().item())
        assert errors[0] <= 1.02 * min(errors[1:])  # 2 %: a sample is not the whole
