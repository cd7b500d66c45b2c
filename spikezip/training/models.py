"""Float models for training: loaded with a head for the data, made from scratch, given ReLU, dropout or none."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from spikezip.data.base import TEXT, Data
from spikezip.data.pixels import Pixels
from spikezip.errors import ConfigError
from spikezip.files import MANIFEST
from spikezip.models.saved_config import load_pretrained
from spikezip.program.dropout import with_dropout
from spikezip.quant.network import QuantizedNetwork
from spikezip.training.mimetic import initialize_mimetic
from spikezip.training.recipe import ModelSettings

# How the architectures call the activation of their MLP, and their dropout probabilities.
ACTIVATION_KEYS = ("hidden_act", "activation", "activation_function")
DROPOUT_KEYS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "attention_dropout",
    "dropout",
    "seq_classif_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "summary_first_dropout",
    "summary_last_dropout",
    "qa_dropout",
)
ATTENTION_DROPOUT_KEYS = ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop")
# Pretrained as one type, used as another: masked autoencoders are a ViT with a decoder that is thrown away.
RELATED = {"vit_mae": "vit"}
PREPROCESSOR = "preprocessor_config.json"


def make_model(settings: ModelSettings, data: Data) -> PreTrainedModel:
    """The model of a recipe, with an output per class of the data; a folder may also hold a quantized network."""
    settings.check_known()
    if settings.path is not None and Path(settings.path, MANIFEST).is_file():
        return _quantized(settings.path, settings.config, data)
    auto = AutoModelForSequenceClassification if data.kind == TEXT else AutoModelForImageClassification
    labels = {
        "num_labels": len(data.classes),
        "id2label": dict(enumerate(data.classes)),
        "label2id": {name: i for i, name in enumerate(data.classes)},
    }
    if settings.path is None:
        model = auto.from_config(_config(settings, labels))
        if settings.initialization == "mimetic":
            initialize_mimetic(model)
        return model
    config = _config(settings, labels)
    try:
        model, loading = auto.from_pretrained(
            settings.path,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {settings.path} cannot be loaded: {str(error).splitlines()[0]}") from error
    # A head of another size is expected. A body that does not fit would train from random weights without a word.
    body = model.base_model_prefix + "."
    missing = sorted(loading["missing_keys"])
    other_size = sorted(key for key, *_ in loading["mismatched_keys"])
    model.has_new_head = any(not key.startswith(body) for key in (*missing, *other_size))
    odd = [key for key in other_size if key.startswith(body)]
    odd += [key for key in missing if key.startswith(body) and "pooler" not in key]
    if odd:
        raise ConfigError(
            f"model {settings.path} does not fit the settings under model.config: {len(odd)} tensors of its body, "
            f"{odd[0]} first, would start from random values"
        )
    return model


def _quantized(path: str, config: Mapping[str, Any], data: Data) -> Any:
    model = load_pretrained(path)
    if model.kind != "qann":
        raise ConfigError(f"{path} holds a spiking network; start from the quantized one, which a run leaves in qann/")
    if config:
        raise ConfigError(f"model.config.{next(iter(config))}: {path} is quantized already, its settings stay")
    if model.config.num_labels != len(data.classes):
        raise ConfigError(
            f"{path} is quantized already and has {model.config.num_labels} outputs, but {data.name} has "
            f"{len(data.classes)} classes; start from a float model"
        )
    return model


def _config(settings: ModelSettings, labels: dict[str, Any]) -> Any:
    try:
        if settings.path is None:
            known = AutoConfig.for_model(settings.type)
        else:
            known = AutoConfig.from_pretrained(settings.path)
    except (OSError, ValueError, KeyError) as error:
        remedy = "; --set model=FOLDER names a folder that holds it" if settings.path else ""
        raise ConfigError(
            f"model {settings.path or settings.type} has no readable config: {str(error).splitlines()[0]}{remedy}"
        ) from error
    unknown = [key for key in settings.config if not hasattr(known, key)]
    if unknown:
        raise ConfigError(f"model.config.{unknown[0]}: {type(known).__name__} has no such setting")
    # What a config derives from its settings (Swin's stages from its depths) follows them, if nobody says otherwise.
    described = {**(known.to_dict() if settings.path is not None else {}), **settings.config, **labels}
    kind = RELATED.get(known.model_type, known.model_type)
    described.pop("model_type", None)
    return AutoConfig.for_model(kind, **described)


def with_relu(model: PreTrainedModel) -> PreTrainedModel:
    """The model with ReLU for its activation, weights as they were. The config says so, so that it also loads so.

    Example:
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> with_relu(transformers.ViTModel(vit)).config.hidden_act
        'relu'
    """
    return rebuilt(model, dict.fromkeys(ACTIVATION_KEYS, "relu"), "activation")


def set_dropout(model: Any, probability: float | None) -> None:
    """Give a float or quantized model this dropout probability everywhere; None leaves it as it is.

    Example:
        >>> bert = transformers.BertModel(transformers.BertConfig(hidden_size=8, num_hidden_layers=1,
        ...     num_attention_heads=1, intermediate_size=8))
        >>> set_dropout(bert, 0.0)
        >>> bert.config.hidden_dropout_prob, bert.embeddings.dropout.p
        (0.0, 0.0)
    """
    if probability is None:
        return
    if isinstance(model, QuantizedNetwork):
        model.program = with_dropout(model.program, probability)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability
        for name in ("dropout_prob", "attention_dropout", "dropout"):  # what attentions hand to their function
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, probability)
    for key in DROPOUT_KEYS:
        if isinstance(getattr(model.config, key, None), (int, float)):
            setattr(model.config, key, probability)


def restore_attention_dropout(qann: Any) -> None:
    """Give the dropout of attention the probability that the config names: captured in `eval()` it is 0."""
    named = (getattr(qann.config, key, None) for key in ATTENTION_DROPOUT_KEYS)
    probability = next((p for p in named if isinstance(p, (int, float))), 0.0)
    qann.program = with_dropout(qann.program, float(probability), attention=True)


def rebuilt(model: PreTrainedModel, settings: dict[str, Any], what: str) -> PreTrainedModel:
    """A model of the same class with some of the config's settings changed, those that it has, and the same weights."""
    known = {key: value for key, value in settings.items() if hasattr(model.config, key)}
    if not known:
        raise ConfigError(f"{type(model).__name__}: its config names no {what}; known names: {', '.join(settings)}")
    config = type(model.config).from_dict({**model.config.to_dict(), **known})
    with torch.random.fork_rng(devices=[]):  # weights are replaced at once: random numbers stay where they were
        new: Any = type(model)(config)
    new.load_state_dict(model.state_dict())
    return new.to(model.device, next(model.parameters()).dtype)


def find_tokenizer(path: str | Path | None) -> Any:
    """The tokenizer that lies beside a model."""
    if not path:
        raise ConfigError("a text model made from scratch has no tokenizer; start from a model, or pass tokenizer=")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no tokenizer found at {path}: {str(error).splitlines()[0]}") from error
    # Without its files transformers makes one up, with a vocabulary of special tokens only.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ConfigError(f"no tokenizer found at {path}: its files (tokenizer.json, vocab.txt …) belong there too")
    return tokenizer


def find_pixels(path: str | Path | None) -> Pixels | None:
    """How a pretrained network wants its pixels, where a preprocessor_config.json beside it says so."""
    if path is None:
        return None
    file = Path(path, PREPROCESSOR)
    if not Path(path).exists():
        try:
            file = Path(huggingface_hub.hf_hub_download(str(path), PREPROCESSOR))
        except (OSError, ValueError):  # not there, no access, no connection, no such name
            return None
    return Pixels.from_json(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None
