"""Tiny random models of every architecture, and inputs for them."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf
from torch import Tensor

VISION: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
}
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
    "num_labels": 3,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SWIN: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "num_labels": 5,
}
DISTIL: dict[str, Any] = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "vocab_size": 99, "num_labels": 3}
GPT2: dict[str, Any] = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "vocab_size": 99,
    "n_positions": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA: dict[str, Any] = {**TEXT, "num_key_value_heads": 1}

# Name → a function that makes the model. Names of classes, so that a failure says what failed.
HEADS: dict[str, Callable[[], Any]] = {
    "ViTForImageClassification": lambda: tf.ViTForImageClassification(tf.ViTConfig(**VISION, hidden_act="relu")),
    "DeiTForImageClassification": lambda: tf.DeiTForImageClassification(tf.DeiTConfig(**VISION)),
    "Dinov2ForImageClassification": lambda: tf.Dinov2ForImageClassification(tf.Dinov2Config(**VISION)),
    "BeitForImageClassification": lambda: tf.BeitForImageClassification(
        tf.BeitConfig(**VISION, use_relative_position_bias=True, layer_scale_init_value=0.5)
    ),
    "SwinForImageClassification": lambda: tf.SwinForImageClassification(tf.SwinConfig(**SWIN)),
    "BertForSequenceClassification": lambda: tf.BertForSequenceClassification(tf.BertConfig(**TEXT)),
    "RobertaForSequenceClassification": lambda: tf.RobertaForSequenceClassification(
        tf.RobertaConfig(**{**TEXT, "pad_token_id": 1})
    ),
    "XLMRobertaForSequenceClassification": lambda: tf.XLMRobertaForSequenceClassification(
        tf.XLMRobertaConfig(**{**TEXT, "pad_token_id": 1}, hidden_act="relu")
    ),
    "DistilBertForSequenceClassification": lambda: tf.DistilBertForSequenceClassification(
        tf.DistilBertConfig(**DISTIL)
    ),
    "ElectraForSequenceClassification": lambda: tf.ElectraForSequenceClassification(
        tf.ElectraConfig(embedding_size=16, **TEXT)
    ),
    "GPT2LMHeadModel": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**GPT2)),
    "LlamaForCausalLM": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMA)),
}
BACKBONES: dict[str, Callable[[], Any]] = {
    "ViTModel": lambda: tf.ViTModel(tf.ViTConfig(**VISION)),
    "DeiTModel": lambda: tf.DeiTModel(tf.DeiTConfig(**VISION, hidden_act="relu")),
    "DeiTForImageClassificationWithTeacher": lambda: tf.DeiTForImageClassificationWithTeacher(tf.DeiTConfig(**VISION)),
    "Dinov2Model": lambda: tf.Dinov2Model(tf.Dinov2Config(**VISION)),
    "BeitModel": lambda: tf.BeitModel(
        tf.BeitConfig(**VISION, use_shared_relative_position_bias=True, use_mean_pooling=False)
    ),
    "SwinModel": lambda: tf.SwinModel(tf.SwinConfig(**SWIN)),
    "BertModel": lambda: tf.BertModel(tf.BertConfig(**TEXT)),
    "BertForMaskedLM": lambda: tf.BertForMaskedLM(tf.BertConfig(**TEXT)),
    "BertForTokenClassification": lambda: tf.BertForTokenClassification(tf.BertConfig(**TEXT)),
    "BertForQuestionAnswering": lambda: tf.BertForQuestionAnswering(tf.BertConfig(**{**TEXT, "num_labels": 2})),
    "RobertaModel": lambda: tf.RobertaModel(tf.RobertaConfig(**{**TEXT, "pad_token_id": 1}), add_pooling_layer=False),
    "RobertaForMaskedLM": lambda: tf.RobertaForMaskedLM(tf.RobertaConfig(**{**TEXT, "pad_token_id": 1})),
    "XLMRobertaModel": lambda: tf.XLMRobertaModel(tf.XLMRobertaConfig(**{**TEXT, "pad_token_id": 1})),
    "DistilBertModel": lambda: tf.DistilBertModel(tf.DistilBertConfig(**DISTIL)),
    "ElectraModel": lambda: tf.ElectraModel(tf.ElectraConfig(embedding_size=32, **TEXT)),
    "GPT2Model": lambda: tf.GPT2Model(tf.GPT2Config(**GPT2)),
    "GPT2ForSequenceClassification": lambda: tf.GPT2ForSequenceClassification(tf.GPT2Config(**GPT2, num_labels=3)),
    "LlamaModel": lambda: tf.LlamaModel(tf.LlamaConfig(**LLAMA)),
    "LlamaForSequenceClassification": lambda: tf.LlamaForSequenceClassification(tf.LlamaConfig(**LLAMA)),
}
ALL = {**HEADS, **BACKBONES}

_SHARPENED = ("q_proj", "k_proj", "query", "key", "q_lin", "k_lin", "c_attn")


def make(name: str, seed: int = 0) -> Any:
    """A model with sharpened attention and spread-out biases, so that it takes its time to settle."""
    torch.manual_seed(seed)
    model = ALL[name]().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if any(f"{part}.weight" in key for part in _SHARPENED):
                parameter.mul_(30)
            elif key.endswith("bias"):
                parameter.normal_(std=0.1)
            elif "position_bias_table" in key:
                parameter.normal_()
    return model


def inputs(model: Any, size: int = 3, seed: int = 7, tokens: int = 9) -> dict[str, Tensor]:
    """A batch: noise images, or sentences of unequal length with padding on the right."""
    generator = torch.Generator().manual_seed(seed)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(3, 3, 32, 32, generator=generator)[:size]}
    ids = torch.randint(5, 99, (3, tokens), generator=generator)
    mask = torch.ones_like(ids)
    for row, length in enumerate((tokens, tokens - 4, tokens - 1)):
        mask[row, length:] = 0
        ids[row, length:] = model.config.pad_token_id
    return {"input_ids": ids[:size], "attention_mask": mask[:size]}
