"""Training computes on the grid: forward as `eval()` does, bit for bit; its gradients are the float product's."""

import pytest
import tiny_models
import torch
import torch.nn.functional as F
from torch import Tensor

import spikezip
from spikezip.measure.agreement import agreement, training_forward
from spikezip.quant.lsq import lsq, on_grid
from spikezip.simulate.outputs import primary

# Their activation is evaluated in float64 on the grid and in float32 in training, which may differ in the last bit.
RELU_ONLY = {"hidden_act": "relu", "activation": "relu", "activation_function": "relu", "hidden_activation": "relu"}


def relu_model(name: str) -> torch.nn.Module:
    model = tiny_models.make(name)
    config = model.config
    for key, value in RELU_ONLY.items():
        if hasattr(config, key):
            setattr(config, key, value)
    torch.manual_seed(0)
    return type(model)(config)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", list(tiny_models.HEADS))
def test_training_forward_equals_grid_forward(name: str, bits: int) -> None:
    model = relu_model(name)
    batch = tiny_models.inputs(model)
    qann = spikezip.quantize(model, spikezip.QuantConfig(levels=16, weight_bits=bits))
    spikezip.calibrate(qann, [batch]).eval()
    result = agreement(qann, [batch])
    assert result.codes > 1000
    assert result.equal == result.codes, result
    with torch.no_grad():
        expected = primary(qann(**batch))
        with training_forward(qann):
            found = primary(qann(**batch))
    assert torch.equal(found, expected)
    assert not qann.training


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bits", [8, 16])
def test_gradients_of_a_product_are_the_float_products(bits: int, per_channel: bool) -> None:
    """Compared in float64, where order of summation and rounding hide nothing: 1e-12 is far below any gradient here."""
    from spikezip.quant.site import Site
    from spikezip.quant.synapse import adopt_linear

    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 5).double()
    site = Site("site", -8, 7, like=layer.weight, by_channel=per_channel).train()
    site.set_scale(torch.linspace(0.1, 0.3, 6).double() if per_channel else torch.tensor(0.2).double())
    adopt_linear(layer, "layer", bits, site)
    u = torch.randn(4, 3, 6, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(4, 3, 5, dtype=torch.float64)
    layer(site(u)).backward(upstream)
    found = [u.grad, site.scale.grad, layer.weight.grad, layer.bias.grad]

    def by_hand() -> list[Tensor]:
        v, s = u.detach().clone().requires_grad_(), site.scale.detach().clone().requires_grad_()
        w, b = layer.weight.detach().clone().requires_grad_(), layer.bias.detach().clone().requires_grad_()
        step = site.step_size
        gridded = on_grid(w * step, bits) / step if per_channel else on_grid(w, bits)
        F.linear(lsq(v, s, -8, 7), gridded, b).backward(upstream)
        return [v.grad, s.grad, w.grad, b.grad]

    for ours, expected in zip(found, by_hand(), strict=True):
        assert ours is not None
        assert ours.shape == expected.shape
        assert torch.allclose(ours, expected, rtol=0, atol=1e-12)


def test_gradients_of_attention_are_the_float_products() -> None:
    """As above: float64, 1e-12."""
    from spikezip.quant.attention import QuantAttention
    from spikezip.quant.site import Site

    torch.manual_seed(0)
    like = torch.ones((), dtype=torch.float64)
    ranges = {"q": (-8, 7), "k": (-8, 7), "v": (-8, 7), "p": (0, 15), "o": (-8, 7)}
    attention = QuantAttention(**{n: Site(n, lo, hi, like=like) for n, (lo, hi) in ranges.items()}).train()
    for name, scale in zip(ranges, (0.2, 0.25, 0.3, 1 / 15, 0.1), strict=True):
        getattr(attention, name).set_scale(torch.tensor(scale, dtype=torch.float64))
    qkv = [torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    upstream = torch.randn(2, 5, 2, 4, dtype=torch.float64)
    attention(*qkv, None, 0.5)[0].backward(upstream)
    found = [x.grad.clone() for x in qkv] + [getattr(attention, n).scale.grad.clone() for n in ranges]

    copies = [x.detach().clone().requires_grad_() for x in qkv]
    scales = {n: getattr(attention, n).scale.detach().clone().requires_grad_() for n in ranges}
    q, k, v = (lsq(x, scales[n], *ranges[n]) for n, x in zip("qkv", copies, strict=True))
    p = lsq(F.softmax(q @ k.transpose(2, 3) * 0.5, dim=-1), scales["p"], 0, 15)
    lsq((p @ v).transpose(1, 2), scales["o"], -8, 7).backward(upstream)
    for ours, expected in zip(found, [x.grad for x in copies] + [s.grad for s in scales.values()], strict=True):
        assert torch.allclose(ours, expected, rtol=0, atol=1e-12)


def test_dropout_between_site_and_product_is_not_taken_for_codes() -> None:
    model = tiny_models.make("BertForSequenceClassification")
    batch = tiny_models.inputs(model)
    qann = spikezip.calibrate(spikezip.quantize(model), [batch])
    first = qann.get_submodule("bert.encoder.layer.0.attention.self.query")
    qann.train()
    assert not first.plain_glue
    seen = []
    first.register_forward_hook(lambda m, args, out: seen.append((args[0].detach(), out.detach())))
    qann(**batch)
    x, out = seen[0]
    # What dropout left is scaled by 1/0.9: a product of rounded codes would lose that.
    assert torch.allclose(out, F.linear(x, on_grid(first.weight, 8), first.bias), atol=1e-5)


def test_float_weights_report_what_they_find() -> None:
    model = tiny_models.make("ViTForImageClassification")
    batch = tiny_models.inputs(model)
    qann = spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(levels=16, weight_bits=None)), [batch])
    result = agreement(qann, [batch])
    assert 0.9 < result.share <= 1.0


def test_gradients_of_an_input_layer_are_the_float_convolutions() -> None:
    """As above: float64, 1e-12."""
    from spikezip.quant.site import Site
    from spikezip.quant.synapse import adopt_input

    torch.manual_seed(0)
    layer = torch.nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=1, groups=2).double()
    site = Site("site", -8, 7, like=layer.weight).train()
    adopt_input(layer, "layer", 8, site)
    x = torch.randn(2, 4, 7, 8, dtype=torch.float64, requires_grad=True)
    found = layer(x)
    upstream = torch.randn_like(found)
    found.backward(upstream)

    y = x.detach().clone().requires_grad_()
    w, b = layer.weight.detach().clone().requires_grad_(), layer.bias.detach().clone().requires_grad_()
    F.conv2d(y, on_grid(w, 8), b, **layer.geometry()).backward(upstream)
    for ours, expected in zip((x.grad, layer.weight.grad, layer.bias.grad), (y.grad, w.grad, b.grad), strict=True):
        assert torch.allclose(ours, expected, rtol=0, atol=1e-12)
