"""Training as an interpretation of the program: forward what `eval()` computes, backward as the float products'."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import families
import interpreted
import pytest
import tiny_models
import torch
import transformers
from torch import Tensor, nn

import spikezip
from spikezip.engines.quantized import quantized
from spikezip.engines.walk import collect, sizes_of
from spikezip.errors import CalibrationError
from spikezip.program.floats import function_value, plain_product
from spikezip.program.nodes import Function, Grid, Input, Program, Site, Values, Weight
from spikezip.quant import SiteConfig
from spikezip.quant.calibration import calibrate
from spikezip.quant.learn import learn
from spikezip.quant.lsq import lsq, on_grid
from spikezip.quant.network import QuantizedNetwork, quantize

# Convolutions with groups, dilation and padding on one side, batch norms, shared layers, products with constants,
# relative positions, gates, pooling, a recurrence, masks of several kinds.
FAMILIES = [
    "mlp", "cnn", "separable-cnn", "wavenet", "u-net", "mlp-mixer", "nn.TransformerEncoder-sequence-first",
    "nn.MultiheadAttention", "albert", "t5-encoder", "deberta-v2", "modernbert", "mpnet", "gemma2", "mamba",
    "graph-transformer", "convnext", "swinv2", "wav2vec2", "t5", "clip",
]  # fmt: skip
IN_FLOAT64 = ["cnn", "separable-cnn", "wavenet", "u-net", "mlp-mixer", "albert", "t5-encoder", "graph-transformer"]


def with_dropout(program: Program, p: float, where: str = "") -> Program:
    """The program with this probability at every dropout whose name holds `where`."""
    nodes = [
        replace(node, args=(node.args[0], p, *node.args[2:]))
        if isinstance(node, Function) and node.op == "aten.dropout.default" and where in node.name
        else node
        for node in program.nodes
    ]
    return replace(program, nodes=tuple(nodes))


def make(model: nn.Module, batch: Mapping[str, Tensor], **settings: Any) -> QuantizedNetwork:
    """A calibrated network without dropout, in training."""
    qann = calibrate(quantize(model, spikezip.QuantConfig(**{"levels": 16, **settings}), example=batch), batch)
    qann.program = with_dropout(qann.program, 0.0)
    return qann.train()


def tensors(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, (tuple, list)) else ()
    return [tensor for part in parts for tensor in tensors(part)]


def loss(output: Any) -> Tensor:
    """A number that depends on every element of the output in its own way."""
    found = [t for t in tensors(output) if t.requires_grad]
    return torch.stack([(t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view_as(t)).sum() for t in found]).sum()


def gradients(module: nn.Module, output: Any) -> dict[str, Tensor]:
    module.zero_grad()
    loss(output).backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def check_forward(qann: QuantizedNetwork, batch: Mapping[str, Tensor]) -> None:
    """Codes at every site and all outputs as in `eval()`, bit for bit; a gradient for every parameter."""
    expected, expected_codes = quantized(qann.frozen(), batch)
    codes: dict[str, Tensor] = {}
    found = learn(qann, batch, codes)
    assert codes.keys() == expected_codes.keys()
    assert all(torch.equal(codes[name], expected_codes[name]) for name in codes)
    assert len(tensors(found)) == len(tensors(expected))
    for ours, theirs in zip(tensors(found), tensors(expected), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    grads = gradients(qann, found)
    assert grads.keys() == {name for name, _ in qann.named_parameters()}
    assert all(grad.isfinite().all() for grad in grads.values())


@pytest.mark.parametrize("name", list(tiny_models.ALL))
def test_training_computes_what_evaluation_computes(name: str) -> None:
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)
    check_forward(make(model, batch), batch)


@pytest.mark.parametrize("name", FAMILIES)
def test_training_computes_what_evaluation_computes_in_other_families(name: str) -> None:
    batch = families.FAMILIES[name].batch(0)
    check_forward(make(families.build(name), batch), batch)


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_bits": 16},
        {"weight_bits": None},
        {"placement": "products"},
        {"sites": {"*layernorm_before": SiteConfig(per_channel=True)}},
        {"sites": {"*layernorm_before": SiteConfig(per_channel=True)}, "weight_bits": None},
        {"levels": 256},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training_computes_what_evaluation_computes_with_other_settings(
    settings: dict[str, Any], dtype: torch.dtype
) -> None:
    model = tiny_models.make("ViTModel").to(dtype)
    batch = {name: x.to(dtype) for name, x in tiny_models.inputs(model).items()}
    check_forward(make(model, batch, **settings), batch)


def test_forward_returns_what_evaluation_returns() -> None:
    model = tiny_models.make("ViTForImageClassification")
    batch = tiny_models.inputs(model)
    qann = make(model, batch)
    found = qann(**batch)
    assert list(found) == ["logits"]
    assert torch.equal(found["logits"], qann.eval()(**batch)["logits"])
    floats = dict(model.named_parameters())
    own = {name for name, _ in qann.named_parameters() if not name.endswith(".site_scale")}
    assert own <= floats.keys()


# ---- gradients


def as_floats(qann: QuantizedNetwork, batch: Mapping[str, Tensor]) -> Any:
    """The same pass as fake quantization, written down once more: every product in floats, by torch's own kernels."""
    program, weights, sizes = qann.program, qann.tensors(), sizes_of(qann.program, batch)
    values: dict[str, Any] = {}

    def on_its_grid(node: Grid) -> Tensor:
        weight = values[node.weight]
        if node.site is not None:
            step = qann.scale(node.site).detach().float().double()
            return on_grid(weight * step, node.bits) / step
        return on_grid(weight, node.bits) if node.rows else on_grid(weight.reshape(1, -1), node.bits).view_as(weight)

    for node in program.nodes:
        if isinstance(node, Input):
            value = batch[node.name]
        elif isinstance(node, Weight):
            value = weights[node.key]
        elif isinstance(node, Site):
            value = lsq(values[node.u], qann.scale(node.name), node.lo, node.hi)
        elif isinstance(node, Values):
            value = values[node.codes]
        elif isinstance(node, Grid):
            value = on_its_grid(node)
        elif isinstance(node, Function):
            value = function_value(node, values, sizes, torch.device("cpu"))
        else:
            value = plain_product(node, values.__getitem__)
        values[node.name] = value
    return collect(program.output, values)


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], share: float) -> None:
    """Equal up to a share of the largest gradient of a parameter; some are zero but for rounding (biases of keys)."""
    assert ours.keys() == theirs.keys()
    most = max(float(grad.abs().max()) for grad in theirs.values())
    for name, grad in theirs.items():
        bound = share * (float(grad.abs().max()) + 1e-3 * most)
        assert float((ours[name] - grad).abs().max()) <= bound, name


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", IN_FLOAT64)
def test_gradients_are_those_of_fake_quantization(name: str, bits: int) -> None:
    """The input is a multiple of 2^-16, as input layers read it. On the grid, sums times their scale are float32 in a
    float64 network, too: the gradients of scales, sums of many terms of both signs, differ by that."""
    batch = {
        key: (x * 2**16).round().double() / 2**16 if x.is_floating_point() else x
        for key, x in families.FAMILIES[name].batch(0).items()
    }
    qann = make(families.build(name).double(), batch, weight_bits=bits)
    assert_close(gradients(qann, qann(**batch)), gradients(qann, as_floats(qann, batch)), 1e-5)


def test_gradients_behind_a_scale_per_channel_are_those_of_fake_quantization() -> None:
    model = tiny_models.make("ViTModel").double()
    batch = {name: (x * 2**16).round().double() / 2**16 for name, x in tiny_models.inputs(model).items()}
    qann = make(model, batch, sites={"*layernorm_before": SiteConfig(per_channel=True)})
    assert_close(gradients(qann, qann(**batch)), gradients(qann, as_floats(qann, batch)), 1e-5)


def gelu_vit() -> nn.Module:
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(transformers.ViTConfig(**tiny_models.VISION)).eval()


MODELS = {
    "ViT, ReLU": lambda: tiny_models.make("ViTForImageClassification"),
    "ViT, GELU": gelu_vit,
    "BERT": lambda: tiny_models.make("BertForSequenceClassification"),
    "GPT-2": lambda: tiny_models.make("GPT2LMHeadModel"),
    "Llama": lambda: tiny_models.make("LlamaForCausalLM"),
    "Swin": lambda: tiny_models.make("SwinForImageClassification"),
}


def both(model: nn.Module, batch: Mapping[str, Tensor], bits: int = 8) -> tuple[Any, QuantizedNetwork]:
    """The network of the first edition and ours, with the same weights and scales."""
    config = spikezip.QuantConfig(levels=16, weight_bits=bits)
    old, new = spikezip.calibrate(spikezip.quantize(model, config), [batch]), quantize(model, config, example=batch)
    assert old.sites.keys() == new.sites.keys()
    for name, site in old.sites.items():
        new.set_scale(name, site.scale.detach())
    return old.train(), new.train()


def old_gradients(old: Any, new: QuantizedNetwork, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of the first edition, under our names."""
    found = gradients(old, old(**batch).logits)
    names = {f"{name}.scale": m.name for name, m in old.named_modules() if m in set(old.sites.values())}
    renamed = {new.scale_key(names[name]) if name in names else name: grad for name, grad in found.items()}
    # A table that is the output layer too is one parameter; torch.export calls it by its other name.
    own = {name for name, _ in new.named_parameters()}
    tied = {"transformer.wte.weight": "lm_head.weight"}
    return {name if name in own else tied.get(name, name): grad for name, grad in renamed.items()}


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_first_edition(name: str, bits: int) -> None:
    """In float64: codes lie in memory in another order, in which BLAS and sums over all values add other last bits."""
    model = MODELS[name]().double()
    batch = {key: x.double() if x.is_floating_point() else x for key, x in tiny_models.inputs(model).items()}
    old, new = both(model, batch, bits)
    new.program = with_dropout(new.program, 0.0)
    for module in old.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for rate in ("drop_prob", "dropout_prob", "attention_dropout", "dropout"):
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)
    assert_close(gradients(new, new(**batch)), old_gradients(old, new, batch), 1e-9)


def test_gradients_are_those_of_the_first_edition_bit_for_bit() -> None:
    """In float32, for a network whose operations have the same order in both."""
    model = MODELS["ViT, ReLU"]()
    batch = tiny_models.inputs(model)
    old, new = both(model, batch)
    expected, found = old_gradients(old, new, batch), gradients(new, new(**batch))
    assert found.keys() == expected.keys()
    # torch's convolution adds the gradients of its bias up in an order of its own.
    bias = "vit.embeddings.patch_embeddings.projection.bias"
    assert torch.allclose(found.pop(bias), expected.pop(bias), rtol=1e-5)
    assert [name for name, grad in found.items() if not torch.equal(grad, expected[name])] == []


# ---- dropout


@pytest.mark.parametrize("rates", [(0.1, 0.0), (0.0, 0.2), (0.1, 0.2)])
def test_dropout_is_that_of_the_first_edition(rates: tuple[float, float]) -> None:
    """Also between a site and its products, and where values and codes pass one dropout: with the same seed, the same
    gradients. In float64, as above."""
    hidden, inside = rates
    # Behind the last dropout of a classifier the first edition has its site, and the program before it: none there.
    settings = {"hidden_dropout_prob": hidden, "attention_probs_dropout_prob": inside, "classifier_dropout": 0.0}
    torch.manual_seed(0)
    config = transformers.BertConfig(**tiny_models.TEXT, **settings)
    model = transformers.BertForSequenceClassification(config).eval().double()
    batch = tiny_models.inputs(model)
    old, new = both(model, batch)
    # transformers hands 0 to its attention in `eval()`, in which networks are captured.
    new.program = with_dropout(new.program, inside, "attention.self.dropout")
    torch.manual_seed(1)
    expected = old_gradients(old, new, batch)
    torch.manual_seed(1)
    assert_close(gradients(new, new(**batch)), expected, 1e-9)
    torch.manual_seed(2)
    assert not torch.equal(new(**batch)["logits"], new(**batch)["logits"])
    assert torch.equal(new.eval()(**batch)["logits"], new(**batch)["logits"])


# ---- scales


def test_scales_start_from_the_first_batch() -> None:
    model = tiny_models.make("ViTForImageClassification")
    batch = tiny_models.inputs(model)
    config = spikezip.QuantConfig(levels=16)
    old, new = spikezip.quantize(model, config).train(), quantize(model, config, example=batch).train()
    with pytest.raises(CalibrationError, match="22 of 22 sites have no scale yet"):
        new.eval()(**batch)
    expected, found = old(**batch).logits, new.train()(**batch)["logits"]
    assert torch.equal(found, expected)
    assert all(torch.equal(new.scale(name), site.scale) for name, site in old.sites.items())
    assert new.waiting() == []
    before = new.scale("embeddings").clone()
    new(pixel_values=2 * batch["pixel_values"])
    assert torch.equal(new.scale("embeddings"), before)
    fresh = quantize(model, config, example=batch)
    assert fresh.waiting()
    fresh.load_state_dict(new.state_dict())
    assert fresh.waiting() == []
    new.load_state_dict(quantize(model, config, example=batch).state_dict())
    assert len(new.waiting()) == 22


def test_scales_per_channel_are_calibrated_first() -> None:
    model = tiny_models.make("ViTForImageClassification")
    batch = tiny_models.inputs(model)
    config = spikezip.QuantConfig(levels=16, sites={"*layernorm_before": SiteConfig(per_channel=True)})
    qann = quantize(model, config, example=batch).train()
    with pytest.raises(CalibrationError, match=r"'layers\.0\.layernorm_before' has a scale per channel"):
        qann(**batch)


def test_a_network_learns() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    x = torch.randn(64, 6)
    labels = (x @ torch.randn(6, 3)).argmax(1)
    qann = make(model, {"input": x})
    optimizer = torch.optim.Adam(qann.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        losses.append(nn.functional.cross_entropy(qann(input=x), labels))
        losses[-1].backward()
        optimizer.step()
    assert float(losses[-1]) < 0.3 * float(losses[0])
    with torch.no_grad():
        assert torch.equal(qann(input=x), qann.eval()(input=x))


# ---- kernels

CHECK = """
import torch, transformers, spikezip
from spikezip.ops import kernels
from spikezip.ops.sesa import triton_training
from spikezip.quant import learn, network, calibration

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    kernels.on_gpu = lambda *tensors: True
    learn.backward_dtype = lambda x: torch.bfloat16
used = {"forward": 0, "backward": 0}


def counting(name):
    run = getattr(triton_training, name)

    def counted(*args):
        used[name] += 1
        return run(*args)

    setattr(triton_training, name, counted)


counting("forward")
counting("backward")
torch.manual_seed(0)
shape = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, hidden_act="relu")
vit = transformers.ViTForImageClassification(transformers.ViTConfig(**shape, image_size=32, num_labels=3))
bert = transformers.BertForSequenceClassification(
    transformers.BertConfig(**shape, vocab_size=50, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
)
llama = transformers.LlamaForSequenceClassification(
    transformers.LlamaConfig(**shape, vocab_size=50, num_key_value_heads=1, num_labels=3, pad_token_id=0)
)
ids = torch.randint(3, 50, (3, 7))
seen = torch.ones_like(ids)
seen[1, 4:] = 0
words = {"input_ids": ids, "attention_mask": seen}
cases = [(vit, {"pixel_values": torch.randn(3, 3, 32, 32)}), (bert, words), (llama, words)]
for model, batch in cases:
    batch = {name: value.to(device) for name, value in batch.items()}
    qann = network.quantize(model.to(device), spikezip.QuantConfig(levels=16), example=batch)
    calibration.calibrate(qann, batch).eval()
    expected = qann(**batch)["logits"]

    def gradients(codes):
        qann.train().zero_grad()
        torch.cuda.set_sync_debug_mode("error") if device == "cuda" else None
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = learn.learn(qann, batch, codes)["logits"]
        weights = torch.linspace(1.0, -0.5, logits.shape[1]).to(device, non_blocking=True)
        (logits.float() * weights).sum().backward()
        torch.cuda.set_sync_debug_mode("default") if device == "cuda" else None
        assert torch.equal(logits, expected), (logits - expected).abs().max()
        return {name: p.grad.clone() for name, p in qann.named_parameters()}

    used.update(forward=0, backward=0)
    ours = gradients(None)
    assert used == {"forward": 1, "backward": 1}, used
    pieces = gradients({})  # whoever asks for the codes of all sites gets them
    assert used == {"forward": 1, "backward": 1}, used
    assert ours.keys() == pieces.keys()
    for name, grad in ours.items():
        # In float32 both add the same terms in other orders. Under autocast each rounds gradients to 8 bits, at other
        # places, and a scale's gradient is a sum of many terms of both signs: they agree on average, not bit by bit.
        size, error = float(pieces[name].norm()), float((grad - pieces[name]).norm())
        bound = 1e-4 if device == "cpu" else 0.1 if name.endswith("_scale") else 0.03
        assert error <= bound * size + 1e-7, (name, error, size)
"""


def test_networks_train_on_kernels() -> None:
    interpreted.check(CHECK)
