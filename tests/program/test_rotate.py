"""Rotated channels: the float function stays, engines agree, and what is saved computes the same."""

from pathlib import Path

import pytest
import torch
import transformers as tf
from captured import assert_equal_runs, trains
from hypothesis import given, settings
from hypothesis import strategies as st
from test_numpy_snn import as_numpy, assert_same, numpy_snn
from torch import Tensor, nn

import spikezip
from spikezip.engines.quantized import quantized
from spikezip.ops.hadamard import compiled, hadamard, reference
from spikezip.program.batch import sizes_of
from spikezip.program.nodes import Function, Matmul
from spikezip.program.rotate import HADAMARD, Rotation, apart, can_part, can_rotate, can_rotate_together
from spikezip.quant.network import QuantizedNetwork
from spikezip.quant.plain import evaluate_plain

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}
TEXT = {"vocab_size": 50, "max_position_embeddings": 20}


def network(name: str, **settings: object) -> tuple[QuantizedNetwork, dict[str, Tensor]]:
    """A quantized network whose codes are not chosen yet, and a batch."""
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (3, 7))
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, 4:] = 0
    batch = {"input_ids": ids, "attention_mask": mask}
    if name == "vit":
        config = tf.ViTConfig(**SMALL, image_size=32, patch_size=16, num_labels=4)
        model, batch = tf.ViTForImageClassification(config), {"pixel_values": torch.randn(3, 3, 32, 32)}
    elif name == "bert":
        model = tf.BertForSequenceClassification(tf.BertConfig(**SMALL, **TEXT))
    elif name == "llama":
        config = tf.LlamaConfig(**SMALL, **TEXT, num_key_value_heads=1, pad_token_id=0, tie_word_embeddings=True)
        model = tf.LlamaForCausalLM(config)
    elif name == "gpt2":
        model = tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=50, n_positions=20))
    else:
        model, batch = nn.TransformerEncoderLayer(64, 2, 96, activation="gelu"), {"src": torch.randn(7, 3, 64)}
    with torch.no_grad():
        for p in model.parameters():  # sharper attention and larger differences between channels than of new weights
            p.mul_(2).mul_(torch.rand(p.shape[:1])[(...,) + (None,) * (p.ndim - 1)] * 3)
    config = spikezip.QuantConfig(placement="products", **settings)
    qann = spikezip.quantize(model, config, example=batch, batch_dim=1 if name == "layer" else 0)
    return qann.eval(), qann.prepare(batch)


def rotate_all(qann: QuantizedNetwork, batch: dict[str, Tensor]) -> dict[str, Rotation]:
    """Rotate whatever can be, with some channels apart."""
    folding, found = can_rotate(qann.program), dict[str, Rotation]()
    for one, other, block in can_rotate_together(qann.program, sizes_of(qann.program, batch)):
        found |= {one: Rotation(block), other: Rotation(block, arrives=other in folding)}
    for name, block in folding.items():
        found.setdefault(name, Rotation(block, (1, 5, 11) if can_part(qann.program, name) else ()))
    qann.rotate(found)
    return found


def float_outputs(qann: QuantizedNetwork, batch: dict[str, Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return list(evaluate_plain(qann.program, qann.tensors(), batch).values())


@pytest.mark.parametrize("bits", [8, None])
@pytest.mark.parametrize("name", ["vit", "bert", "llama", "gpt2", "layer"])
def test_the_float_function_stays(name: str, bits: int | None) -> None:
    qann, batch = network(name, weight_bits=bits)
    before = float_outputs(qann, batch)
    rotations = rotate_all(qann, batch)
    assert any(rotation.apart for rotation in rotations.values())
    for one, other in zip(float_outputs(qann, batch), before, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))


def test_all_of_a_decoder_is_rotated() -> None:
    """Norms, q and k, v and o, what enters the MLP's second product, and the head; v in the weights before it."""
    qann, batch = network("llama")
    layers = [f"layers.{i}" for i in range(2)]
    parts = "input_layernorm self_attn.q self_attn.k self_attn.v self_attn.o post_attention_layernorm mlp.down_proj.in"
    expected = {f"{layer}.{part}" for layer in layers for part in parts.split()} | {"lm_head.in"}
    assert set(rotate_all(qann, batch)) == expected
    program = qann.program
    moving = [n for n in program.nodes if isinstance(n, Function) and n.op == HADAMARD and n.name in program.varying]
    assert not any(".self_attn.v." in node.name or ".self_attn.o." in node.name for node in moving)
    scores = [n for n in program.products if isinstance(n, Matmul) and n.scaling != 1]
    assert [round(1 / n.scaling**2) for n in scores] == [32**3, 32**3]  # 1/√32, and 1/32 for the rotation


@pytest.mark.parametrize("name", ["vit", "bert", "llama", "layer"])
def test_engines_agree(name: str) -> None:
    qann, batch = network(name, levels=16)
    rotate_all(qann, batch)
    spikezip.calibrate(qann, batch, "quick")
    frozen = qann.frozen()
    _, codes = quantized(frozen, batch)
    judge = trains(frozen, batch, "spike", steps="equilibrium")
    assert judge.settled
    assert all(torch.equal(judge.tracers[site].to(codes[site].dtype), codes[site]) for site in codes)
    for engine in ("folded", "event"):
        assert_equal_runs(trains(frozen, batch, engine, steps="equilibrium", chunk=5), judge)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_what_is_saved_computes_the_same(name: str, tmp_path: Path) -> None:
    """And so does the network in NumPy alone."""
    qann, batch = network(name, levels=16)
    rotate_all(qann, batch)
    snn = spikezip.convert(spikezip.calibrate(qann, batch, "quick"))
    spikezip.save(qann, tmp_path / "qann")
    spikezip.save(snn, tmp_path / "snn")
    output, codes = quantized(qann.frozen(), batch)
    for folder in ("qann", "snn"):
        found, found_codes = quantized(spikezip.load(tmp_path / folder).frozen(), batch)
        assert all(torch.equal(found_codes[site], codes[site]) for site in codes)
    read = numpy_snn.read_network(tmp_path / "snn")
    found, found_codes = numpy_snn.quantized(read, as_numpy(batch))
    assert_same(found_codes, codes)
    assert_same(found, output)


def test_training_computes_what_is_frozen() -> None:
    """With gradients to the weights as the float model has them."""
    qann, batch = network("llama", levels=16)
    rotate_all(qann, batch)
    spikezip.calibrate(qann, batch, "quick")
    trained = qann.train()(**batch)
    frozen = qann.eval()(**batch)
    trained, frozen = (x["logits"] if isinstance(x, dict) else x.logits for x in (trained, frozen))
    assert torch.equal(trained, frozen)
    trained.square().mean().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in qann.parameters())


def test_calibration_rotates_what_is_better_rotated() -> None:
    """Values with long tails, and a channel a hundred times as large as the others."""
    torch.manual_seed(0)
    x = torch.randn(512, 16)

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(16, 128), nn.Linear(16, 128), nn.Linear(128, 16)
            with torch.no_grad():
                self.up.weight[7] *= 100
                self.down.weight[:, 7] /= 100

        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.gate(x) * self.up(x))

    model = Gated()
    errors = {}
    for rotate in (True, False):
        config = spikezip.QuantConfig(levels=32, placement="products", rotate=rotate)
        qann = spikezip.calibrate(spikezip.quantize(model, config, example=x), x).eval()
        found = [n for n in qann.program.nodes if isinstance(n, Function) and n.op == HADAMARD]
        assert bool(found) == rotate
        assert (apart("down.in") in qann.sites) == rotate
        with torch.no_grad():
            errors[rotate] = float((qann(x) - model(x)).square().mean())
        assert spikezip.verify(qann, spikezip.convert(qann), x[:64]).exact
    assert errors[True] < 0.5 * errors[False]


@pytest.mark.parametrize("attention", ["exponentials", "probabilities"])
def test_values_of_attention_are_rotated_where_heads_stay_whole(attention: str) -> None:
    """Behind probabilities the site stands before heads are put side by side: its weights do not see its channels."""
    qann, batch = network("vit", attention=attention)
    pairs = {one.rpartition(".")[2] for one, _, _ in can_rotate_together(qann.program, sizes_of(qann.program, batch))}
    assert pairs == ({"q", "v"} if attention == "exponentials" else {"q"})


@pytest.mark.parametrize("bits", [8, None])
def test_a_head_that_shares_an_embedding_on_a_grid_stays(bits: int | None) -> None:
    """Rotated, its weights would lie on a second grid, and the table would be stored twice."""
    qann, _ = network("llama", embedding_bits=bits)
    assert ("lm_head.in" in can_rotate(qann.program)) == (bits is None)


def test_another_calibration_keeps_rotations() -> None:
    qann, batch = network("llama", levels=16)
    rotate_all(qann, batch)
    before = [node.name for node in qann.program.nodes if node.kind != "grid"]
    spikezip.calibrate(qann, batch)
    assert [node.name for node in qann.program.nodes if node.kind != "grid"] == before


def test_progress_counts_all_that_is_done() -> None:
    qann, batch = network("llama", levels=16)
    seen: list[tuple[int, int]] = []
    spikezip.calibrate(qann, batch, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    assert seen[-1][0] == seen[-1][1]


def test_what_the_config_sets_is_not_rotated() -> None:
    x = torch.randn(64, 16)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    sites = {"2.in": spikezip.SiteConfig(signed=True), "4.in": spikezip.SiteConfig(per_channel=True)}
    config = spikezip.QuantConfig(placement="products", sites=sites)
    qann = spikezip.calibrate(spikezip.quantize(model, config, example=x), x)
    assert not any(isinstance(n, Function) and n.op == HADAMARD for n in qann.program.nodes)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 6), st.integers(0, 5), st.sampled_from([torch.float32, torch.float64]), st.data()
)
def test_loops_have_the_bits_of_the_reference(
    rows: int, blocks: int, power: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    channels = blocks << power
    skip = data.draw(st.lists(st.integers(0, channels - 1), max_size=3, unique=True))
    x = torch.randn(rows, channels, generator=torch.Generator().manual_seed(rows)).to(dtype) * 10
    expected = reference.hadamard(x, 1 << power, skip)
    assert torch.equal(compiled.hadamard(x, 1 << power, skip), expected)
    assert torch.equal(hadamard(x.t().contiguous().t(), 1 << power, skip), expected)
    assert torch.equal(hadamard(x[:1], 1 << power, skip), expected[:1])


def test_it_is_a_rotation_times_the_root_of_the_block() -> None:
    x, y = torch.randn(2, 5, 192, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for block in (1, 2, 64):
        found = hadamard(x, block) @ hadamard(y, block).T / block
        assert torch.allclose(found, x @ y.T, rtol=1e-12, atol=1e-12)
    kept = [c for c in range(192) if c not in (3, 100)]
    found = hadamard(x, 64, (3, 100)) @ hadamard(y, 64, (3, 100)).T / 64
    assert torch.allclose(found, x[:, kept] @ y[:, kept].T, rtol=1e-12, atol=1e-12)


def test_gradients_go_through_it() -> None:
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: hadamard(x, 4, (2,)), x)
