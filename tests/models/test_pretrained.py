"""Quantized and spiking networks as models of transformers."""

import copy
import inspect
import io
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers.utils import hub

from spikezip.engines.network import SpikingNetwork
from spikezip.errors import CheckpointError, ConfigError, InputError
from spikezip.models import huggingface
from spikezip.models.huggingface import convert_pretrained, model_output, quantize_pretrained
from spikezip.models.saved_config import load_pretrained, register
from spikezip.quant.calibration import calibrate
from spikezip.quant.network import QuantizedNetwork

BODY: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64
}  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "a", "mat", "dog", "ran", "big"]
TEXT = {**BODY, "vocab_size": len(WORDS), "pad_token_id": 0, "max_position_embeddings": 64}
SPECIAL = {"bos_token_id": 2, "eos_token_id": 3}
IDS = torch.tensor([[2, 5, 6, 7, 8, 3], [2, 11, 12, 3, 0, 0]])
MASK = (IDS != 0).long()
PIXELS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def networks(model: tf.PreTrainedModel, batch: dict[str, Any]) -> tuple[Any, Any]:
    """The quantized and the spiking network of a model in eval mode."""
    qann = quantize_pretrained(model.eval())
    calibrate(qann, qann.prepare(batch))
    return qann, convert_pretrained(qann)


def text_networks(kind: type[tf.PreTrainedModel], **settings: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = kind(kind.config_class(**{**TEXT, **settings}))
    return model, *networks(model, {"input_ids": IDS, "attention_mask": MASK})


def tokenizer(*names: str) -> tf.PreTrainedTokenizerFast:
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_input_names=list(names or ("input_ids", "token_type_ids", "attention_mask")),
    )  # fmt: skip


@pytest.fixture(scope="module")
def vit() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = tf.ViTForImageClassification(tf.ViTConfig(**BODY, image_size=32, patch_size=8, num_labels=5))
    return model, *networks(model, {"pixel_values": PIXELS})


def test_both_are_models_of_transformers_and_of_the_core(vit) -> None:
    model, qann, snn = vit
    assert isinstance(qann, tf.PreTrainedModel)
    assert isinstance(qann, QuantizedNetwork)
    assert isinstance(snn, tf.PreTrainedModel)
    assert isinstance(snn, SpikingNetwork)
    assert type(snn).__name__ == "ViTForImageClassification"
    assert inspect.signature(snn.forward) == inspect.signature(model.forward)
    assert snn.main_input_name == "pixel_values"
    assert set(model.state_dict()) <= set(qann.state_dict())
    assert not qann.training
    with pytest.raises(ConfigError, match="quantized already"):
        quantize_pretrained(qann)


def test_forward_gives_the_models_own_output_and_loss(vit) -> None:
    model, qann, snn = vit
    labels = torch.tensor([0, 1, 2])
    with torch.no_grad():
        expected = model(PIXELS, labels=labels)
    ours = [network(PIXELS, labels=labels) for network in (qann, snn)]
    for output in ours:
        assert type(output) is type(expected)
        assert output.loss == torch.nn.functional.cross_entropy(output.logits, labels)
        assert torch.allclose(output.loss, expected.loss, atol=0.1)
    assert torch.equal(ours[0].logits, ours[1].logits)
    assert torch.equal(snn(PIXELS, return_dict=False)[0], ours[1].logits)
    with pytest.raises(InputError, match="by name"):
        snn(PIXELS, labels)


def test_inputs_by_position_come_in_the_order_of_the_program() -> None:
    _, *networks = text_networks(tf.BertForSequenceClassification)
    for network in networks:
        assert torch.equal(network(IDS, MASK).logits, network(input_ids=IDS, attention_mask=MASK).logits)


def test_copies_pickles_state_and_devices(vit) -> None:
    for network in vit[1:]:
        expected = network(PIXELS).logits
        assert network.dtype == torch.float32
        assert network.device == torch.device("cpu")
        for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
            assert type(other) is type(network)
            assert torch.equal(other(PIXELS).logits, expected)
        changed = copy.deepcopy(network)
        for tensor in (*changed.parameters(), *changed.buffers()):
            tensor.data.zero_()
        assert torch.equal(network(PIXELS).logits, expected)
        changed.load_state_dict(network.state_dict())
        assert torch.equal(changed(PIXELS).logits, expected)
        assert changed.double().to("cpu").dtype == torch.float64
        with pytest.raises(ConfigError, match=r"call \.float\(\)"):
            changed.half()(PIXELS)
        torch.save(network, buffer := io.BytesIO())
        assert buffer.tell()


def test_image_pipeline(vit) -> None:
    from PIL import Image

    image = Image.new("RGB", (40, 30), (200, 20, 90))
    found = [
        tf.pipeline("image-classification", model=network, image_processor=_processor())(image) for network in vit[1:]
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 5


def _processor() -> Any:
    from transformers.models.vit import image_processing_pil_vit

    return image_processing_pil_vit.ViTImageProcessorPil(size={"height": 32, "width": 32})


@pytest.mark.parametrize(
    ("kind", "task", "text"),
    [
        (tf.BertForSequenceClassification, "text-classification", ["the cat", "a big dog ran"]),
        (tf.BertForTokenClassification, "token-classification", "the cat sat"),
        (tf.BertForMaskedLM, "fill-mask", "the [MASK] sat"),
        (tf.BertModel, "feature-extraction", "the cat"),
    ],
)
def test_text_pipelines_give_equal_answers(kind, task: str, text: Any) -> None:
    _, *pair = text_networks(kind)
    found = [tf.pipeline(task, model=network, tokenizer=tokenizer())(text) for network in pair]
    assert found[0] == found[1]


def test_losses_are_those_of_the_float_class() -> None:
    """The float model's loss from the same logits: its own function, called through its own class."""
    masked, qann, _ = text_networks(tf.BertForMaskedLM)
    labels = IDS.masked_fill(MASK == 0, -100)
    output = qann(IDS, attention_mask=MASK, labels=labels)
    assert torch.allclose(output.loss, masked.loss_function(output.logits, labels, len(WORDS)))
    tokens, qann, _ = text_networks(tf.BertForTokenClassification)
    output = qann(IDS, attention_mask=MASK, labels=labels % 2)
    assert torch.allclose(output.loss, tokens.loss_function(output.logits, labels % 2, tokens.config))
    answers, qann, _ = text_networks(tf.BertForQuestionAnswering)
    place = torch.tensor([1, 2])
    output = qann(IDS, attention_mask=MASK, start_positions=place, end_positions=place)
    assert torch.allclose(output.loss, answers.loss_function(output.start_logits, output.end_logits, place, place))
    _, qann, _ = text_networks(
        tf.BertForSequenceClassification, num_labels=3, problem_type="multi_label_classification"
    )
    wanted = torch.tensor([[1.0, 0, 1], [0, 0, 1]])
    output = qann(IDS, attention_mask=MASK, labels=wanted)
    assert torch.allclose(output.loss, torch.nn.functional.binary_cross_entropy_with_logits(output.logits, wanted))
    _, qann, _ = text_networks(tf.BertModel)
    with pytest.raises(InputError, match="loss of BertModel is not known"):
        qann(IDS, labels=wanted)


def test_training_goes_through_the_loss() -> None:
    _, qann, _ = text_networks(tf.BertForSequenceClassification)
    qann.train()
    qann(input_ids=IDS, attention_mask=MASK, labels=torch.tensor([0, 1])).loss.backward()
    assert qann.get_parameter("classifier.weight").grad.abs().sum() > 0


@pytest.fixture
def no_warning_of_the_cache():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="there is no cache yet")
        yield


LEFT = torch.tensor([[0, 0, 2, 5, 6], [2, 7, 8, 9, 10]])


@pytest.mark.usefixtures("no_warning_of_the_cache")
@pytest.mark.parametrize("settings", [{"do_sample": False}, {"do_sample": True, "top_k": 5}, {"num_beams": 3}])
def test_generation_gives_equal_tokens(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**TEXT, **SPECIAL, initializer_range=0.5, num_key_value_heads=2))
    batch = {"input_ids": LEFT, "attention_mask": (LEFT != 0).long()}
    found = []
    for network in networks(model, batch):
        torch.manual_seed(1)
        found.append(network.generate(**batch, max_new_tokens=4, **settings))
    assert torch.equal(*found)
    assert found[0].shape[1] > LEFT.shape[1]


@pytest.mark.usefixtures("no_warning_of_the_cache")
def test_padding_on_the_left_does_not_change_what_is_generated() -> None:
    torch.manual_seed(0)
    model = tf.GPT2LMHeadModel(
        tf.GPT2Config(n_embd=32, n_layer=1, n_head=4, n_positions=64, vocab_size=len(WORDS), pad_token_id=0, **SPECIAL)
    )
    _, snn = networks(model, {"input_ids": LEFT, "attention_mask": (LEFT != 0).long()})
    padded = snn.generate(input_ids=LEFT, attention_mask=(LEFT != 0).long(), max_new_tokens=4, do_sample=False)
    alone = snn.generate(input_ids=LEFT[:1, 2:], max_new_tokens=4, do_sample=False)
    assert padded[0, 5:].tolist()[: alone.shape[1] - 3] == alone[0, 3:].tolist()
    assert torch.allclose(snn(LEFT, labels=LEFT).loss, model.loss_function(snn(LEFT).logits, LEFT, len(WORDS)))


@pytest.mark.usefixtures("no_warning_of_the_cache")
def test_generation_with_an_encoder_and_loss_of_shifted_labels() -> None:
    torch.manual_seed(0)
    model = tf.T5ForConditionalGeneration(
        tf.T5Config(vocab_size=len(WORDS), d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, eos_token_id=3,
                    pad_token_id=0, decoder_start_token_id=0, initializer_factor=3.0)
    )  # fmt: skip
    labels = IDS[:, 1:5].contiguous()
    qann, snn = networks(model, {"input_ids": IDS, "attention_mask": MASK, "labels": labels})
    for settings in ({}, {"num_beams": 2}):
        found = [n.generate(input_ids=IDS, attention_mask=MASK, max_new_tokens=4, **settings) for n in (qann, snn)]
        assert torch.equal(*found)
    with torch.no_grad():
        expected = model(input_ids=IDS, attention_mask=MASK, labels=labels).loss
    assert torch.allclose(snn(input_ids=IDS, attention_mask=MASK, labels=labels).loss, expected, rtol=0.2)


def test_the_missing_cache_is_told_once() -> None:
    huggingface._warn_of_no_cache.cache_clear()
    with pytest.warns(UserWarning, match="no cache yet"):
        huggingface._warn_of_no_cache()
    huggingface._warn_of_no_cache()  # an error in this suite if it warned again


def test_only_output_classes_of_transformers_are_imported() -> None:
    values = {"logits": torch.zeros(1)}
    assert type(model_output("os.path.join", values)) is dict
    assert type(model_output("transformers.modeling_utils.PreTrainedModel", values)) is dict
    nested = model_output(
        "transformers.models.clip.modeling_clip.CLIPOutput", {"text_model_output": {"pooler_output": 1}}
    )
    assert type(nested.text_model_output).__name__ == "BaseModelOutputWithPooling"


# --- folders

ALONE = """
import sys, transformers
for folder in sys.argv[1:]:
    for name in ("AutoModelForImageClassification", "ViTForImageClassification", "ViTModel"):
        try:
            getattr(transformers, name).from_pretrained(folder)
        except Exception as error:
            print(name, type(error).__name__)
        else:
            print(name, "loaded")
"""


@pytest.fixture(scope="module")
def folders(vit, tmp_path_factory) -> list[Path]:
    found = []
    for network in vit[1:]:
        found.append(tmp_path_factory.mktemp(network.kind) / "network")
        network.save_pretrained(found[-1])
        _processor().save_pretrained(found[-1])
    return found


def test_transformers_alone_refuses_a_folder(folders: list[Path]) -> None:
    arguments = [sys.executable, "-W", "ignore", "-c", ALONE, *map(str, folders)]
    run = subprocess.run(arguments, capture_output=True, text=True, check=False)
    lines = run.stdout.strip().splitlines()
    assert [line.split()[1] for line in lines] == ["ValueError"] * 6, run.stdout + run.stderr


def test_a_folder_is_loaded_once_spikezip_is_there(vit, folders: list[Path]) -> None:
    register()
    register()
    for network, folder in zip(vit[1:], folders, strict=True):
        for loaded in (
            load_pretrained(folder),
            tf.AutoModelForImageClassification.from_pretrained(folder),
            tf.pipeline("image-classification", model=str(folder)).model,
        ):
            assert type(loaded) is type(network)
            assert loaded.config.to_dict() == network.config.to_dict()
            assert torch.equal(loaded(PIXELS).logits, network(PIXELS).logits)
        with pytest.raises(CheckpointError, match="AutoModelForMaskedLM is not for"):
            tf.AutoModelForMaskedLM.from_pretrained(folder)
        with pytest.raises(CheckpointError, match="from_config: a configuration holds no network of spikezip"):
            tf.AutoModelForImageClassification.from_config(tf.AutoConfig.from_pretrained(folder))
        with pytest.raises(ValueError, match="quant_method"):
            tf.ViTForImageClassification.from_pretrained(folder)


def test_push_to_hub_uploads_what_save_pretrained_writes(vit, monkeypatch: pytest.MonkeyPatch) -> None:
    class Card:
        def save(self, path: str) -> None:
            Path(path).write_text("a card")

    seen: list[str] = []
    api = SimpleNamespace(create_repo=lambda name, **_: SimpleNamespace(repo_id=name))
    monkeypatch.setattr(hub, "hf_api", lambda: api)
    monkeypatch.setattr(hub, "create_and_tag_model_card", lambda *_, **__: Card())
    monkeypatch.setattr(
        hub.PushToHubMixin, "_upload_modified_files", lambda _, f, *__, **___: seen.extend(os.listdir(f))
    )
    vit[2].push_to_hub("somebody/network")
    assert {"config.json", "program.json", "spikezip.json", "model.safetensors", "README.md"} <= set(seen)


def test_a_gathered_state_dict_is_what_is_saved(vit, tmp_path: Path) -> None:
    _, qann, _ = vit
    state = {name: x.clone() for name, x in qann.state_dict().items()}
    state["classifier.bias"] += 1.0
    qann.save_pretrained(tmp_path / "net", state_dict=state)
    back = load_pretrained(tmp_path / "net").state_dict()
    assert all(torch.equal(back[name], x) for name, x in state.items())
    with pytest.raises(ConfigError, match=r"holds no .*: it is not one of this network"):
        qann.save_pretrained(tmp_path / "other", state_dict={})


def test_a_network_of_experts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = tf.MixtralConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=24,
        vocab_size=40, num_local_experts=3, max_position_embeddings=32,
    )  # fmt: skip
    batch = {"input_ids": torch.randint(0, 40, (3, 7))}
    qann, snn = networks(tf.MixtralForCausalLM(config).eval(), batch)
    snn.save_pretrained(tmp_path)
    again = load_pretrained(tmp_path)
    assert torch.equal(again(**batch).logits, qann.eval()(**batch).logits)
