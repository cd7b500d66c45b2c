"""What a network computes is found from its own forward pass: which neurons arrive where, and what depends on what."""

from typing import Any

import pytest
import tiny_models
import torch
from torch import nn

import spikezip
from spikezip.measure.shapes import layout
from spikezip.measure.tracing import Tracer, _Watch, function_kind
from spikezip.spiking.differential import Differential


def make(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)
    return spikezip.convert(spikezip.calibrate(spikezip.quantize(model), batch)), batch


def test_a_head_reads_its_token_only() -> None:
    snn, batch = make("BertForSequenceClassification")
    found = layout(snn, batch)
    pooler = next(linear for linear in found.linears if linear.name == "bert.pooler.dense")
    assert pooler.read is not None
    times = pooler.read.view(9, 32)
    assert torch.equal(times[0], torch.ones(32, dtype=torch.int64))
    assert not times[1:].any()
    # What the pooler feeds depends on what arrives there, not on the whole site.
    assert found.sites["classifier.in"].sources == {pooler.arriving}
    assert found.read_in_part == (pooler.source,)


def test_two_heads_read_two_tokens() -> None:
    snn, batch = make("DeiTForImageClassificationWithTeacher")
    reads = {
        linear.name: linear.read.view(-1, 32)[:, 0] for linear in layout(snn, batch).linears if linear.read is not None
    }
    assert {name: read.nonzero().flatten().tolist() for name, read in reads.items()} == {
        "cls_classifier": [0],
        "distillation_classifier": [1],
    }


def test_windows_and_shared_keys() -> None:
    snn, batch = make("SwinForImageClassification")
    first = layout(snn, batch).attentions[0]
    assert (first.heads, first.queries, first.keys) == (2 * 16, 16, 16)  # 16 windows of 4 × 4
    snn, batch = make("LlamaForCausalLM")
    first = layout(snn, batch).attentions[0]
    assert (first.heads, first.groups, first.depth) == (2, 2, 16)


def test_products_multiply_what_torch_multiplies() -> None:
    """Multiply–accumulates against a count of what the quantized network's own products get."""
    for name in ("ViTForImageClassification", "GPT2LMHeadModel", "SwinForImageClassification"):
        snn, batch = make(name)
        first = {k: v[:1] for k, v in batch.items()}
        macs = 0

        class Counting(spikezip.execution.Execution):
            def linear(self, owner: Any, tag: str, codes: torch.Tensor, weight: torch.Tensor, *rest: Any) -> Any:
                nonlocal macs
                macs += codes.numel() * weight.shape[0]
                return super().linear(owner, tag, codes, weight, *rest)

            def matmul(self, owner: Any, tag: str, a: torch.Tensor, b: torch.Tensor, *rest: Any) -> Any:
                nonlocal macs
                macs += a.numel() * b.shape[-1]
                return super().matmul(owner, tag, a, b, *rest)

        with spikezip.execution.executing(Counting()):
            snn.network(**first)
        found = layout(snn, batch)
        products = sum(linear.macs for linear in found.linears)
        assert macs == products + sum(a.score_macs + a.mix_macs for a in found.attentions)


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
    assert functions[f"{attention}.sesa.softmax"].sources == {f"{attention}.q", f"{attention}.k"}
    assert [site.name for site in found.sites.values() if not site.sources] == ["embeddings.LayerNorm"]
    assert all(site.sources <= set(found.sites) for site in found.sites.values())


def test_a_layout_is_found_once_per_shape() -> None:
    snn, batch = make("BertModel")
    assert layout(snn, batch) is layout(snn, {k: v[:2] for k, v in batch.items()})
    assert layout(snn, batch) is not layout(snn, {k: v[:, :5] for k, v in batch.items()})


def test_tracing_leaves_no_hook_and_no_change_behind() -> None:
    snn, batch = make("ViTForImageClassification")
    before = spikezip.simulate(snn, batch, 5)
    hooks = {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in snn.named_modules()}
    layout(snn, batch)
    assert {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in snn.named_modules()} == hooks
    after = spikezip.simulate(snn, batch, 5)
    assert torch.equal(before.logits_per_step, after.logits_per_step)
    assert not any(p.requires_grad for p in snn.parameters())


def test_an_operation_that_no_table_knows_is_still_counted() -> None:
    snn, _ = make("ViTModel")
    tracer = Tracer(snn)
    with torch.enable_grad(), _Watch(tracer):
        x = tracer.root(torch.zeros(2, 3), {"a site"}).clone()
        torch.atan(x)[:, :2].softmax(dim=-1)
        torch.zeros(2, 3).atan()  # depends on nothing
    assert [(f.name, f.kind, f.elements, f.rows, f.sources) for f in tracer.functions] == [
        ("atan", "other", 6, 0, {"a site"}),
        ("_softmax", "softmax", 4, 2, {"a site"}),
    ]
    assert function_kind(Differential(nn.Hardswish())) == "function"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes_and_scales_per_channel(dtype: torch.dtype) -> None:
    model = tiny_models.make("ViTForImageClassification").to(dtype)
    batch = {"pixel_values": tiny_models.inputs(model)["pixel_values"].to(dtype)}
    config = spikezip.QuantConfig(levels=16, sites={"layernorm": spikezip.SiteConfig(per_channel=True)})
    snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model, config), batch))
    head = layout(snn, batch).linears[-1]
    assert head.read is not None
    assert head.read.view(-1, 32).sum(dim=1).tolist() == [32] + [0] * 16
