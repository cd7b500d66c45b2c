"""Training as an interpretation of the program: forward what `eval()` computes, backward as the float products'.

Networks are captured once per process. All families take many minutes: `SPIKEZIP_FAMILIES=all` runs them.
"""

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

import families
import interpreted
import pytest
import tiny_models
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import spikezip
from spikezip.engines.quantized import quantized
from spikezip.engines.walk import collect
from spikezip.errors import CalibrationError
from spikezip.measure.agreement import agreement
from spikezip.program.batch import sizes_of
from spikezip.program.capture import capture
from spikezip.program.dropout import with_dropout
from spikezip.program.functions import function_value, plain_product, torch_operator
from spikezip.program.nodes import Function, Grid, Input, Node, Ref, Rows, Site, Values, Weight, map_arguments
from spikezip.program.sizes import bind
from spikezip.quant import SiteConfig, network
from spikezip.quant.calibration import calibrate
from spikezip.quant.gradients import as_frozen
from spikezip.quant.learn import learn
from spikezip.quant.lsq import initial_scale, lsq, on_grid
from spikezip.quant.network import QuantizedNetwork, quantize

EVERYTHING = os.environ.get("SPIKEZIP_FAMILIES") == "all"
BERT, VIT = "BertForSequenceClassification", "ViTForImageClassification"
# Convolutions with groups, dilation and padding on one side, transposed ones, batch and group norms, pooling; products
# with constants, gates, a recurrence, rotary positions, masks.
FAMILIES = [
    "mlp", "separable-cnn", "wavenet", "u-net", "mlp-mixer", "nn.MultiheadAttention", "graph-transformer", "mamba", VIT,
    "LlamaForCausalLM",
]  # fmt: skip
# Besides: layers that are used twice, relative positions, windows, a table that is an output layer.
IN_FLOAT64 = [
    "separable-cnn", "wavenet", "u-net", "mlp-mixer", "albert", "t5-encoder", "graph-transformer", VIT, "ViT, GELU",
    BERT, "GPT2LMHeadModel", "LlamaForCausalLM", "SwinForImageClassification",
]  # fmt: skip
# Shapes that depend on values, or random numbers in `eval()`: no program holds these.
REFUSED = {"xmod", "vjepa2", "informer", "dac"}
ALL_FAMILIES = [name for name in (*tiny_models.ALL, *families.FAMILIES) if name not in REFUSED]
PER_CHANNEL = {"*layernorm_before": SiteConfig(per_channel=True)}


# ---- networks


@pytest.fixture(autouse=True, scope="module")
def _captured_once() -> Iterator[None]:
    """Most of the time of a test goes into capturing its model, which depends neither on levels nor on bits."""
    found: dict[nn.Module, Any] = {}

    def once(model: nn.Module, example: Any, batch_dim: int = 0) -> Any:
        if model not in found:
            found[model] = capture(model, example, batch_dim)
        return found[model]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "capture", once)
        yield


@functools.cache
def model_and_batch(name: str, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Tensor]]:
    """The input is a multiple of 2^-16, as input layers read it."""
    if name in families.FAMILIES:
        model, batch = families.build(name), families.FAMILIES[name].batch(0)
    else:
        model = gelu_vit() if name == "ViT, GELU" else tiny_models.make(name)
        batch = tiny_models.inputs(model)
    return model.to(dtype), {
        key: (x * 2**16).round().to(dtype) / 2**16 if x.is_floating_point() else x for key, x in batch.items()
    }


def gelu_vit() -> nn.Module:
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(transformers.ViTConfig(**tiny_models.VISION)).eval()


def make(
    name: str, dtype: torch.dtype = torch.float32, effort: str = "default", **settings: Any
) -> tuple[QuantizedNetwork, dict[str, Tensor]]:
    """A calibrated network without dropout, in training, and a batch for it."""
    model, batch = model_and_batch(name, dtype)
    qann = calibrate(quantize(model, spikezip.QuantConfig(**{"levels": 16, **settings}), example=batch), batch, effort)
    qann.program = with_dropout(qann.program, 0.0)
    return qann.train(), batch


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


# ---- forward


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


@pytest.mark.parametrize("name", ALL_FAMILIES if EVERYTHING else FAMILIES)
def test_training_computes_what_evaluation_computes(name: str) -> None:
    check_forward(*make(name))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ViTModel", {"weight_bits": 16}),
        ("ViTModel", {"weight_bits": None}),
        ("ViTModel", {"placement": "products"}),
        ("ViTModel", {"sites": PER_CHANNEL}),
        ("ViTModel", {"sites": PER_CHANNEL, "weight_bits": None}),
        ("ViTModel", {"levels": 256}),
        (BERT, {"embedding_bits": 8}),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training_computes_what_evaluation_computes_with_other_settings(
    name: str, settings: dict[str, Any], dtype: torch.dtype
) -> None:
    check_forward(*make(name, dtype, **settings))


def test_forward_returns_what_evaluation_returns() -> None:
    qann, batch = make(VIT)
    found = qann(**batch)
    assert list(found) == ["logits"]
    assert torch.equal(found["logits"], qann.eval()(**batch)["logits"])
    floats = {name for name, _ in model_and_batch(VIT, torch.float32)[0].named_parameters()}
    assert {name for name, _ in qann.named_parameters() if not name.endswith(".site_scale")} <= floats


def test_agreement_counts_the_codes_that_training_and_evaluation_share() -> None:
    """All of them where weights are integers, also with dropout, which is off then. Float weights are summed in
    another order: a value at the border between two codes may fall on either side."""
    qann, batch = make(BERT)
    qann.program = with_dropout(qann.program, 0.5)
    found = agreement(qann, [batch])
    assert found.codes > 1000
    assert (found.equal, found.share, found.worst_site) == (found.codes, 1.0, None)
    assert qann.training
    qann, batch = make("ViTModel", weight_bits=None)
    assert 0.9 < agreement(qann, [batch]).share <= 1.0


# ---- gradients


class SoftmaxAt(torch.autograd.Function):
    """torch's softmax, with its gradient at given probabilities.

    Some models ask for a softmax in float32 whatever they are in. That of training has last bits of its own, so the
    gradients of a float64 network would differ by a float32's 2^-24.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, p: Tensor) -> Tensor:
        ctx.save_for_backward(p.detach())
        ctx.dim = dim
        return x.softmax(dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (p,) = ctx.saved_tensors
        return torch._softmax_backward_data(grad, p, ctx.dim, p.dtype), None, None


def as_floats(qann: QuantizedNetwork, batch: Mapping[str, Tensor]) -> Any:
    """The same pass as fake quantization, written down once more: all in floats, by torch's own operators.

    Each value is then replaced by the one that training has there, which must be near it, with the gradient of the
    first. So nothing is decided otherwise by the last bit: which of two equal values a maximum takes, which code a
    value has at the border between two.
    """
    program, weights, sizes = qann.program, qann.tensors(), sizes_of(qann.program, batch)
    ours, values, dropped = seen_in_training(qann, batch), dict[str, Any](), dict[str, Tensor]()

    def bound(x: Any) -> Any:
        return values[x.name] if isinstance(x, Ref) else bind(x, sizes)

    def on_its_grid(node: Grid) -> Tensor:
        weight = values[node.weight]
        if node.site is not None:
            step = qann.scale(node.site).detach().float().double()
            return on_grid(weight * step, node.bits) / step
        return on_grid(weight, node.bits) if node.rows else on_grid(weight.reshape(1, -1), node.bits).view_as(weight)

    def function(node: Function) -> Any:
        if not node.op.startswith("aten."):
            return function_value(node, values, sizes, torch.device("cpu"))
        args, kwargs = map_arguments(node.args, bound), map_arguments(node.kwargs, bound)
        if node.op == "aten.softmax.int" and args[0].dtype == torch.float32:
            return SoftmaxAt.apply(args[0], args[1], ours[node.name])
        if node.op != "aten.dropout.default":
            return torch_operator(node.op)(*args, **kwargs)
        # Where products read codes and others values, one dropout of the model stands in the program twice.
        original = node.name.removesuffix(".codes")
        if original not in dropped:
            ones = torch.ones_like(args[0])
            dropped[original] = torch.dropout(ones, args[1], True) if args[1] else ones
        return args[0] * dropped[original]

    def value(node: Node) -> Any:
        if isinstance(node, Input):
            return batch[node.name]
        if isinstance(node, Weight):
            return weights[node.key]
        if isinstance(node, Site):
            return lsq(values[node.u], qann.scale(node.name), node.lo, node.hi)
        if isinstance(node, Values):
            return values[node.codes]
        if isinstance(node, Grid):
            return on_its_grid(node)
        if isinstance(node, Rows):
            rows = values[node.x]
            return on_grid(rows.reshape(-1, rows.shape[-1]), node.bits).view(rows.shape)
        return function(node) if isinstance(node, Function) else plain_product(node, values.__getitem__)

    for node in program.nodes:
        plain, exact = value(node), ours[node.name]
        if isinstance(plain, Tensor) and plain.requires_grad and isinstance(exact, Tensor):
            # On the grid, sums times their scale are float32 in a float64 network, too.
            torch.testing.assert_close(exact, plain, rtol=1e-5, atol=1e-5, msg=node.name)
            plain = as_frozen(plain, exact.detach())
        values[node.name] = plain
    return collect(program.output, values)


def seen_in_training(qann: QuantizedNetwork, batch: Mapping[str, Tensor]) -> dict[str, Any]:
    """The value of every node in a training pass. Random numbers are drawn as if there had been none."""
    seen: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        qann.watch = lambda node, values: seen.__setitem__(node.name, values[node.name])
        learn(qann, batch)
    qann.watch = None
    return seen


def check_gradients(qann: QuantizedNetwork, batch: Mapping[str, Tensor], share: float = 1e-9) -> None:
    """In float64 both add the same terms in other orders: a share of 1e-9 of the largest gradient of a parameter is
    far more than that makes, and far less than any mistake. Some are zero but for rounding, such as biases of keys."""
    torch.manual_seed(1)
    found = gradients(qann, qann(**batch))
    torch.manual_seed(1)
    expected = gradients(qann, as_floats(qann, batch))
    assert found.keys() == expected.keys() == {name for name, _ in qann.named_parameters()}
    most = max(float(grad.abs().max()) for grad in expected.values())
    for name, grad in expected.items():
        bound = share * (float(grad.abs().max()) + 1e-3 * most)
        assert float((found[name] - grad).abs().max()) <= bound, name


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", IN_FLOAT64)
def test_gradients_are_those_of_fake_quantization(name: str, bits: int) -> None:
    qann, batch = make(name, torch.float64, weight_bits=bits)
    check_forward(qann, batch)
    # Llama itself goes through float32 in its norms and in softmax, and so do the gradients. That of a scale is a sum
    # of many terms of both signs, where 2^-24 of a term is more of the sum.
    check_gradients(qann, batch, share=1e-5 if name == "LlamaForCausalLM" else 1e-9)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ViTModel", {"sites": PER_CHANNEL}),
        ("ViTModel", {"sites": PER_CHANNEL, "weight_bits": None}),
        ("ViTModel", {"placement": "products"}),
        (BERT, {"embedding_bits": 8}),
        ("GPT2LMHeadModel", {"embedding_bits": 8}),
    ],
    ids=str,
)
def test_gradients_are_those_of_fake_quantization_with_other_settings(name: str, settings: dict[str, Any]) -> None:
    check_gradients(*make(name, torch.float64, **settings))


# ---- dropout


@pytest.mark.parametrize(("hidden", "inside"), [(0.1, 0.0), (0.0, 0.2), (0.1, 0.2)])
def test_gradients_behind_dropout_are_those_of_fake_quantization(hidden: float, inside: float) -> None:
    """Also between a site and its products, and where values and codes pass one dropout: with the same seed, the same
    is dropped."""
    qann, batch = make(BERT, torch.float64)
    expected = qann.eval()(**batch)["logits"]
    qann.program = with_dropout(with_dropout(qann.program, hidden), inside, attention=True)
    rates = {node.args[1] for node in qann.program.nodes if isinstance(node, Function) and "dropout" in node.op}
    assert rates == {hidden, inside}
    check_gradients(qann.train(), batch)
    torch.manual_seed(2)
    assert not torch.equal(qann(**batch)["logits"], qann(**batch)["logits"])
    assert torch.equal(qann.eval()(**batch)["logits"], expected)


def test_what_dropout_left_is_not_taken_for_codes() -> None:
    qann, batch = make(BERT, effort="quick")  # one scale for all channels: a weight's grid is its own
    qann.program = with_dropout(qann.program, 0.1)
    seen = seen_in_training(qann, batch)
    values, codes = seen["embeddings.dropout.dropout"], seen["embeddings.dropout.dropout.codes"]
    assert torch.equal(codes.values, values), "a residual sum and products read the same"
    assert codes.codes is None
    whole = seen["embeddings.LayerNorm.values"]
    kept = values != 0
    assert 0.8 < float(kept[whole != 0].double().mean()) < 1.0
    assert torch.equal(values[kept], (whole * (1 / 0.9))[kept])
    # It is scaled by 1/0.9, and a product of rounded codes would lose that. Sums have float32's rounding: 1e-5.
    first = "encoder.layer.0.attention.self.query"
    weight, bias = (qann.tensors()[f"bert.{first}.{name}"] for name in ("weight", "bias"))
    assert torch.allclose(seen[f"{first}.linear"], F.linear(values, on_grid(weight, 8), bias), atol=1e-5)


@pytest.mark.parametrize("dropout", [nn.Dropout(0.5), nn.AlphaDropout(0.5), nn.Dropout1d(0.5)], ids=str)
def test_dropout_draws_what_the_float_model_draws(dropout: nn.Module) -> None:
    """With the same seed. What is left differs by quantization, which at 256 levels is below 0.05; what is dropped or
    scaled by 2 differs by more."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), dropout)
    x = torch.randn(4, 5, 6)
    config = spikezip.QuantConfig(levels=256, weight_bits=16)
    qann = calibrate(quantize(model, config, example={"input": x}), {"input": x}).train()
    torch.manual_seed(3)
    expected = model.train()(x)
    torch.manual_seed(3)
    found = qann(input=x)
    assert torch.allclose(found, expected, atol=0.05)
    assert not torch.allclose(qann.eval()(input=x), expected, atol=0.05)


# ---- scales


def test_scales_start_from_the_first_batch_and_stay() -> None:
    model, batch = model_and_batch(VIT, torch.float32)
    qann = quantize(model, spikezip.QuantConfig(levels=16), example=batch)
    unset = {name: tensor.clone() for name, tensor in qann.state_dict().items()}
    with pytest.raises(CalibrationError, match="22 of 22 sites have no scale yet"):
        qann.eval()(**batch)

    def check_start(batch: Mapping[str, Tensor]) -> None:
        started: dict[str, Tensor] = {}

        def watch(node: Node, values: Mapping[str, Any]) -> None:
            if isinstance(node, Site):
                started[node.name] = initial_scale(values[node.u], node.hi)

        assert len(qann.waiting()) == 22
        qann.watch = watch
        found = qann.train()(**batch)["logits"]
        qann.watch = None
        assert qann.waiting() == []
        assert started.keys() == qann.sites.keys()
        assert all(torch.equal(qann.scale(name), scale.view(1)) for name, scale in started.items())
        assert torch.equal(qann.eval()(**batch)["logits"], found)

    check_start(batch)
    state = {name: tensor.clone() for name, tensor in qann.state_dict().items()}
    larger = {"pixel_values": 2 * batch["pixel_values"]}

    def check_kept(network: QuantizedNetwork) -> None:
        assert network.waiting() == []
        network.train()(**larger)
        assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())

    check_kept(qann)
    fresh = quantize(model, spikezip.QuantConfig(levels=16), example=batch)
    fresh.load_state_dict(state)
    check_kept(fresh)
    qann.load_state_dict(unset)
    check_start(larger)
    qann.load_state_dict(state)
    check_kept(qann)


def test_scales_per_channel_are_calibrated_first() -> None:
    model, batch = model_and_batch(VIT, torch.float32)
    qann = quantize(model, spikezip.QuantConfig(levels=16, sites=PER_CHANNEL), example=batch).train()
    with pytest.raises(CalibrationError, match=r"'layers\.0\.layernorm_before' has a scale per channel"):
        qann(**batch)


def test_a_network_learns() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    x = torch.randn(64, 6)
    labels = (x @ torch.randn(6, 3)).argmax(1)
    qann = quantize(model, spikezip.QuantConfig(levels=16), example={"input": x})
    calibrate(qann, {"input": x}, "quick").train()  # one scale; steps of 0.01 are too long for those of channels
    optimizer = torch.optim.Adam(qann.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        error = F.cross_entropy(qann(input=x), labels)
        error.backward()
        optimizer.step()
        losses.append(error.item())
    assert losses[-1] < 0.3 * losses[0]
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
llama = transformers.LlamaForSequenceClassification(
    transformers.LlamaConfig(**shape, vocab_size=50, num_key_value_heads=1, num_labels=3, pad_token_id=0)
)
ids = torch.randint(3, 50, (3, 7))
seen = torch.ones_like(ids)
seen[1, 4:] = 0
words = {"input_ids": ids, "attention_mask": seen}
cases = [(vit, {"pixel_values": torch.randn(3, 3, 32, 32)}), (llama, words)]
for model, batch in cases:
    batch = {name: value.to(device) for name, value in batch.items()}
    qann = network.quantize(model.to(device), spikezip.QuantConfig(levels=16), example=batch)
    calibration.calibrate(qann, batch).eval()
    expected = qann(**batch)["logits"]

    def gradients(codes, low=True):
        qann.train().zero_grad()
        torch.cuda.set_sync_debug_mode("error") if device == "cuda" else None
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=low and device == "cuda"):
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
    exact = gradients({}, low=False)
    assert ours.keys() == pieces.keys() == exact.keys()
    # In float32 both add the same terms in other orders. Under autocast each rounds gradients to 8 bits, at other
    # places: the kernel may be no further from float32 than the pieces are, up to chance.
    most = max(float(grad.norm()) for grad in exact.values())
    for name, grad in ours.items():
        size = float(exact[name].norm())
        error, usual = (float((found - exact[name]).norm()) for found in (grad, pieces[name]))
        assert error <= 3 * usual + 1e-4 * size + 1e-6 * most, (name, error, usual, size)
"""


def test_networks_train_on_kernels() -> None:
    interpreted.check(CHECK)


def test_dropout_of_values_and_codes_leaves_out_the_same_places() -> None:
    """Functions read floats and products codes of one value behind dropout: the scale of its site learns."""
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=20,
        hidden_dropout_prob=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    batch = {"input_ids": torch.randint(0, 20, (3, 5))}
    qann = spikezip.quantize(
        transformers.BertModel(config), spikezip.QuantConfig(levels=4, placement="products"), example=batch
    )
    spikezip.calibrate(qann, batch, "quick")
    qann.train()
    seen = seen_in_training(qann, qann.prepare(batch))
    name = "embeddings.dropout.dropout"
    floats, codes = seen[name], seen[f"{name}.codes"].values
    assert 0.3 < float((floats == 0).float().mean()) < 0.7
    assert bool((codes[floats == 0] == 0).all())
    assert not torch.equal(floats, codes)
    qann(**batch).last_hidden_state.square().sum().backward()
    assert float(qann.scale("embeddings.LayerNorm").grad.abs().max()) > 0
