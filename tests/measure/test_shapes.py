"""What a network computes is found from its own forward pass: which neurons arrive where, and what depends on what."""

from typing import Any

import pytest
import tiny_models
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import spikezip
from spikezip.measure.operations import operations, sites_to_record
from spikezip.measure.shapes import layout


def make(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)
    return spikezip.convert(spikezip.calibrate(spikezip.quantize(model), batch)), batch


def test_a_head_reads_its_token_only() -> None:
    snn, batch = make("BertForSequenceClassification")
    found = layout(snn, batch)
    pooler = next(product.operands[0] for product in found.products if product.name == "pooler.dense")
    assert isinstance(pooler.cost, torch.Tensor)
    times = pooler.cost.view(9, 32)
    assert torch.equal(times[0], torch.full((32,), 32))
    assert not times[1:].any()
    # What the pooler feeds depends on what arrives there, not on the whole site.
    assert found.sites["classifier.in"].sources == {pooler.arriving}
    assert found.read_in_part == (pooler.site,)


def test_two_heads_read_two_tokens() -> None:
    snn, batch = make("DeiTForImageClassificationWithTeacher")
    operands = {product.name: product.operands[0] for product in layout(snn, batch).products}
    reads = {k: o.cost.view(-1, 32)[:, 0] for k, o in operands.items() if isinstance(o.cost, torch.Tensor)}
    assert {name: read.nonzero().flatten().tolist() for name, read in reads.items()} == {
        "cls_classifier": [0],
        "distillation_classifier": [1],
    }


def test_windows_and_shared_keys() -> None:
    snn, batch = make("SwinForImageClassification")
    first = next(product for product in layout(snn, batch).products if product.kind == "scores")
    assert first.outputs == 2 * 16 * 16 * 16  # 16 windows of 4 × 4
    snn, batch = make("LlamaForCausalLM")
    first = next(product for product in layout(snn, batch).products if product.kind == "scores")
    q, k = first.operands
    assert (q.fan_out, k.fan_out) == (9, 2 * 9)  # two heads share a key


def test_products_multiply_what_torch_multiplies() -> None:
    """Multiply–accumulates against torch's own count of the float model."""
    for name in ("ViTForImageClassification", "GPT2LMHeadModel", "SwinForImageClassification"):
        snn, batch = make(name)
        first = {k: v[:1] for k, v in batch.items()}
        model = tiny_models.make(name).eval()
        model.set_attn_implementation("eager")
        with FlopCounterMode(display=False) as counter:
            model(**first)
        found = layout(snn, batch)
        macs = sum(product.macs for product in found.products) + sum(layer.macs for layer in found.inputs)
        assert counter.get_total_flops() == 2 * macs


def test_what_only_the_input_decides_has_no_source() -> None:
    snn, batch = make("BertModel")
    found = layout(snn, batch)
    functions = {function.name: function for function in found.functions}
    assert functions["embeddings.LayerNorm"].sources == frozenset()
    assert functions["encoder.layer.0.attention.output.LayerNorm"].sources == {
        "embeddings.LayerNorm",
        "encoder.layer.0.attention.output.dense",
    }
    attention = "encoder.layer.0.attention.self"
    assert found.sites[f"{attention}.p"].sources == {f"{attention}.q", f"{attention}.k"}
    assert found.sites[f"{attention}.o"].sources == {f"{attention}.p", f"{attention}.v"}
    assert functions[f"{attention}.softmax"].sources == {f"{attention}.q", f"{attention}.k"}
    assert [site.name for site in found.sites.values() if not site.sources] == ["embeddings.LayerNorm"]
    assert all(site.sources <= set(found.sites) for site in found.sites.values())


def test_a_layout_is_found_once_per_shape() -> None:
    snn, batch = make("BertModel")
    assert layout(snn, batch) is layout(snn, {k: v[:2] for k, v in batch.items()})
    assert layout(snn, batch) is not layout(snn, {k: v[:, :5] for k, v in batch.items()})


def test_convolutions_cost_less_at_the_border() -> None:
    """A spike in a corner of a 3 × 3 convolution with padding reaches 4 places, one inside 9; each has 5 channels."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 5, 3, padding=1))
    images = torch.randn(2, 1, 4, 4)
    snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model, example=images), images))
    (product,) = layout(snn, images).products
    (operand,) = product.operands
    assert operand.cost[0, 0].tolist() == [[20, 30, 30, 20], [30, 45, 45, 30], [30, 45, 45, 30], [20, 30, 30, 20]]
    run = spikezip.simulate(snn, images, "equilibrium", record=sites_to_record(snn))
    expected = (run.trains[operand.site].abs().sum(dim=(0, 1)) * operand.cost[0]).sum()
    assert operations(snn, run).accumulates() == int(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes_and_scales_per_channel(dtype: torch.dtype) -> None:
    model = tiny_models.make("ViTForImageClassification").to(dtype)
    batch = {"pixel_values": tiny_models.inputs(model)["pixel_values"].to(dtype)}
    config = spikezip.QuantConfig(levels=16, sites={"layernorm": spikezip.SiteConfig(per_channel=True)})
    snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model, config), batch))
    head = layout(snn, batch).products[-1].operands[0]
    assert isinstance(head.cost, torch.Tensor)
    assert (head.cost > 0).view(-1, 32).sum(dim=1).tolist() == [32] + [0] * 16
