"""The public verbs as a PyTorch user meets them: modes, copies, devices, dtypes, stopping, output classes, errors."""

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput

import spikezip
from spikezip.engines import ENGINES
from spikezip.program.tree import locate, tensors_in

VIT, BERT = "ViTForImageClassification", "BertForSequenceClassification"


@pytest.fixture(scope="module")
def vit() -> tuple:
    model = tiny_models.make(VIT)
    batch = tiny_models.inputs(model)
    qann = spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(levels=16)), [batch], "quick").eval()
    return model, qann, spikezip.convert(qann), batch


def test_the_float_model_is_untouched(vit: tuple) -> None:
    model, qann, _, batch = vit
    fresh = tiny_models.make(VIT)
    assert [n for n, _ in model.named_modules()] == [n for n, _ in fresh.named_modules()]
    assert torch.equal(model(**batch).logits, fresh(**batch).logits)
    assert model.config._attn_implementation != "spikezip"
    assert set(fresh.state_dict()) <= set(qann.state_dict()), "weight names stay as Hugging Face has them"
    assert isinstance(qann, PreTrainedModel)
    assert type(qann).__name__ == type(model).__name__


def test_forward_is_the_models_own_output_at_equilibrium(vit: tuple) -> None:
    _, qann, snn, batch = vit
    labels = torch.tensor([0, 1, 2])
    expected = qann(**batch, labels=labels)
    found = snn(**batch, labels=labels)
    assert isinstance(found, ImageClassifierOutput)
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.loss, expected.loss)
    assert torch.equal(snn(batch["pixel_values"]).logits, expected.logits)
    with pytest.raises(
        spikezip.InputError, match="output_attentions=True: the network was captured without output_attentions"
    ):
        snn(**batch, output_attentions=True)


def test_pipelines_run_unchanged(vit: tuple) -> None:
    """A transformers pipeline takes the network as it takes the float model."""
    from transformers import pipeline

    model = tiny_models.make(BERT)
    batch = tiny_models.inputs(model)
    snn = spikezip.convert(spikezip.calibrate(spikezip.quantize(model), [batch]))
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[UNK]": 1, **{w: i + 5 for i, w in enumerate(["spikes", "converge", "to", "an", "answer"])}}
    raw = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]")
    classify = pipeline("text-classification", model=snn, tokenizer=tokenizer, device="cpu")
    assert classify("spikes converge to an answer")[0]["label"].startswith("LABEL_")


def test_run_has_the_shapes_it_says(vit: tuple) -> None:
    _, qann, snn, batch = vit
    run = spikezip.simulate(snn, batch, steps=64)
    assert run.logits_per_step.shape == (64, 3, 5)
    assert torch.equal(run.logits, run.logits_per_step[-1])
    assert torch.equal(run.logits, qann(**batch).logits)
    assert run.steps == 64
    assert run.computed_steps < 64, "equilibrium ends the work early"
    whole = spikezip.simulate(snn, batch, steps=64, stop_early=False)
    assert whole.computed_steps == 64
    assert torch.equal(whole.logits_per_step, run.logits_per_step)
    assert whole.t_eq == run.t_eq
    for site, counts in run.spike_counts.items():
        assert torch.equal(counts, whole.spike_counts[site])
        assert counts.shape == (64, 3)
    assert run.spikes_per_neuron == whole.spikes_per_neuron > 0


def test_t_eq_is_the_last_spike_and_none_before_it(vit: tuple) -> None:
    _, _, snn, batch = vit
    run = spikezip.simulate(snn, batch, "equilibrium")
    activity = sum(run.spike_counts.values())
    for i, t in enumerate(run.t_eq):
        assert activity[t - 1, i] > 0
        assert not activity[t:, i].any()
    assert run.steps == max(run.t_eq) + 1
    last = max(run.t_eq)
    # At its last spike nobody can know that it was the last; one silent step later everybody can.
    assert None in spikezip.simulate(snn, batch, last).t_eq
    assert spikezip.simulate(snn, batch, last + 1).t_eq == run.t_eq


def test_rate_coding_waits_for_the_whole_input(vit: tuple) -> None:
    _, qann, snn, batch = vit
    dark = {"pixel_values": torch.zeros_like(batch["pixel_values"])}
    run = spikezip.simulate(snn, dark, "equilibrium", coding="rate")
    assert run.steps >= 16, "a silent step during the ramp is no equilibrium"
    assert torch.equal(run.logits, qann(**dark).logits)


def test_graded_spikes_shorten_the_run(vit: tuple) -> None:
    _, qann, snn, batch = vit
    runs = [spikezip.simulate(snn, batch, "equilibrium", max_spike=m, record=["layernorm"]) for m in (1, 4, 1000)]
    assert runs[0].steps > runs[1].steps > runs[2].steps
    assert int(runs[0].trains["layernorm"].abs().max()) == 1
    assert 1 < int(runs[1].trains["layernorm"].abs().max()) <= 4
    for run in runs:
        assert torch.equal(run.logits, qann(**batch).logits)
    # Without a limit every stage holds its final code in the first step: the quantized network itself.
    assert runs[2].steps == 2


def test_train_mode_is_fake_quantization_with_gradients(vit: tuple) -> None:
    qann = copy.deepcopy(vit[1])
    batch = vit[3]
    qann.train()
    loss = qann(**batch, labels=torch.tensor([0, 1, 2])).loss
    loss.backward()
    assert all(qann.scale(name).grad is not None for name in qann.sites)
    weights = [p for n, p in qann.named_parameters() if "proj.weight" in n or "fc" in n]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in weights if p.ndim == 2)
    before = qann.eval()(**batch).logits
    with torch.no_grad():
        for p in qann.parameters():
            if p.grad is not None:
                p -= 0.01 * p.grad
    assert not torch.equal(qann(**batch).logits, before), "eval follows the weights"
    assert spikezip.verify(qann, spikezip.convert(qann), [batch]).exact


def test_lsq_initialises_once_and_remembers(vit: tuple) -> None:
    model, _, _, batch = vit
    qann = spikezip.quantize(model, spikezip.QuantConfig(levels=16)).train()
    qann(**batch)
    scales = {name: qann.scale(name).item() for name in qann.sites}
    other = spikezip.quantize(model, spikezip.QuantConfig(levels=16)).train()
    other.load_state_dict(qann.state_dict())
    other(pixel_values=100 * batch["pixel_values"])
    assert {name: other.scale(name).item() for name in other.sites} == scales


def test_the_snn_is_frozen_and_its_own_copy(vit: tuple) -> None:
    qann = copy.deepcopy(vit[1])
    batch = vit[3]
    snn = spikezip.convert(qann)
    before = snn(**batch).logits
    with torch.no_grad():
        for p in qann.parameters():
            p.add_(1.0)
    assert torch.equal(snn(**batch).logits, before)
    assert not any(p.requires_grad for p in snn.parameters())
    assert not snn.train().training


def test_state_dict_to_and_deepcopy_behave(vit: tuple) -> None:
    _, _, snn, batch = vit
    expected = snn(**batch).logits
    twin = copy.deepcopy(snn)
    with torch.no_grad():
        twin.get_buffer("layers.0.mlp.fc1.weight.grid.codes").zero_()
    assert not torch.equal(twin(**batch).logits, expected)
    twin.load_state_dict(snn.state_dict())
    assert torch.equal(twin(**batch).logits, expected)
    assert twin.to("cpu").get_buffer("layers.0.mlp.fc1.weight.grid.codes").dtype == torch.int8
    double = {k: v.double() for k, v in batch.items()}
    assert spikezip.simulate(copy.deepcopy(snn).double(), double, "equilibrium").settled


def test_levels_and_ranges_by_name_pattern(vit: tuple) -> None:
    model, _, _, batch = vit
    config = spikezip.QuantConfig(
        levels=8,
        sites={"*.attention.p": spikezip.SiteConfig(levels=64), "layers.1.*.q": spikezip.SiteConfig(lo=-3, hi=5)},
    )
    qann = spikezip.calibrate(spikezip.quantize(model, config), [batch])
    assert (qann.sites["layers.0.attention.p"].lo, qann.sites["layers.0.attention.p"].hi) == (0, 63)
    assert (qann.sites["layers.1.attention.q"].lo, qann.sites["layers.1.attention.q"].hi) == (-3, 5)
    assert qann.sites["layers.0.mlp.activation_fn"].lo == 0, "ReLU becomes the unsigned site"
    assert spikezip.verify(qann, spikezip.convert(qann), [batch]).exact


def bad_pixels(value: float) -> dict[str, torch.Tensor]:
    pixels = torch.zeros(2, 3, 32, 32)
    pixels[1, 0, 0, 0] = value
    return {"pixel_values": pixels}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (bad_pixels(float("nan")), "pixel_values holds values that are not finite"),
        (bad_pixels(float("inf")), "pixel_values holds values that are not finite"),
        ({"pixel_values": torch.zeros(0, 3, 32, 32)}, "empty"),
        ({"input_ids": torch.zeros(1, 3, dtype=torch.long)}, "the batch holds 'input_ids'"),
        ({"pixel_values": torch.zeros(3, 3, 32, 32), "bool_masked_pos": torch.zeros(2, 16)}, "bool_masked_pos"),
        ({"pixel_values": torch.zeros(3, 3, 32, 30)}, r"pixel_values has the shape \[3, 3, 32, 30\]"),
        ({}, "dict of model inputs"),
    ],
)
def test_bad_input_is_refused_by_name(vit: tuple, batch: dict, message: str) -> None:
    with pytest.raises(spikezip.InputError, match=message):
        spikezip.simulate(vit[2], batch)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps=0"),
        ({"steps": -1}, "steps=-1"),
        ({"steps": "forever"}, "equilibrium"),
        ({"engine": "quantum"}, "folded, spike"),
        ({"coding": "morse"}, "analog, rate"),
        ({"max_spike": 0}, "max_spike=0"),
        ({"chunk": 0}, "chunk=0"),
        ({"record": ["nowhere"]}, "'nowhere'"),
    ],
)
def test_bad_settings_are_refused_by_name(vit: tuple, settings: dict, message: str) -> None:
    with pytest.raises(spikezip.ConfigError, match=message):
        spikezip.simulate(vit[2], vit[3], **settings)


def test_uncalibrated_networks_say_so(vit: tuple) -> None:
    model, _, _, batch = vit
    qann = spikezip.quantize(model).eval()
    with pytest.raises(spikezip.CalibrationError, match="embeddings"):
        qann(**batch)
    with pytest.raises(spikezip.CalibrationError, match="22 of 22 sites"):
        spikezip.convert(qann)
    with pytest.raises(spikezip.InputError, match="at least one batch"):
        spikezip.calibrate(qann, [])


def test_wrong_things_in_the_wrong_verb(vit: tuple) -> None:
    model, qann, snn, batch = vit
    with pytest.raises(spikezip.ConfigError, match="quantized already"):
        spikezip.quantize(qann)
    with pytest.raises(spikezip.ConfigError, match="quantize returns"):
        spikezip.convert(model)
    with pytest.raises(spikezip.ConfigError, match="convert returns"):
        spikezip.simulate(qann, batch)
    with pytest.raises(spikezip.ConfigError, match="quantized network first"):
        spikezip.verify(snn, snn, [batch])
    with pytest.raises(spikezip.ConfigError, match="float16"):
        spikezip.quantize(copy.deepcopy(model).half())
    with pytest.raises(spikezip.ConfigError, match="example=batch"):
        spikezip.quantize(torch.nn.Linear(2, 2))
    with pytest.raises(spikezip.CoverageError, match="no product whose input varies"):
        spikezip.quantize(torch.nn.Linear(2, 2), example=torch.zeros(2, 2))
    with pytest.raises(spikezip.ConfigError, match=r"too large; normalise"):
        spikezip.simulate(snn, {"pixel_values": torch.full((1, 3, 32, 32), 1e9)})


def test_importing_is_light() -> None:
    """Beyond what transformers itself loads (its model base class brings Triton along where that is installed)."""
    code = "import sys, torch; from transformers import PreTrainedModel; before = set(sys.modules); import spikezip;"
    code += "new = {name.split('.')[0] for name in set(sys.modules) - before};"
    code += "print(*(new & {'triton', 'matplotlib', 'typer', 'rich', 'datasets'}), torch.cuda.is_initialized(),"
    code += "'spikezip.ops.neuron.triton' in sys.modules, 'spikezip.cli' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False", "False"]


def test_outputs_are_plain_tensors() -> None:
    """What a network returns can be pickled and copied without dragging the network along."""
    model = tiny_models.make("ViTModel")
    batch = tiny_models.inputs(model)
    qann = spikezip.calibrate(spikezip.quantize(model), [batch]).eval()
    with torch.no_grad():
        assert not qann(**batch).last_hidden_state.__dict__


def _in_place(network: Any, name: str) -> None:
    tensors_in(network)[name].neg_()


def _by_data(network: Any, name: str) -> None:
    tensor = tensors_in(network)[name]
    tensor.data = -tensor.data


def _by_numpy(network: Any, name: str) -> None:
    tensors_in(network)[name].detach().numpy()[:] *= -1


def _by_assignment(network: Any, name: str) -> None:
    module, leaf = locate(network, name)
    value = -getattr(module, leaf).detach()
    setattr(module, leaf, torch.nn.Parameter(value) if leaf in module._parameters else value)


def _by_state_dict(network: Any, name: str) -> None:
    state = network.state_dict()
    network.load_state_dict({**state, name: -state[name]})


@pytest.mark.parametrize("change", [_in_place, _by_data, _by_numpy, _by_assignment, _by_state_dict])
def test_what_was_changed_is_seen_by_the_next_run(vit: tuple, change: Any) -> None:
    _, qann, snn, batch = copy.deepcopy(vit[:3]) + vit[3:]
    before = {engine: spikezip.simulate(snn, batch, 9, engine).logits for engine in ENGINES}
    for name in ("vit.layers.0.mlp.fc1.weight", "vit.layers.1.attention.o_proj.bias"):
        with torch.no_grad():
            change(qann, name)
    edited = spikezip.convert(qann)
    with torch.no_grad():
        change(snn, "layers.0.mlp.fc1.weight.grid.codes")
        change(snn, "vit.layers.1.attention.o_proj.bias")
    for engine in ENGINES:
        now = spikezip.simulate(snn, batch, 9, engine).logits
        assert not torch.equal(now, before[engine])
        assert torch.equal(now, spikezip.simulate(edited, batch, 9, engine).logits)
    assert spikezip.verify(qann, snn, batch).exact


def test_weights_that_are_not_finite_are_refused(vit: tuple) -> None:
    for name, value in (("vit.layers.0.mlp.fc1.weight", float("nan")), ("vit.layernorm.weight", float("inf"))):
        qann = copy.deepcopy(vit[1])
        with torch.no_grad():
            qann.get_parameter(name).view(-1)[0] = value
        with pytest.raises(spikezip.ConfigError, match=r"weight.*not finite"):
            spikezip.convert(qann)
    model = tiny_models.make("ViTForImageClassification")
    with torch.no_grad():
        model.classifier.weight[0, 0] = float("nan")
    with pytest.raises(spikezip.ConfigError, match=r"'classifier\.weight' holds values that are not finite"):
        spikezip.quantize(model)


def test_a_mask_may_hold_infinities(tmp_path: Path) -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (torch.nn.Linear(8, 8) for _ in range(4))
            self.register_buffer("mask", torch.full((5, 5), float("-inf")).triu(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            p = (self.q(x) @ self.k(x).transpose(1, 2) + self.mask).softmax(-1)
            return self.o(p @ self.v(x))

    x = torch.randn(3, 5, 8)
    qann = spikezip.calibrate(spikezip.quantize(Attention(), example=x), x).eval()
    spikezip.save(spikezip.convert(qann), tmp_path / "snn")
    assert spikezip.verify(qann, spikezip.load(tmp_path / "snn"), x).exact


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(vit: tuple, dtype: torch.dtype) -> None:
    _, qann, snn, batch = vit
    with pytest.raises(spikezip.ConfigError, match=r"call \.float\(\)"):
        spikezip.simulate(copy.deepcopy(snn).to(dtype), batch)
    with pytest.raises(spikezip.ConfigError, match=r"call \.float\(\)"):
        copy.deepcopy(qann).to(dtype)(**batch)


@pytest.mark.parametrize("engine", ENGINES)
def test_surroundings_change_nothing(vit: tuple, engine: str) -> None:
    """Autocast, inference mode, another default dtype, other threads: the spikes are the same."""
    _, qann, snn, batch = vit
    expected = spikezip.simulate(snn, batch, 12, engine)

    def same(run: spikezip.Run) -> bool:
        counts = all(torch.equal(run.spike_counts[name], x) for name, x in expected.spike_counts.items())
        return counts and torch.equal(run.logits_per_step, expected.logits_per_step)

    answer = qann(**batch).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(spikezip.simulate(snn, batch, 12, engine))
        assert torch.equal(qann(**batch).logits, answer)
        assert spikezip.verify(qann, snn, batch, engine=engine).exact
    with torch.inference_mode():
        assert same(spikezip.simulate(snn, batch, 12, engine))
    torch.set_default_dtype(torch.float64)
    try:
        assert same(spikezip.simulate(snn, batch, 12, engine))
        assert spikezip.verify(qann, snn, batch, engine=engine).exact
    finally:
        torch.set_default_dtype(torch.float32)
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(lambda _: same(spikezip.simulate(snn, batch, 12, engine)), range(6)))


@pytest.mark.parametrize("name", ["ViTForImageClassification", "BertForSequenceClassification", "LlamaForCausalLM"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_networks_cast_to_float64_are_equal(name: str, per_channel: bool) -> None:
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)
    sites = {"*norm*": spikezip.SiteConfig(per_channel=per_channel)}
    config = spikezip.QuantConfig(levels=16, sites=sites if name.startswith(("ViT", "Llama")) else {})
    qann = spikezip.calibrate(spikezip.quantize(model, config), [batch]).eval()
    snn = spikezip.convert(qann)
    qann.double()
    snn.double()
    expected, found = qann.frozen().tensors, snn.frozen().tensors
    assert all(torch.equal(expected[key], tensor) for key, tensor in found.items())
    wide = {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}
    assert all(spikezip.verify(qann, snn, wide, engine=engine).exact for engine in ENGINES)


@pytest.mark.parametrize("kind", [1, 2])
def test_networks_can_be_pickled_and_copied(vit: tuple, kind: int) -> None:
    network, batch = vit[kind], vit[3]
    twin = pickle.loads(pickle.dumps(network))
    assert type(twin) is type(network)
    assert torch.equal(twin(**batch).logits, network(**batch).logits)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    images = torch.randn(2, 4)
    qann = spikezip.calibrate(spikezip.quantize(plain, example=images), images).eval()
    for one in (qann, spikezip.convert(qann)):
        assert torch.equal(pickle.loads(pickle.dumps(one))(images), one(images))
        assert torch.equal(copy.deepcopy(one)(images), one(images))


class _Affine(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * torch.relu(x) + 0.1


class _Names(torch.nn.Module):
    """A model that calls its tensors as our networks and modules call something else."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.sites, self.program = torch.nn.Linear(4, 8), _Affine(), torch.nn.Linear(8, 3)
        self.scale, self.keys = torch.nn.Parameter(torch.rand(4)), torch.nn.Parameter(torch.rand(3))
        self.register_buffer("offset", torch.arange(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale + self.offset.to(torch.float32)
        return self.program(self.sites(self.first(x))) + self.keys


def test_names_of_the_model_may_be_ours(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = _Names(), torch.randn(2, 5, 4)
    qann = spikezip.calibrate(spikezip.quantize(model, example=x), x)
    assert dict(model.named_parameters()).keys() <= dict(qann.named_parameters()).keys()
    with torch.no_grad():
        assert torch.equal(qann.train()(x), qann.eval()(x))
    snn = spikezip.convert(qann)
    assert "sites" in qann.sites
    assert torch.equal(snn.frozen().step_size("sites").view(-1), qann.scale("sites").detach())
    spikezip.save(snn, tmp_path / "snn")
    assert all(spikezip.verify(qann, spikezip.load(tmp_path / "snn"), x, engine=engine).exact for engine in ENGINES)
    other = copy.deepcopy(qann)
    other.load_state_dict(qann.state_dict())
    assert torch.equal(other(x), qann(x))
