"""Models for training: heads for the data, weights that arrive, ReLU and dropout that are where they are said to be."""

from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
import toys
import transformers
from torch import nn

from spikezip.data.tokens import positions
from spikezip.errors import ConfigError
from spikezip.training.models import find_tokenizer, make_model, set_dropout, with_relu
from spikezip.training.recipe import ModelSettings
from spikezip.training.typed import SettingError

DATA = toys.images(train=8, test=8)
SCRATCH = {**toys.TINY, "image_size": 8, "patch_size": 4}


def test_from_scratch() -> None:
    model = make_model(ModelSettings(type="vit", config=SCRATCH), DATA)
    assert isinstance(model, transformers.ViTForImageClassification)
    assert model.classifier.out_features == 4
    assert model.config.hidden_size == 16
    assert model.config.id2label == dict(enumerate(toys.CLASSES))
    text = make_model(ModelSettings(type="bert", config={**toys.TINY, "vocab_size": 9}), toys.texts(4, 4))
    assert isinstance(text, transformers.BertForSequenceClassification)
    assert text.config.label2id == {"red": 0, "green": 1, "blue": 2}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            ModelSettings(type="vit", config={"hiden_size": 16}),
            r"model\.config\.hiden_size: ViTConfig has no such setting",
        ),
        (ModelSettings(type="vti"), "model vti has no readable config"),
        (ModelSettings(path="no/such/folder/here"), "model no/such/folder/here has no readable config"),
        (ModelSettings(), "no model: name one"),
    ],
)
def test_what_cannot_be_made_is_named(settings: ModelSettings, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_model(settings, DATA)


def body(model: Any) -> dict[str, torch.Tensor]:
    prefix = model.base_model_prefix + "."
    return {name: value for name, value in model.state_dict().items() if name.startswith(prefix)}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_from_a_folder_with_the_same_classes(tmp_path: Path) -> None:
    stored = toys.vit(seed=5)
    stored.save_pretrained(tmp_path)
    model: Any = make_model(ModelSettings(path=str(tmp_path)), DATA)
    assert_equal(dict(model.state_dict()), dict(stored.state_dict()))
    assert not model.has_new_head


def test_from_a_folder_with_other_classes(tmp_path: Path) -> None:
    stored = toys.vit(seed=5, num_labels=7)
    stored.save_pretrained(tmp_path)
    model: Any = make_model(ModelSettings(path=str(tmp_path)), DATA)
    assert model.classifier.out_features == 4
    assert model.has_new_head
    assert_equal(body(model), body(stored))


def test_from_a_body_without_a_head(tmp_path: Path) -> None:
    stored = toys.vit(seed=5)
    stored.vit.save_pretrained(tmp_path)
    model: Any = make_model(ModelSettings(path=str(tmp_path)), DATA)
    assert model.has_new_head
    assert_equal(body(model), body(stored))


@pytest.mark.parametrize("change", [{"hidden_size": 32}, {"num_hidden_layers": 2}, {"image_size": 16}])
def test_a_body_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    toys.vit().save_pretrained(tmp_path)
    with pytest.raises(
        ConfigError, match=r"does not fit the settings under model\.config: \d+ tensors of its body, vit"
    ):
        make_model(ModelSettings(path=str(tmp_path), config=change), DATA)


def test_settings_of_the_config_arrive(tmp_path: Path) -> None:
    toys.vit(hidden_act="gelu").save_pretrained(tmp_path)
    model = make_model(ModelSettings(path=str(tmp_path), config={"hidden_act": "relu"}), DATA)
    assert isinstance(model.vit.layers[0].mlp.activation_fn, nn.ReLU)


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    toys.vit().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="cannot be loaded"):
        make_model(ModelSettings(path=str(tmp_path)), DATA)


def test_a_masked_autoencoder_becomes_a_vit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    decoder = {f"decoder_{key}": value for key, value in toys.TINY.items()}
    mae = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**SCRATCH, **decoder))
    for parameter in mae.parameters():
        nn.init.normal_(parameter)
    mae.save_pretrained(tmp_path)
    model: Any = make_model(ModelSettings(path=str(tmp_path)), DATA)
    assert type(model) is transformers.ViTForImageClassification
    assert model.has_new_head
    pixels = torch.randn(2, 3, 8, 8)
    mae.config.mask_ratio = 0.0
    mae.eval()
    with torch.no_grad():
        # Its encoder shuffles the tokens: with this noise it leaves them in order.
        expected = mae.vit(pixel_values=pixels, noise=torch.arange(4.0).expand(2, 4)).last_hidden_state
        found = model.eval().vit(pixel_values=pixels).last_hidden_state
    assert torch.allclose(found, expected, atol=1e-5)  # sdpa and eager add in different orders
    assert expected.abs().max() > 1


@pytest.mark.parametrize("name", tiny_models.HEADS)
def test_relu_and_nothing_else_changes(name: str, tmp_path: Path) -> None:
    model = tiny_models.make(name)
    state = torch.get_rng_state()
    changed = with_relu(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert type(changed) is type(model)
    assert_equal(dict(changed.state_dict()), dict(model.state_dict()))
    batch = tiny_models.inputs(model)
    with torch.no_grad():
        logits = changed.eval()(**batch).logits
        before = model(**batch).logits
    was_relu = "relu" in [getattr(model.config, k, "") for k in ("hidden_act", "activation", "activation_function")]
    assert torch.equal(logits, before) == was_relu
    changed.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(again(**batch).logits, logits)


@pytest.mark.parametrize("name", tiny_models.HEADS)
def test_dropout_is_set_everywhere(name: str) -> None:
    """Drop path of Swin and BEiT is another thing: it is off here."""
    model = tiny_models.make(name).train()
    for module in model.modules():
        if "DropPath" in type(module).__name__:
            module.drop_prob = 0.0
    batch = tiny_models.inputs(model)

    def logits() -> torch.Tensor:
        with torch.no_grad():
            return torch.as_tensor(model(**batch).logits)

    set_dropout(model, 0.0)
    still = logits()
    assert torch.equal(still, logits())
    set_dropout(model, None)
    assert torch.equal(still, logits())
    set_dropout(model, 0.5)
    assert not torch.equal(logits(), logits())
    assert all(module.p == 0.5 for module in model.modules() if isinstance(module, nn.Dropout))
    config = model.config.to_dict()
    keys = [k for k in config if ("dropout" in k or "pdrop" in k) and isinstance(config[k], float)]
    assert keys
    assert all(config[key] == 0.5 for key in keys)


def test_positions() -> None:
    assert positions(transformers.BertConfig(max_position_embeddings=32)) == 32
    assert positions(transformers.RobertaConfig(max_position_embeddings=514, pad_token_id=1)) == 512
    assert positions(transformers.XLMRobertaConfig(max_position_embeddings=514, pad_token_id=1)) == 512
    assert positions(transformers.DistilBertConfig(max_position_embeddings=20)) == 20
    assert positions(transformers.GPT2Config(n_positions=48)) == 48


def test_tokenizers_that_are_not_there(tmp_path: Path) -> None:
    for nothing in (None, ""):
        with pytest.raises(ConfigError, match="a text model made from scratch has no tokenizer"):
            find_tokenizer(nothing)
    toys.bert().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=f"no tokenizer found at {tmp_path}"):
        find_tokenizer(tmp_path)
    toys.tokenizer().save_pretrained(tmp_path)
    assert find_tokenizer(tmp_path)("red")["input_ids"] == [2, 5, 3]


def test_a_mimetic_start_looks_at_its_neighbours() -> None:
    torch.manual_seed(0)
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 4}
    plain, near = (
        make_model(ModelSettings(type="vit", config=config, initialization=start), DATA) for start in (None, "mimetic")
    )

    def nearness(model: Any) -> float:
        """How much of a patch's attention, in the first layer, goes to patches at most one away."""
        model.set_attn_implementation("eager")
        with torch.no_grad():
            weights = model.vit(torch.randn(4, 3, 32, 32), output_attentions=True).attentions[0].mean((0, 1))[1:, 1:]
        places = torch.stack(torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij"), -1).reshape(-1, 2)
        close = (places[:, None] - places[None]).abs().amax(-1) <= 1
        return float((weights * close).sum() / weights.sum())

    assert nearness(near) > 2 * nearness(plain)


def test_a_mimetic_start_is_for_vits() -> None:
    with pytest.raises(ConfigError, match="mimetic is for ViTs"):
        make_model(ModelSettings(type="swin", config={"image_size": 32}, initialization="mimetic"), DATA)
    with pytest.raises(SettingError, match="trained already"):
        ModelSettings(path="somewhere", initialization="mimetic")
