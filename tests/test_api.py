"""The public verbs as a PyTorch user meets them: modes, copies, devices, dtypes, stopping, output classes, errors."""

import copy
import subprocess
import sys
import warnings

import pytest
import tiny_models
import torch
from transformers.modeling_outputs import ImageClassifierOutput

import spikezip

VIT, BERT = "ViTForImageClassification", "BertForSequenceClassification"


@pytest.fixture(scope="module")
def vit() -> tuple:
    model = tiny_models.make(VIT)
    batch = tiny_models.inputs(model)
    qann = spikezip.calibrate(spikezip.quantize(model, spikezip.QuantConfig(levels=16)), [batch]).eval()
    return model, qann, spikezip.convert(qann), batch


def test_the_float_model_is_untouched(vit: tuple) -> None:
    model, qann, _, batch = vit
    fresh = tiny_models.make(VIT)
    assert [n for n, _ in model.named_modules()] == [n for n, _ in fresh.named_modules()]
    assert torch.equal(model(**batch).logits, fresh(**batch).logits)
    assert model.config._attn_implementation != "spikezip"
    assert set(fresh.state_dict()) <= set(qann.state_dict()), "weight names stay as Hugging Face has them"
    assert isinstance(qann, type(model))


def test_forward_is_the_models_own_output_at_equilibrium(vit: tuple) -> None:
    _, qann, snn, batch = vit
    labels = torch.tensor([0, 1, 2])
    expected = qann(**batch, labels=labels)
    found = snn(**batch, labels=labels)
    assert isinstance(found, ImageClassifierOutput)
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.loss, expected.loss)
    assert torch.equal(snn(batch["pixel_values"]).logits, expected.logits)
    with_maps = snn(**batch, output_attentions=True, output_hidden_states=True)
    reference = qann(**batch, output_attentions=True, output_hidden_states=True)
    assert len(with_maps.attentions) == 2
    for a, b in zip(with_maps.attentions, reference.attentions, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(with_maps.hidden_states, reference.hidden_states, strict=True):
        assert torch.equal(a, b)


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
    assert all(site.scale.grad is not None for site in qann.sites.values())
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
    scales = {name: site.scale.item() for name, site in qann.sites.items()}
    other = spikezip.quantize(model, spikezip.QuantConfig(levels=16)).train()
    other.load_state_dict(qann.state_dict())
    other(pixel_values=100 * batch["pixel_values"])
    assert {name: site.scale.item() for name, site in other.sites.items()} == scales


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
        twin.get_submodule("vit.layers.0.mlp.fc1").codes.zero_()
        twin.get_submodule("vit.layers.0.mlp.fc1")._parts = None
    assert not torch.equal(twin(**batch).logits, expected)
    twin.load_state_dict(snn.state_dict())
    assert torch.equal(twin(**batch).logits, expected)
    assert twin.to("cpu").get_submodule("vit.layers.0.mlp.fc1").codes.dtype == torch.int8
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


def test_functions_that_are_not_spike_friendly_are_named() -> None:
    with pytest.warns(UserWarning, match="GELUActivation"):
        spikezip.quantize(tiny_models.make("DeiTForImageClassification"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spikezip.quantize(tiny_models.make(VIT))


def bad_pixels(value: float) -> dict[str, torch.Tensor]:
    pixels = torch.zeros(2, 3, 32, 32)
    pixels[1, 0, 0, 0] = value
    return {"pixel_values": pixels}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (bad_pixels(float("nan")), "pixel_values holds NaN"),
        (bad_pixels(float("inf")), "pixel_values holds NaN or infinite"),
        ({"pixel_values": torch.zeros(0, 3, 32, 32)}, "empty"),
        ({"input_ids": torch.zeros(1, 3, dtype=torch.long)}, "no 'pixel_values'"),
        ({"pixel_values": torch.zeros(3, 3, 32, 32), "bool_masked_pos": torch.zeros(2, 16)}, "2 rows"),
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
    with pytest.raises(spikezip.ConfigError, match="PreTrainedModel"):
        spikezip.quantize(torch.nn.Linear(2, 2))
    with pytest.raises(spikezip.ConfigError, match=r"too large; normalise"):
        spikezip.simulate(snn, {"pixel_values": torch.full((1, 3, 32, 32), 1e9)})


def test_importing_is_light() -> None:
    """Beyond what transformers itself loads (its model base class brings Triton along where that is installed)."""
    code = "import sys, torch; from transformers import PreTrainedModel; before = set(sys.modules); import spikezip;"
    code += "new = {name.split('.')[0] for name in set(sys.modules) - before};"
    code += "print(*(new & {'triton', 'matplotlib', 'typer', 'rich', 'datasets'}), torch.cuda.is_initialized(),"
    code += "'spikezip.ops.neuron.triton' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]


def test_outputs_are_plain_tensors() -> None:
    """What a network returns can be pickled and copied without dragging the network along."""
    model = tiny_models.make("ViTModel")
    batch = tiny_models.inputs(model)
    qann = spikezip.calibrate(spikezip.quantize(model), [batch]).eval()
    with torch.no_grad():
        assert not qann(**batch).last_hidden_state.__dict__


def test_values_changed_in_place_are_read_anew() -> None:
    """A product takes a site's codes as kept only while the values are what the site returned."""
    neuron = spikezip.spiking.Neuron("site", torch.tensor(0.5), lo=-4, hi=3)
    values = neuron(torch.tensor([1.0, -1.0]))
    assert torch.equal(neuron.read(values), torch.tensor([2.0, -2.0]))
    values += 0.5
    assert torch.equal(neuron.read(values), torch.tensor([3.0, -1.0]))
    assert torch.equal(neuron.read(values[1:]), torch.tensor([-1.0]))
