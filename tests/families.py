"""Tiny random networks of many families, for the tests of the converter that is built on torch.export."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
import transformers as tf
from torch import Tensor, nn

Batch = dict[str, Tensor]
NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
TOKENS = 9
VOCABULARY = 99


@dataclass(frozen=True)
class Family:
    """How to make a network, and how to make a batch of three samples for it (keyword arguments of forward)."""

    make: Callable[[], nn.Module]
    batch: Callable[[int], Batch]


def build(name: str) -> nn.Module:
    """The network of that name, the same on every call: in eval mode, without cache, with sharpened weights."""
    torch.manual_seed(0)
    family = {**FAMILIES, **UNEXPORTABLE}[name]
    model = family.make().float().eval()
    for module in model.modules():  # parts have configurations of their own (encoder and decoder of T5)
        _without_cache(getattr(module, "config", None))
    _sharpen(model)
    return model


def _without_cache(config: Any) -> None:
    """Switches the cache off, in the configurations of the parts (text, decoder) too."""
    if hasattr(config, "use_cache"):
        config.use_cache = False
    for part in getattr(config, "sub_configs", {}):
        _without_cache(getattr(config, part, None))


@torch.no_grad()
def _sharpen(model: nn.Module) -> None:
    """Gives random values to all that starts small or constant: uniform attention would hide most mistakes."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            size = parameter.square().mean().sqrt()
            if isinstance(module, NORMS) and name == "weight":
                parameter.normal_(mean=1.0, std=0.1)
            elif parameter.dim() >= 2 and ("weight" in name or size < 0.1):
                parameter.normal_(std=1.3 * _fan_in(module, parameter) ** -0.5)
            elif "bias" in name and parameter.dim() == 1:
                parameter.normal_(std=0.1)
            elif parameter.numel() > 1 and (parameter == 1).all():  # norms that are not of torch
                parameter.normal_(mean=1.0, std=0.1)
            elif parameter.numel() > 1 and (parameter == parameter.flatten()[0]).all():  # layer scales, class tokens
                parameter.normal_(std=0.5)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.5, 1.5)


def _fan_in(module: nn.Module, weight: Tensor) -> int:
    """Over how many inputs the module sums for an output: weights are [out, in], except for those named here."""
    if isinstance(module, nn.modules.conv._ConvTransposeNd) or type(module).__name__ == "Conv1D":  # [in, out, ...]
        return weight.shape[0]
    return weight[0].numel() if isinstance(module, nn.modules.conv._ConvNd) else weight.shape[-1]


# ---------------------------------------------------------------------------------------------------------- batches


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(*shape: int, seed: int) -> Tensor:
    """Standard normal noise."""
    return torch.randn(*shape, generator=_generator(seed))


def ids(seed: int, tokens: int = TOKENS) -> Tensor:
    """Three sentences of random words; 0 (padding), 1 (begin) and 2 (end) do not occur."""
    return torch.randint(3, VOCABULARY, (3, tokens), generator=_generator(seed))


def mask(seed: int, tokens: int = TOKENS) -> Tensor:
    """Three lengths, of which one is the full one; which sentence has it depends on the seed."""
    lengths = torch.tensor([tokens, tokens - 4, tokens - 1]).roll(seed % 3)
    return (torch.arange(tokens) < lengths[:, None]).long()


def words(seed: int) -> Batch:
    """Sentences with padding on the right."""
    return {"input_ids": ids(seed) * mask(seed), "attention_mask": mask(seed)}


def bare_words(seed: int) -> Batch:
    """Sentences for models that know no mask."""
    return {"input_ids": ids(seed)}


def boxes(seed: int) -> Tensor:
    """A box (left, top, right, bottom) for each word, on a page of 100 by 100."""
    corner = torch.randint(0, 50, (3, TOKENS, 2), generator=_generator(seed))
    size = torch.randint(1, 50, (3, TOKENS, 2), generator=_generator(seed + 1000))
    return torch.cat([corner, corner + size], dim=-1)


def words_and_boxes(seed: int) -> Batch:
    """Words and where they stand on the page."""
    return {**words(seed), "bbox": boxes(seed)}


def words_and_float_boxes(seed: int) -> Batch:
    """Words and where they stand on the page, from 0 to 1."""
    return {**words(seed), "bbox": boxes(seed) / 100}


def words_of_table(seed: int) -> Batch:
    """Words with the seven sorts of place in a table that TAPAS knows."""
    kinds = torch.randint(0, 2, (3, TOKENS, 7), generator=_generator(seed))
    return {**words(seed), "token_type_ids": kinds}


def pairs(seed: int) -> Batch:
    """Two sentences, for models with an encoder and a decoder."""
    return {**words(seed), "decoder_input_ids": ids(seed + 1000, 6)}


def words_and_memory(seed: int) -> Batch:
    """A sentence for a decoder, and what it attends to."""
    return {"input_ids": ids(seed), "memory": numbers(3, 7, 32, seed=seed)}


def image(seed: int) -> Batch:
    """Pictures of noise."""
    return {"pixel_values": numbers(3, 3, 32, 32, seed=seed)}


def words_with_image(seed: int) -> Batch:
    """A picture of 16 patches, and a sentence in which the last word of the vocabulary stands for each patch."""
    patches = torch.full((3, 16), VOCABULARY - 1)
    sentence = ids(seed).clamp(max=VOCABULARY - 2) * mask(seed)
    return {
        "input_ids": torch.cat([patches, sentence], dim=1),
        "attention_mask": torch.cat([torch.ones_like(patches), mask(seed)], dim=1),
        **image(seed),
    }


def large_image(seed: int) -> Batch:
    """Pictures of noise that are twice as wide and high."""
    return {"pixel_values": numbers(3, 3, 64, 64, seed=seed)}


def words_and_image(seed: int) -> Batch:
    """A sentence and a picture."""
    return {**words(seed), **image(seed)}


def padded_sound(seed: int) -> Batch:
    """Wave forms of different lengths, with zeros at the end."""
    valid = torch.arange(400) < torch.tensor([400, 260, 330]).roll(seed % 3)[:, None]
    return {"input_values": sound(seed)["input_values"] * valid, "attention_mask": valid.long()}


def image_and_words_so_far(seed: int) -> Batch:
    """A picture, and the beginning of what is to be said of it."""
    return {**image(seed), "decoder_input_ids": ids(seed, 5)}


def video(seed: int) -> Batch:
    """Four pictures of noise after each other."""
    return {"pixel_values": numbers(3, 4, 3, 32, 32, seed=seed)}


def patches(seed: int) -> Batch:
    """Patches of three pictures of different sizes, flattened, with padding."""
    shapes = torch.tensor([[4, 4], [2, 6], [3, 5]]).roll(seed % 3, dims=0)
    valid = torch.arange(16) < shapes.prod(dim=1)[:, None]
    return {
        "pixel_values": numbers(3, 16, 48, seed=seed),
        "pixel_attention_mask": valid.long(),
        "spatial_shapes": shapes,
    }


def series(seed: int) -> Batch:
    """Two measurements at 32 moments."""
    return {"past_values": numbers(3, 32, 2, seed=seed)}


def past_and_future(seed: int) -> Batch:
    """One measurement at 14 moments, then at 6 more, and two known features of each moment."""
    return {
        "past_values": numbers(3, 14, seed=seed),
        "past_time_features": numbers(3, 14, 2, seed=seed + 1000),
        "past_observed_mask": torch.ones(3, 14),
        "future_values": numbers(3, 6, seed=seed + 2000),
        "future_time_features": numbers(3, 6, 2, seed=seed + 3000),
    }


def trajectory(seed: int) -> Batch:
    """What an agent saw, did and got at 7 moments."""
    return {
        "states": numbers(3, 7, 5, seed=seed),
        "actions": numbers(3, 7, 2, seed=seed + 1000),
        "rewards": numbers(3, 7, 1, seed=seed + 2000),
        "returns_to_go": numbers(3, 7, 1, seed=seed + 3000),
        "timesteps": torch.arange(7).repeat(3, 1),
        "attention_mask": mask(seed, 7),
    }


def graph(seed: int) -> Batch:
    """Graphs of seven nodes: their features, and how many edges apart they are."""
    distance = torch.randint(0, 5, (3, 7, 7), generator=_generator(seed))
    return {"nodes": numbers(3, 7, 12, seed=seed), "distance": distance + distance.transpose(1, 2)}


def sound(seed: int) -> Batch:
    """A wave form of noise."""
    return {"input_values": numbers(3, 400, seed=seed)}


def spectrogram_and_words(seed: int) -> Batch:
    """A spectrogram [batch, bands, time], and the words so far."""
    return {"input_features": numbers(3, 8, 32, seed=seed), "decoder_input_ids": ids(seed, 5)}


# ------------------------------------------------------------------------------------------------------ plain torch


class PlainEncoder(nn.Module):
    """torch's own transformer encoder with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # those warn that they may change
        self.head = nn.Linear(32, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        mask = attention_mask[..., None].to(hidden.dtype)  # torch's fast path writes zeros where the padding is
        return self.head((hidden * mask).sum(1) / mask.sum(1))


class SequenceFirstEncoder(nn.Module):
    """torch's own transformer encoder on [tokens, batch, features]: the batch is dimension 1, also of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", norm_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


class PlainDecoder(nn.Module):
    """torch's own transformer decoder: causal, with attention to a memory.

    With causal=None torch looks at the values of the mask to find out whether it is causal.
    """

    def __init__(self, causal: bool | None = True) -> None:
        super().__init__()
        self.causal = causal
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), 2)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, input_ids: Tensor, memory: Tensor) -> Tensor:
        n = input_ids.shape[1]
        later = torch.ones(n, n, dtype=torch.bool, device=input_ids.device).triu(1)
        return self.head(self.decoder(self.embed(input_ids), memory, tgt_mask=later, tgt_is_causal=self.causal))


class SelfAttention(nn.Module):
    """nn.MultiheadAttention between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(12, 32)
        self.norm = nn.LayerNorm(32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.leave = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        h = self.norm(x)
        return self.leave(x + self.attention(h, h, h, need_weights=False)[0])


class Residual(nn.Module):
    """Adds its input to what the body makes of it."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def _conv(inputs: int, outputs: int, size: int = 3, **settings: Any) -> list[nn.Module]:
    """A convolution that keeps the size of the picture, and its batch norm."""
    return [nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False, **settings), nn.BatchNorm2d(outputs)]


class Pictures(nn.Sequential):
    """A chain of modules whose input is called pixel_values."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        return super().forward(pixel_values)


def small_cnn() -> nn.Module:
    """Convolutions, batch norms, ReLUs, max pooling and a residual block."""
    return Pictures(
        *_conv(3, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Residual(*_conv(8, 8), nn.ReLU(), *_conv(8, 8)),
        nn.ReLU(),
        *_conv(8, 16, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def separable_cnn() -> nn.Module:
    """Depthwise convolutions, each followed by a pointwise one."""
    return Pictures(
        *_conv(3, 8, stride=2),
        nn.ReLU6(),
        *_conv(8, 8, groups=8),
        nn.ReLU6(),
        *_conv(8, 16, 1),
        nn.Hardswish(),
        *_conv(16, 16, 5, groups=16, stride=2),
        nn.Hardswish(),
        *_conv(16, 16, 1),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 5),
    )


class Waves(nn.Module):
    """Dilated causal convolutions over time with gates, as in WaveNet."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(2, 16, 1)
        self.filters = nn.ModuleList(nn.Conv1d(16, 16, 2, dilation=2**i) for i in range(3))
        self.gates = nn.ModuleList(nn.Conv1d(16, 16, 2, dilation=2**i) for i in range(3))
        self.head = nn.Conv1d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for i, (filters, gate) in enumerate(zip(self.filters, self.gates, strict=True)):
            before = nn.functional.pad(x, (2**i, 0))
            x = x + filters(before).tanh() * gate(before).sigmoid()
        return self.head(x)


class UNet(nn.Module):
    """Two levels down and up again, with skips that are concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._block(3, 8), self._block(8, 16)])
        self.pool = nn.MaxPool2d(2)
        self.bottom = self._block(16, 32)
        self.rise = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)])
        self.up = nn.ModuleList([self._block(32, 16), self._block(16, 8)])
        self.head = nn.Conv2d(8, 2, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.SiLU())

    def forward(self, pixel_values: Tensor) -> Tensor:
        x, skips = pixel_values, []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for rise, block in zip(self.rise, self.up, strict=True):
            x = block(torch.cat([rise(x), skips.pop()], dim=1))
        return self.head(x)


class Transposed(nn.Module):
    """Runs the body along the tokens instead of the features."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.transpose(1, 2)).transpose(1, 2)


class Mixer(nn.Module):
    """An MLP-Mixer: patches, then linear layers across the tokens and across the features in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, stride=8)
        self.blocks = nn.Sequential(*(part for _ in range(2) for part in self._block(16, 32)))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 5)

    @staticmethod
    def _block(tokens: int, width: int) -> tuple[nn.Module, nn.Module]:
        across = nn.Sequential(nn.Linear(tokens, 24), nn.GELU(), nn.Linear(24, tokens))
        along = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        return Residual(nn.LayerNorm(width), Transposed(across)), Residual(nn.LayerNorm(width), along)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


class GraphTransformer(nn.Module):
    """Attention with a learned bias for each distance between nodes, as in Graphormer."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(12, 32)
        self.bias = nn.Embedding(9, 4)
        self.norm = nn.LayerNorm(32)
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        self.head = nn.Linear(32, 5)

    def forward(self, nodes: Tensor, distance: Tensor) -> Tensor:
        x = self.enter(nodes)
        q, k, v = self.qkv(self.norm(x)).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / 8**0.5 + self.bias(distance).permute(0, 3, 1, 2)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.head(torch.relu(x + self.out(mixed)).amax(1))


class MLP(nn.Sequential):
    """Linear layers only."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


PLAIN: dict[str, Family] = {
    "nn.TransformerEncoder": Family(PlainEncoder, words),
    "nn.TransformerEncoder-sequence-first": Family(
        SequenceFirstEncoder, lambda seed: {"x": numbers(TOKENS, 3, 32, seed=seed)}
    ),
    "nn.TransformerDecoder": Family(PlainDecoder, words_and_memory),
    "nn.MultiheadAttention": Family(SelfAttention, lambda seed: {"x": numbers(3, TOKENS, 12, seed=seed)}),
    "mlp": Family(MLP, lambda seed: {"x": numbers(3, 12, seed=seed)}),
    "cnn": Family(small_cnn, image),
    "separable-cnn": Family(separable_cnn, image),
    "wavenet": Family(Waves, lambda seed: {"x": numbers(3, 2, 24, seed=seed)}),
    "u-net": Family(UNet, image),
    "mlp-mixer": Family(Mixer, image),
}


# ----------------------------------------------------------------------------------------------------- transformers

SPECIAL: dict[str, Any] = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BODY: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
TEXT: dict[str, Any] = {**BODY, **SPECIAL, "max_position_embeddings": 64}
DECODER: dict[str, Any] = {**TEXT, "num_key_value_heads": 2}
VISION: dict[str, Any] = {**BODY, "image_size": 32, "patch_size": 8}
SPEECH: dict[str, Any] = {
    **BODY,
    "conv_dim": (16, 16),
    "conv_stride": (4, 4),
    "conv_kernel": (8, 8),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 16,
}
SEQUENCES: dict[str, Any] = {
    **SPECIAL,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "decoder_start_token_id": 1,
}
GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
T5: dict[str, Any] = {**SPECIAL, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}


PYRAMID: dict[str, Any] = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "hidden_sizes": [16, 32],
    "num_attention_heads": [2, 4],
    "strides": [4, 2],
    "mlp_ratios": [2, 2],
}
GLPN: dict[str, Any] = {
    "num_encoder_blocks": 4,
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 8, 16, 16],
    "num_attention_heads": [1, 2, 2, 2],
    "mlp_ratios": [2, 2, 2, 2],
    "decoder_hidden_size": 8,
}
EFFICIENTNET: dict[str, Any] = {
    "image_size": 32,
    "width_coefficient": 1.0,
    "depth_coefficient": 1.0,
    "kernel_sizes": [3, 5],
    "in_channels": [32, 8],
    "out_channels": [8, 16],
    "strides": [1, 2],
    "num_block_repeats": [1, 2],
    "expand_ratios": [1, 4],
    "hidden_dim": 1280,
}
DETR_BODY: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
DETR: dict[str, Any] = {
    **DETR_BODY,
    "num_queries": 5,
    "backbone_config": {
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "out_features": ["stage2"],
    },
}
PERCEIVER: dict[str, Any] = {
    "num_latents": 6,
    "d_latents": 16,
    "d_model": 16,
    "num_self_attends_per_block": 2,
    "num_self_attention_heads": 2,
    "num_cross_attention_heads": 2,
}
SPEECHT5: dict[str, Any] = {
    **{key: value for key, value in SEQUENCES.items() if key != "d_model"},
    **{key: value for key, value in SPEECH.items() if key.startswith(("conv", "num_conv", "num_feat"))},
    "hidden_size": 32,
    "max_speech_positions": 64,
    "max_text_positions": 64,
    "encoder_max_relative_position": 8,
}
PATCHTST: dict[str, Any] = {
    "num_input_channels": 2,
    "context_length": 32,
    "patch_length": 8,
    "patch_stride": 8,
    "num_hidden_layers": 2,
    "d_model": 16,
    "num_attention_heads": 2,
    "ffn_dim": 32,
    "prediction_length": 8,
}
FORECAST: dict[str, Any] = {
    "prediction_length": 6,
    "context_length": 12,
    "lags_sequence": [1, 2],
    "num_time_features": 2,
    "d_model": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}


def _of(model: str, batch: Callable[[int], Batch], *settings: dict[str, Any], **more: Any) -> Family:
    """A model of transformers by its class name, and the settings of its configuration."""
    merged = {key: value for part in (*settings, more) for key, value in part.items()}

    def make() -> nn.Module:
        kind = getattr(tf, model)
        return kind(kind.config_class(**merged))

    return Family(make, batch)


def _picture_to_text() -> nn.Module:
    """A ViT whose patches a causal decoder attends to."""
    encoder = tf.ViTConfig(**VISION)
    decoder = tf.TrOCRConfig(
        **SPECIAL,
        d_model=32,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
        is_decoder=True,
        add_cross_attention=True,
        cross_attention_hidden_size=32,
    )
    return tf.VisionEncoderDecoderModel(tf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder))


def _bert_to_bert() -> nn.Module:
    """Two BERTs, of which the second is causal and attends to the first."""
    encoder, decoder = tf.BertConfig(**TEXT), tf.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)
    return tf.EncoderDecoderModel(tf.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder))


def _speecht5_encoder() -> nn.Module:
    """The half of SpeechT5 that reads sound."""
    return tf.SpeechT5ForSpeechToText(tf.SpeechT5Config(**SPEECHT5)).get_encoder()


ENCODERS: dict[str, Family] = {
    "modernbert": _of(
        "ModernBertForSequenceClassification",
        words,
        TEXT,
        cls_token_id=1,
        sep_token_id=2,
        global_attn_every_n_layers=2,
        local_attention=12,
    ),
    "mpnet": _of("MPNetForSequenceClassification", words, TEXT),
    "deberta-v2": _of(
        "DebertaV2ForSequenceClassification",
        words,
        TEXT,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
        max_relative_positions=16,
        share_att_key=True,
    ),
    "albert": _of("AlbertForSequenceClassification", words, TEXT, embedding_size=16),
    "t5-encoder": _of("T5EncoderModel", words, T5),
    "deberta": _of(
        "DebertaForSequenceClassification",
        words,
        TEXT,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        max_relative_positions=16,
    ),
    "esm": _of("EsmForSequenceClassification", words, TEXT, position_embedding_type="rotary"),
    "esm-absolute": _of("EsmForTokenClassification", words, TEXT, mask_token_id=3, token_dropout=True),
    "funnel": _of(
        "FunnelForTokenClassification",
        words,
        SPECIAL,
        d_model=32,
        n_head=4,
        d_head=8,
        d_inner=64,
        block_sizes=[1, 1],
        num_decoder_layers=1,
    ),
    "mobilebert": _of(
        "MobileBertForSequenceClassification",
        words,
        TEXT,
        embedding_size=16,
        intra_bottleneck_size=16,
        num_feedforward_networks=2,
    ),
    "squeezebert": _of("SqueezeBertForSequenceClassification", words, TEXT, embedding_size=32),
    "nystromformer-all-landmarks": _of(
        "NystromformerForSequenceClassification",
        words,
        TEXT,
        num_landmarks=TOKENS,
        segment_means_seq_len=TOKENS,
        conv_kernel_size=3,
    ),
    "yoso": _of("YosoForSequenceClassification", words, TEXT),
    "fnet": _of("FNetForSequenceClassification", bare_words, TEXT),
    "roformer": _of("RoFormerForSequenceClassification", words, TEXT, embedding_size=16),
    "xlnet": _of("XLNetForSequenceClassification", words, SPECIAL, d_model=32, n_layer=2, n_head=4, d_inner=64),
    "xlm": _of(
        "XLMForSequenceClassification", words, SPECIAL, emb_dim=32, n_layers=2, n_heads=4, max_position_embeddings=64
    ),
    "camembert": _of("CamembertForSequenceClassification", words, TEXT),
    "big-bird": _of("BigBirdForSequenceClassification", words, TEXT, attention_type="original_full"),
    "big-bird-sparse": _of(
        "BigBirdModel", words, TEXT, attention_type="block_sparse", block_size=1, num_random_blocks=1
    ),
    "layoutlm": _of("LayoutLMForSequenceClassification", words_and_boxes, TEXT, max_2d_position_embeddings=128),
    "layoutlmv3": _of(
        "LayoutLMv3ForTokenClassification",
        lambda seed: {**words_and_boxes(seed), **image(seed)},
        TEXT,
        input_size=32,
        patch_size=8,
        coordinate_size=6,
        shape_size=4,
    ),
    "lilt": _of("LiltForTokenClassification", words_and_boxes, TEXT, hidden_size=48, channel_shrink_ratio=2),
    "bros": _of("BrosForTokenClassification", words_and_float_boxes, TEXT, hidden_size=64),
    "markuplm": _of(
        "MarkupLMForSequenceClassification",
        words,
        TEXT,
        max_depth=4,
        max_xpath_subs_unit_embeddings=1002,
        xpath_unit_hidden_size=4,
    ),
    "tapas": _of("TapasModel", words_of_table, TEXT, type_vocab_sizes=[3, 9, 9, 2, 9, 9, 9]),
    "splinter": _of("SplinterModel", words, TEXT),
    "convbert": _of(
        "ConvBertForSequenceClassification", words, TEXT, embedding_size=16, conv_kernel_size=3, head_ratio=2
    ),
    "data2vec-text": _of("Data2VecTextForSequenceClassification", words, TEXT),
    "ernie": _of("ErnieForSequenceClassification", words, TEXT),
    "megatron-bert": _of("MegatronBertForSequenceClassification", words, TEXT),
    "rembert": _of("RemBertForSequenceClassification", words, TEXT, input_embedding_size=16),
    "roc-bert": _of(
        "RoCBertForSequenceClassification",
        words,
        TEXT,
        pronunciation_embed_dim=8,
        pronunciation_vocab_size=VOCABULARY,
        shape_embed_dim=8,
        shape_vocab_size=VOCABULARY,
    ),
    "ibert": _of("IBertForSequenceClassification", words, TEXT),
    "canine": _of("CanineForSequenceClassification", words, TEXT, num_hash_buckets=64),
    "luke": _of("LukeModel", words, TEXT, entity_vocab_size=9, entity_emb_size=16),
    "xmod": _of("XmodForSequenceClassification", words, TEXT, languages=["en"], default_language="en"),
    "xlm-roberta-xl": _of("XLMRobertaXLForSequenceClassification", words, TEXT),
    "roberta-prelayernorm": _of("RobertaPreLayerNormForSequenceClassification", words, TEXT),
    "nomic-bert": _of("NomicBertForSequenceClassification", words, TEXT),
    "gte": _of("GteForSequenceClassification", words, TEXT),
    "eurobert": _of("EuroBertForSequenceClassification", words, DECODER),
    "jina-embeddings-v3": _of("JinaEmbeddingsV3ForSequenceClassification", words, TEXT),
    "dpr": _of("DPRQuestionEncoder", words, TEXT, projection_dim=16),
    "umt5-encoder": _of("UMT5EncoderModel", words, T5),
    "bert-generation": _of("BertGenerationDecoder", words, TEXT, is_decoder=True),
}

DECODERS: dict[str, Family] = {
    "qwen2": _of("Qwen2ForCausalLM", words, DECODER),
    "qwen3": _of("Qwen3ForCausalLM", words, DECODER, head_dim=8),
    "mistral": _of("MistralForCausalLM", words, DECODER),
    "gemma2": _of("Gemma2ForCausalLM", words, DECODER, head_dim=8),
    "gemma3": _of("Gemma3ForCausalLM", words, DECODER, head_dim=8),
    "phi3": _of("Phi3ForCausalLM", words, DECODER),
    "opt": _of("OPTForCausalLM", words, TEXT, ffn_dim=64, word_embed_proj_dim=32),
    "gptj": _of("GPTJForCausalLM", words, SPECIAL, GPT, rotary_dim=4),
    "falcon": _of("FalconForCausalLM", words, TEXT),
    "bloom": _of("BloomForCausalLM", words, SPECIAL, hidden_size=32, n_layer=2, n_head=4),
    "llama-grouped": _of("LlamaForCausalLM", words, DECODER),
    "gpt-neox": _of("GPTNeoXForCausalLM", words, TEXT),
    "gpt-neo": _of(
        "GPTNeoForCausalLM",
        words,
        SPECIAL,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        max_position_embeddings=64,
        attention_types=[[["global", "local"], 1]],
        window_size=6,
    ),
    "gpt-bigcode": _of("GPTBigCodeForCausalLM", words, SPECIAL, GPT),
    "openai-gpt": _of("OpenAIGPTLMHeadModel", words, SPECIAL, GPT),
    "ctrl": _of("CTRLLMHeadModel", words, SPECIAL, GPT, dff=64),
    "codegen": _of("CodeGenForCausalLM", words, SPECIAL, GPT, rotary_dim=4),
    "imagegpt": _of("ImageGPTForCausalImageModeling", words, SPECIAL, GPT),
    "stablelm": _of("StableLmForCausalLM", words, DECODER, use_qkv_bias=True, qk_layernorm=True),
    "starcoder2": _of("Starcoder2ForCausalLM", words, DECODER),
    "cohere": _of("CohereForCausalLM", words, DECODER, use_qk_norm=True),
    "cohere2": _of("Cohere2ForCausalLM", words, DECODER, sliding_window=6),
    "olmo": _of("OlmoForCausalLM", words, DECODER, clip_qkv=2.0),
    "olmo2": _of("Olmo2ForCausalLM", words, DECODER),
    "olmo3": _of("Olmo3ForCausalLM", words, DECODER, sliding_window=6),
    "granite": _of("GraniteForCausalLM", words, DECODER, residual_multiplier=0.5, attention_multiplier=0.3),
    "smollm3": _of("SmolLM3ForCausalLM", words, DECODER, no_rope_layers=[1, 0]),
    "phi": _of("PhiForCausalLM", words, DECODER, partial_rotary_factor=0.5),
    "gemma": _of("GemmaForCausalLM", words, DECODER, head_dim=8),
    "vaultgemma": _of("VaultGemmaForCausalLM", words, DECODER, head_dim=8, sliding_window=6),
    "mpt": _of("MptForCausalLM", words, SPECIAL, d_model=32, n_heads=4, n_layers=2, expansion_ratio=2, max_seq_len=64),
    "xglm": _of(
        "XGLMForCausalLM",
        words,
        SPECIAL,
        d_model=32,
        ffn_dim=64,
        num_layers=2,
        attention_heads=4,
        max_position_embeddings=64,
    ),
    "biogpt": _of("BioGptForCausalLM", words, TEXT),
    "persimmon": _of("PersimmonForCausalLM", words, TEXT),
    "nemotron": _of("NemotronForCausalLM", words, DECODER),
    "glm": _of("GlmForCausalLM", words, DECODER, head_dim=8),
    "glm4": _of("Glm4ForCausalLM", words, DECODER, head_dim=8),
    "helium": _of("HeliumForCausalLM", words, DECODER, head_dim=8),
    "exaone4": _of("Exaone4ForCausalLM", words, DECODER, sliding_window=6),
    "ernie4.5": _of("Ernie4_5ForCausalLM", words, DECODER, head_dim=8),
    "arcee": _of("ArceeForCausalLM", words, DECODER),
    "apertus": _of("ApertusForCausalLM", words, DECODER),
    "bitnet": _of("BitNetForCausalLM", words, DECODER),
    "diffllama": _of("DiffLlamaForCausalLM", words, DECODER),
    "seed-oss": _of("SeedOssForCausalLM", words, DECODER, head_dim=8),
    "nanochat": _of("NanoChatForCausalLM", words, DECODER),
    "hunyuan": _of("HunYuanDenseV1ForCausalLM", words, DECODER, head_dim=8),
    "doge": _of("DogeForCausalLM", words, DECODER),
    "modernbert-decoder": _of("ModernBertDecoderForCausalLM", words, TEXT, local_attention=12),
    "trocr": _of(
        "TrOCRForCausalLM",
        words,
        SPECIAL,
        d_model=32,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
    ),
    "mixtral": _of("MixtralForCausalLM", words, DECODER, num_local_experts=4),
    "qwen3-moe": _of(
        "Qwen3MoeForCausalLM",
        words,
        DECODER,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    ),
    "qwen2-moe": _of(
        "Qwen2MoeForCausalLM",
        words,
        DECODER,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    ),
    "olmoe": _of("OlmoeForCausalLM", words, DECODER, num_experts=4, num_experts_per_tok=2),
    "granite-moe": _of("GraniteMoeForCausalLM", words, DECODER, num_local_experts=4),
    "phimoe": _of("PhimoeForCausalLM", words, DECODER, num_local_experts=4),
    "gpt-oss": _of(
        "GptOssForCausalLM",
        words,
        DECODER,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=6,
    ),
    "deepseek-v3": _of(
        "DeepseekV3ForCausalLM",
        words,
        TEXT,
        num_key_value_heads=4,
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=8,
    ),
    "mamba": _of("MambaForCausalLM", words, SPECIAL, hidden_size=32, num_hidden_layers=2, state_size=4),
    "mamba2": _of(
        "Mamba2ForCausalLM",
        words,
        SPECIAL,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=8,
        num_heads=8,
        head_dim=8,
        n_groups=2,
        chunk_size=4,
    ),
    "falcon-mamba": _of("FalconMambaForCausalLM", words, SPECIAL, hidden_size=32, num_hidden_layers=2, state_size=4),
    "rwkv": _of("RwkvForCausalLM", bare_words, SPECIAL, hidden_size=32, num_hidden_layers=2, context_length=64),
    "xlstm": _of("xLSTMForCausalLM", bare_words, SPECIAL, hidden_size=32, num_hidden_layers=2, num_heads=4),
    "recurrent-gemma": _of(
        "RecurrentGemmaForCausalLM", words, DECODER, lru_width=32, attention_window_size=6, num_hidden_layers=3
    ),
    "lfm2": _of(
        "Lfm2ForCausalLM", words, DECODER, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False
    ),
    "jamba": _of(
        "JambaForCausalLM",
        words,
        DECODER,
        num_experts=2,
        num_experts_per_tok=1,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "bamba": _of(
        "BambaForCausalLM",
        words,
        DECODER,
        attn_layer_indices=[1],
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_chunk_size=4,
    ),
    "falcon-h1": _of(
        "FalconH1ForCausalLM",
        words,
        DECODER,
        head_dim=8,
        mamba_d_ssm=64,
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_chunk_size=4,
    ),
    "minimax": _of(
        "MiniMaxForCausalLM",
        words,
        DECODER,
        head_dim=8,
        num_local_experts=4,
        block_size=4,
        layer_types=["linear_attention", "full_attention"],
    ),
    "zamba": _of(
        "ZambaForCausalLM",
        words,
        DECODER,
        num_key_value_heads=4,
        num_hidden_layers=3,
        layers_block_type=["mamba", "hybrid", "hybrid"],
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "hrm-text": _of("HrmTextForCausalLM", words, TEXT, head_dim=8, H_cycles=1, L_cycles=1),
}

SEQUENCE_TO_SEQUENCE: dict[str, Family] = {
    "bert-to-bert": Family(_bert_to_bert, pairs),
    "t5": _of("T5ForConditionalGeneration", pairs, T5, decoder_start_token_id=0),
    "bart": _of("BartForConditionalGeneration", pairs, SEQUENCES, max_position_embeddings=64),
    "marian": _of("MarianMTModel", pairs, SEQUENCES, max_position_embeddings=64),
    "pegasus": _of("PegasusForConditionalGeneration", pairs, SEQUENCES, max_position_embeddings=64),
    "mbart": _of("MBartForConditionalGeneration", pairs, SEQUENCES, max_position_embeddings=64),
    "blenderbot": _of("BlenderbotForConditionalGeneration", pairs, SEQUENCES, max_position_embeddings=64),
    "whisper": _of(
        "WhisperForConditionalGeneration",
        spectrogram_and_words,
        SEQUENCES,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=16,
    ),
    "mt5": _of("MT5ForConditionalGeneration", pairs, T5, decoder_start_token_id=0),
    "umt5": _of("UMT5ForConditionalGeneration", pairs, T5, decoder_start_token_id=0),
    "longt5": _of("LongT5ForConditionalGeneration", pairs, T5, decoder_start_token_id=0, local_radius=2),
    "m2m-100": _of("M2M100ForConditionalGeneration", pairs, SEQUENCES, max_position_embeddings=64),
    "blenderbot-small": _of("BlenderbotSmallForConditionalGeneration", pairs, SEQUENCES, max_position_embeddings=64),
    "plbart": _of("PLBartForConditionalGeneration", pairs, SEQUENCES, max_position_embeddings=64),
    "mvp": _of("MvpForConditionalGeneration", pairs, SEQUENCES, max_position_embeddings=64),
    "pegasus-x": _of(
        "PegasusXForConditionalGeneration",
        pairs,
        SEQUENCES,
        max_position_embeddings=64,
        num_global_tokens=2,
        block_size=4,
    ),
    "big-bird-pegasus": _of(
        "BigBirdPegasusForConditionalGeneration",
        pairs,
        SEQUENCES,
        max_position_embeddings=64,
        attention_type="original_full",
    ),
    "prophetnet": _of(
        "ProphetNetForConditionalGeneration",
        pairs,
        SPECIAL,
        hidden_size=32,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        max_position_embeddings=64,
    ),
    "t5gemma": _of(
        "T5GemmaForConditionalGeneration",
        pairs,
        encoder={**DECODER, "head_dim": 8},
        decoder={**DECODER, "head_dim": 8, "cross_attention_hidden_size": 32},
        vocab_size=VOCABULARY,
    ),
    "speech2text": _of(
        "Speech2TextForConditionalGeneration",
        lambda seed: {"input_features": numbers(3, 32, 8, seed=seed), "decoder_input_ids": ids(seed, 5)},
        SEQUENCES,
        max_source_positions=64,
        max_target_positions=64,
        conv_channels=16,
        input_feat_per_channel=8,
    ),
    "moonshine": _of(
        "MoonshineForConditionalGeneration",
        lambda seed: {"input_values": numbers(3, 4000, seed=seed), "decoder_input_ids": ids(seed, 5)},
        SPECIAL,
        hidden_size=32,
        intermediate_size=64,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        max_position_embeddings=64,
    ),
}

PICTURES: dict[str, Family] = {
    "siglip-vision": _of("SiglipVisionModel", image, VISION),
    "dinov3": _of("DINOv3ViTModel", image, VISION),
    "swinv2": _of(
        "Swinv2ForImageClassification",
        image,
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=4,
    ),
    "segformer": _of(
        "SegformerForImageClassification",
        image,
        num_encoder_blocks=2,
        depths=[1, 1],
        hidden_sizes=[16, 32],
        num_attention_heads=[2, 4],
        sr_ratios=[4, 2],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
    ),
    "mobilevit": _of(
        "MobileViTForImageClassification",
        image,
        image_size=32,
        hidden_sizes=[16, 16, 16],
        neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 32],
        num_attention_heads=4,
        patch_size=2,
    ),
    "resnet": _of("ResNetForImageClassification", image, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
    "convnext": _of("ConvNextForImageClassification", image, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "convnextv2": _of("ConvNextV2ForImageClassification", image, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "dinov3-convnext": _of("DINOv3ConvNextModel", image, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1]),
    "pvt": _of(
        "PvtForImageClassification",
        image,
        PYRAMID,
        image_size=32,
        sequence_reduction_ratios=[4, 1],
        patch_sizes=[4, 2],
        num_labels=5,
    ),
    "pvt-v2": _of("PvtV2ForImageClassification", image, PYRAMID, image_size=32, sr_ratios=[4, 2], patch_sizes=[7, 3]),
    "pvt-v2-linear": _of(
        "PvtV2ForImageClassification",
        image,
        PYRAMID,
        image_size=32,
        sr_ratios=[4, 2],
        patch_sizes=[7, 3],
        linear_attention=True,
    ),
    "segformer-semantic": _of(
        "SegformerForSemanticSegmentation",
        image,
        PYRAMID,
        sr_ratios=[4, 2],
        patch_sizes=[7, 3],
        decoder_hidden_size=16,
    ),
    "glpn": _of("GLPNForDepthEstimation", image, GLPN),
    "hiera": _of(
        "HieraForImageClassification",
        image,
        image_size=[32, 32],
        embed_dim=16,
        depths=[1, 1, 1],
        num_heads=[1, 2, 4],
        num_query_pool=2,
        masked_unit_size=[4, 4],
        masked_unit_attention=[True, True, False],
        mlp_ratio=2.0,
    ),
    "levit": _of(
        "LevitForImageClassification",
        large_image,
        image_size=64,
        hidden_sizes=[16, 32, 32],
        num_attention_heads=[2, 2, 2],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
    ),
    "poolformer": _of(
        "PoolFormerForImageClassification",
        image,
        depths=[1, 1],
        hidden_sizes=[16, 32],
        patch_sizes=[7, 3],
        strides=[4, 2],
        padding=[2, 1],
        num_encoder_blocks=2,
    ),
    "efficientnet": _of("EfficientNetForImageClassification", image, EFFICIENTNET),
    "mobilenet-v1": _of("MobileNetV1ForImageClassification", image, image_size=32, depth_multiplier=0.05),
    "mobilenet-v2": _of(
        "MobileNetV2ForImageClassification", image, image_size=32, depth_multiplier=0.05, finegrained_output=False
    ),
    "mobilevit-v2": _of(
        "MobileViTV2ForImageClassification",
        large_image,
        image_size=64,
        width_multiplier=0.0625,
        n_attn_blocks=[1, 1, 1],
        base_attn_unit_dims=[16, 16, 16],
    ),
    "swiftformer": _of("SwiftFormerForImageClassification", image, depths=[1, 1, 2, 2], embed_dims=[8, 8, 16, 16]),
    "regnet": _of(
        "RegNetForImageClassification", image, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4
    ),
    "bit": _of("BitForImageClassification", image, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_groups=2),
    "hgnet-v2": _of(
        "HGNetV2ForImageClassification",
        image,
        stem_channels=[3, 8, 8],
        stage_in_channels=[8, 16, 16, 16],
        stage_mid_channels=[8, 8, 8, 8],
        stage_out_channels=[16, 16, 16, 16],
        stage_num_blocks=[1, 1, 1, 1],
        stage_numb_of_layers=[2, 2, 2, 2],
        hidden_sizes=[16, 16, 16, 16],
        depths=[1, 1, 1, 1],
        use_learnable_affine_block=True,
    ),
    "textnet": _of(
        "TextNetForImageClassification",
        image,
        stem_out_channels=8,
        hidden_sizes=[8, 8, 8, 16, 16],
        conv_layer_kernel_sizes=[[[3, 3]], [[3, 3]], [[3, 1]], [[1, 3]]],
        conv_layer_strides=[[1], [2], [2], [2]],
    ),
    "cvt": _of(
        "CvtForImageClassification",
        image,
        patch_sizes=[7, 3],
        patch_stride=[4, 2],
        patch_padding=[2, 1],
        embed_dim=[16, 32],
        num_heads=[2, 4],
        depth=[1, 2],
        mlp_ratio=[2.0, 2.0],
        attention_drop_rate=[0.0, 0.0],
        drop_rate=[0.0, 0.0],
        drop_path_rate=[0.0, 0.0],
        qkv_bias=[True, True],
        cls_token=[False, True],
        qkv_projection_method=["dw_bn", "dw_bn"],
        kernel_qkv=[3, 3],
        padding_kv=[1, 1],
        stride_kv=[2, 2],
        padding_q=[1, 1],
        stride_q=[1, 1],
    ),
    "focalnet": _of(
        "FocalNetForImageClassification",
        image,
        image_size=32,
        embed_dim=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        focal_levels=[2, 2],
        focal_windows=[3, 3],
        mlp_ratio=2.0,
        use_layerscale=True,
    ),
    "vit-mae": _of(
        "ViTMAEForPreTraining",
        lambda seed: {**image(seed), "noise": numbers(3, 16, seed=seed)},
        VISION,
        mask_ratio=0.5,
        decoder_hidden_size=16,
        decoder_num_attention_heads=2,
        decoder_num_hidden_layers=1,
        decoder_intermediate_size=32,
    ),
    "vit-msn": _of("ViTMSNForImageClassification", image, VISION),
    "ijepa": _of("IJepaForImageClassification", image, VISION),
    "data2vec-vision": _of("Data2VecVisionForImageClassification", image, VISION, use_relative_position_bias=True),
    "dinov2-with-registers": _of("Dinov2WithRegistersForImageClassification", image, VISION, use_swiglu_ffn=True),
    "pixio": _of("PixioModel", image, VISION),
    "aimv2-vision": _of("Aimv2VisionModel", image, VISION),
    "mlcd": _of("MLCDVisionModel", image, VISION),
    "yolos": _of(
        "YolosForObjectDetection",
        image,
        VISION,
        image_size=[32, 32],
        num_detection_tokens=5,
        use_mid_position_embeddings=False,
    ),
    "detr": _of("DetrForObjectDetection", image, DETR),
    "conditional-detr": _of("ConditionalDetrForObjectDetection", image, DETR),
    "deformable-detr": _of("DeformableDetrForObjectDetection", image, DETR, num_feature_levels=2, decoder_layers=2),
    "dpt": _of(
        "DPTForDepthEstimation",
        image,
        VISION,
        num_hidden_layers=4,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=16,
    ),
    "depth-anything": _of(
        "DepthAnythingForDepthEstimation",
        image,
        patch_size=8,
        reassemble_hidden_size=32,
        neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=16,
        head_hidden_size=8,
        backbone_config={
            **VISION,
            "model_type": "dinov2",
            "num_hidden_layers": 4,
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
            "reshape_hidden_states": False,
        },
    ),
    "upernet": _of(
        "UperNetForSemanticSegmentation",
        image,
        hidden_size=16,
        pool_scales=[1, 2],
        auxiliary_in_channels=16,
        auxiliary_channels=8,
        backbone_config={
            "model_type": "convnext",
            "hidden_sizes": [8, 8, 16, 16],
            "depths": [1, 1, 1, 1],
            "patch_size": 2,
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
        },
    ),
    "vitpose": _of(
        "VitPoseForPoseEstimation",
        image,
        use_simple_decoder=True,
        num_labels=3,
        backbone_config={**VISION, "model_type": "vitpose_backbone", "image_size": [32, 32], "patch_size": [8, 8]},
    ),
    "vitdet": _of(
        "VitDetModel",
        image,
        VISION,
        pretrain_image_size=32,
        window_size=2,
        window_block_indices=[0],
        residual_block_indices=[1],
        use_relative_position_embeddings=True,
    ),
    "vitmatte": _of(
        "VitMatteForImageMatting",
        lambda seed: {"pixel_values": numbers(3, 4, 32, 32, seed=seed)},
        hidden_size=32,
        convstream_hidden_sizes=[8, 8, 16],
        fusion_hidden_sizes=[16, 8, 8, 8],
        backbone_config={
            **VISION,
            "model_type": "vitdet",
            "num_channels": 4,
            "pretrain_image_size": 32,
            "out_features": ["stage2"],
            "patch_size": 16,
        },
    ),
    "sam-vision": _of(
        "SamVisionModel",
        image,
        VISION,
        output_channels=16,
        window_size=2,
        global_attn_indexes=[1],
        num_pos_feats=16,
        mlp_dim=64,
    ),
    "swin2sr": _of(
        "Swin2SRForImageSuperResolution",
        lambda seed: {"pixel_values": numbers(3, 3, 16, 16, seed=seed)},
        image_size=16,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=4,
    ),
    "mgp-str": _of(
        "MgpstrForSceneTextRecognition",
        image,
        image_size=[32, 32],
        patch_size=8,
        max_token_length=5,
        num_character_labels=9,
        num_bpe_labels=9,
        num_wordpiece_labels=9,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        mlp_ratio=2.0,
    ),
    "perceiver-image": _of(
        "PerceiverForImageClassificationLearned",
        lambda seed: {"inputs": numbers(3, 3, 8, 8, seed=seed)},
        PERCEIVER,
        image_size=8,
    ),
    "videomae": _of("VideoMAEForVideoClassification", video, VISION, num_frames=4),
    "timesformer": _of("TimesformerForVideoClassification", video, VISION, num_frames=4),
    "vivit": _of("VivitForVideoClassification", video, VISION, num_frames=4, tubelet_size=[2, 8, 8]),
    "vjepa2": _of(
        "VJEPA2Model",
        lambda seed: {"pixel_values_videos": numbers(3, 4, 3, 32, 32, seed=seed)},
        patch_size=8,
        crop_size=32,
        frames_per_clip=4,
        hidden_size=32,
        num_attention_heads=2,
        num_hidden_layers=2,
        mlp_ratio=2.0,
        pred_hidden_size=32,
        pred_num_attention_heads=2,
        pred_num_hidden_layers=1,
    ),
}

PICTURES_AND_WORDS: dict[str, Family] = {
    "clip": _of("CLIPModel", words_and_image, text_config=TEXT, vision_config=VISION, projection_dim=16),
    "siglip": _of("SiglipModel", words_and_image, text_config=TEXT, vision_config=VISION),
    "metaclip2": _of("MetaClip2Model", words_and_image, text_config=TEXT, vision_config=VISION, projection_dim=16),
    "aimv2": _of("Aimv2Model", words_and_image, text_config=TEXT, vision_config=VISION, projection_dim=16),
    "altclip": _of(
        "AltCLIPModel",
        words_and_image,
        text_config={**TEXT, "project_dim": 32},
        vision_config=VISION,
        projection_dim=16,
    ),
    "chinese-clip": _of("ChineseCLIPModel", words_and_image, text_config=TEXT, vision_config=VISION, projection_dim=16),
    "groupvit": _of(
        "GroupViTModel",
        words_and_image,
        text_config=TEXT,
        vision_config={
            **VISION,
            "depths": [1, 1, 1],
            "num_hidden_layers": 3,
            "num_group_tokens": [4, 2, 0],
            "num_output_groups": [4, 2, 2],
        },
        projection_dim=16,
        projection_intermediate_dim=32,
    ),
    "owlvit": _of("OwlViTModel", words_and_image, text_config=TEXT, vision_config=VISION, projection_dim=16),
    "owlv2": _of("Owlv2Model", words_and_image, text_config=TEXT, vision_config=VISION, projection_dim=16),
    "owlvit-detection": _of(
        "OwlViTForObjectDetection", words_and_image, text_config=TEXT, vision_config=VISION, projection_dim=32
    ),
    "align": _of("AlignModel", words_and_image, text_config=TEXT, vision_config=EFFICIENTNET, projection_dim=16),
    "blip": _of(
        "BlipForImageTextRetrieval",
        words_and_image,
        text_config={**TEXT, "encoder_hidden_size": 32},
        vision_config=VISION,
        image_text_hidden_size=16,
    ),
    "blip-captioning": _of(
        "BlipForConditionalGeneration",
        words_and_image,
        text_config={**TEXT, "encoder_hidden_size": 32},
        vision_config=VISION,
    ),
    "git": _of("GitForCausalLM", words_and_image, TEXT, vision_config=VISION),
    "flava": _of(
        "FlavaModel",
        words_and_image,
        text_config=TEXT,
        image_config=VISION,
        multimodal_config=BODY,
        hidden_size=32,
        projection_dim=16,
        init_codebook=False,
    ),
    "visual-bert": _of(
        "VisualBertModel",
        lambda seed: {**words(seed), "visual_embeds": numbers(3, 4, 12, seed=seed)},
        TEXT,
        visual_embedding_dim=12,
    ),
    "lxmert": _of(
        "LxmertModel",
        lambda seed: {
            **words(seed),
            "visual_feats": numbers(3, 4, 12, seed=seed),
            "visual_pos": numbers(3, 4, 4, seed=seed + 1000),
        },
        TEXT,
        l_layers=1,
        x_layers=1,
        r_layers=1,
        visual_feat_dim=12,
    ),
    "bridgetower": _of(
        "BridgeTowerModel",
        words_and_image,
        BODY,
        hidden_size=64,
        text_config={**TEXT, "hidden_size": 64},
        vision_config={**VISION, "hidden_size": 64},
    ),
    "paligemma": _of(
        "PaliGemmaForConditionalGeneration",
        words_with_image,
        text_config={**DECODER, "model_type": "gemma", "head_dim": 8},
        vision_config={**VISION, "model_type": "siglip_vision_model", "vision_use_head": False},
        image_token_id=VOCABULARY - 1,
        projection_dim=32,
        pad_token_id=0,
    ),
    "trocr-encoder-decoder": Family(_picture_to_text, image_and_words_so_far),
}

SOUNDS: dict[str, Family] = {
    "wav2vec2": _of("Wav2Vec2ForSequenceClassification", sound, SPEECH),
    "wav2vec2-padded": _of("Wav2Vec2ForSequenceClassification", padded_sound, SPEECH, feat_extract_norm="layer"),
    "hubert": _of("HubertForSequenceClassification", sound, SPEECH),
    "wavlm": _of("WavLMForSequenceClassification", sound, SPEECH, num_buckets=8, max_bucket_distance=16),
    "sew": _of("SEWForSequenceClassification", sound, SPEECH),
    "sew-d": _of("SEWDForSequenceClassification", sound, SPEECH, position_buckets=8, max_position_embeddings=64),
    "unispeech": _of("UniSpeechForSequenceClassification", sound, SPEECH),
    "unispeech-sat": _of("UniSpeechSatForSequenceClassification", sound, SPEECH),
    "data2vec-audio": _of(
        "Data2VecAudioForSequenceClassification", sound, SPEECH, num_conv_pos_embeddings=2, conv_pos_kernel_size=3
    ),
    "wav2vec2-layer-norm": _of(
        "Wav2Vec2ForCTC", sound, SPEECH, feat_extract_norm="layer", do_stable_layer_norm=True, vocab_size=12
    ),
    "wav2vec2-conformer": _of(
        "Wav2Vec2ConformerForSequenceClassification", sound, SPEECH, conv_depthwise_kernel_size=5
    ),
    "wav2vec2-conformer-rotary": _of(
        "Wav2Vec2ConformerForSequenceClassification",
        sound,
        SPEECH,
        conv_depthwise_kernel_size=5,
        position_embeddings_type="rotary",
    ),
    "wav2vec2-bert": _of(
        "Wav2Vec2BertForSequenceClassification",
        lambda seed: {"input_features": numbers(3, 12, 16, seed=seed)},
        BODY,
        feature_projection_input_dim=16,
        conv_depthwise_kernel_size=5,
        classifier_proj_size=16,
        left_max_position_embeddings=4,
        right_max_position_embeddings=2,
    ),
    "ast": _of(
        "ASTForAudioClassification",
        lambda seed: {"input_values": numbers(3, 24, 16, seed=seed)},
        BODY,
        patch_size=4,
        frequency_stride=4,
        time_stride=4,
        max_length=24,
        num_mel_bins=16,
    ),
    "speecht5-encoder": Family(_speecht5_encoder, sound),
    "speecht5": _of(
        "SpeechT5ForSpeechToText", lambda seed: {**sound(seed), "decoder_input_ids": ids(seed, 5)}, SPEECHT5
    ),
    "parakeet": _of(
        "ParakeetForCTC",
        lambda seed: {"input_features": numbers(3, 32, 16, seed=seed)},
        encoder_config={
            **BODY,
            "num_mel_bins": 16,
            "subsampling_conv_channels": 8,
            "conv_kernel_size": 3,
            "max_position_embeddings": 64,
        },
        vocab_size=12,
        pad_token_id=0,
    ),
    "clap-audio": _of(
        "ClapAudioModel",
        lambda seed: {"input_features": numbers(3, 1, 64, 8, seed=seed)},
        num_mel_bins=8,
        spec_size=32,
        window_size=2,
        patch_size=2,
        patch_stride=[2, 2],
        hidden_size=32,
        patch_embeds_hidden_size=8,
        depths=[1, 1, 1],
        num_hidden_layers=3,
        num_attention_heads=[2, 2, 2],
        projection_dim=16,
    ),
    "hifigan": _of(
        "SpeechT5HifiGan",
        lambda seed: {"spectrogram": numbers(3, 6, 8, seed=seed)},
        model_in_dim=8,
        upsample_initial_channel=16,
        upsample_rates=[2, 2],
        upsample_kernel_sizes=[4, 4],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
    ),
    "dac": _of(
        "DacModel",
        lambda seed: {"input_values": numbers(3, 1, 64, seed=seed)},
        encoder_hidden_size=4,
        downsampling_ratios=[2, 4],
        decoder_hidden_size=16,
        n_codebooks=2,
        codebook_size=16,
        codebook_dim=4,
    ),
}

SERIES: dict[str, Family] = {
    "patchtst": _of("PatchTSTForPrediction", series, PATCHTST),
    "patchtst-channels": _of("PatchTSTForClassification", series, PATCHTST, channel_attention=True, num_targets=3),
    "patchtsmixer": _of("PatchTSMixerForPrediction", series, num_input_channels=2, num_layers=2, d_model=16),
    "patchtsmixer-channels": _of(
        "PatchTSMixerForTimeSeriesClassification",
        series,
        num_input_channels=2,
        num_layers=2,
        d_model=16,
        mode="mix_channel",
        self_attn=True,
        self_attn_heads=2,
        norm_mlp="BatchNorm",
    ),
    "time-series-transformer": _of("TimeSeriesTransformerModel", past_and_future, FORECAST),
    "informer": _of("InformerModel", past_and_future, FORECAST, sampling_factor=100, distil=False),
    "decision-transformer": _of(
        "DecisionTransformerModel",
        trajectory,
        state_dim=5,
        act_dim=2,
        hidden_size=32,
        n_layer=2,
        n_head=4,
        max_ep_len=64,
    ),
    "perceiver-text": _of(
        "PerceiverForSequenceClassification",
        lambda seed: {"inputs": words(seed)["input_ids"], "attention_mask": mask(seed)},
        PERCEIVER,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
    ),
    "graph-transformer": Family(GraphTransformer, graph),
}


def timm_families() -> dict[str, Family]:
    """A few models of timm; none if timm (or torchvision, which it needs) cannot be imported."""
    if find_spec("timm") is None or find_spec("torchvision") is None:
        return {}
    try:
        import torchvision  # noqa: F401
    except RuntimeError:  # a build for another torch finds no operators, and fails where it describes their shapes
        sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")
    try:
        from timm import models
    except (ImportError, RuntimeError):
        return {}

    def picture(seed: int) -> Batch:
        return {"x": numbers(3, 3, 32, 32, seed=seed)}

    common: dict[str, Any] = {"img_size": 32, "num_classes": 5}
    vit: dict[str, Any] = {**common, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2}
    swin: dict[str, Any] = {**common, "embed_dim": 16, "depths": (2, 1), "num_heads": (2, 4), "window_size": 4}
    cnn: dict[str, Any] = {"num_classes": 5, "depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}
    return {
        "timm-vit": Family(lambda: models.VisionTransformer(**vit), picture),
        "timm-vit-registers": Family(
            lambda: models.VisionTransformer(**vit, reg_tokens=2, init_values=1e-5, qk_norm=True, global_pool="map"),
            picture,
        ),
        "timm-eva": Family(lambda: models.Eva(**vit, use_rot_pos_emb=True, swiglu_mlp=True), picture),
        "timm-swin": Family(lambda: models.SwinTransformer(**swin, patch_size=2), picture),
        "timm-swinv2": Family(lambda: models.SwinTransformerV2(**swin, patch_size=2), picture),
        "timm-mixer": Family(
            lambda: models.MlpMixer(**common, patch_size=8, embed_dim=32, num_blocks=2, mlp_ratio=(0.5, 2.0)), picture
        ),
        "timm-convnext": Family(lambda: models.ConvNeXt(**cnn, patch_size=2, use_grn=True), picture),
        "timm-resnet": Family(
            lambda: models.ResNet(models.resnet.Bottleneck, (1, 1, 1, 1), num_classes=5, channels=(4, 4, 8, 8)), picture
        ),
        "timm-mobilenetv3": Family(lambda: models.mobilenetv3_small_050(num_classes=5), picture),
    }


FAMILIES: dict[str, Family] = {
    **PLAIN,
    **ENCODERS,
    **DECODERS,
    **SEQUENCE_TO_SEQUENCE,
    **PICTURES,
    **PICTURES_AND_WORDS,
    **SOUNDS,
    **SERIES,
    **timm_families(),
}

UNEXPORTABLE: dict[str, Family] = {
    # GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1)
    "nn.TransformerDecoder-looks-at-mask": Family(lambda: PlainDecoder(causal=None), words_and_memory),
    # GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1)
    "longformer": _of("LongformerForSequenceClassification", words, TEXT, attention_window=4),
    # GuardOnDataDependentSymNode: Could not guard on data-dependent expression u0 < 27
    "reformer": _of(
        "ReformerModel",
        words,
        SPECIAL,
        hidden_size=32,
        num_attention_heads=4,
        attention_head_size=8,
        feed_forward_size=64,
        attn_layers=["local", "lsh"],
        axial_pos_embds=False,
        max_position_embeddings=64,
        local_attn_chunk_length=3,
        lsh_attn_chunk_length=3,
        num_buckets=2,
        hash_seed=0,
    ),
    # GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 0)
    "dbrx": _of(
        "DbrxForCausalLM",
        words,
        SPECIAL,
        d_model=32,
        n_heads=4,
        n_layers=2,
        max_seq_len=64,
        attn_config={"kv_n_heads": 2, "clip_qkv": 2.0, "rope_theta": 10000.0},
        ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
    ),
    # GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1)
    "fsmt": _of(
        "FSMTForConditionalGeneration",
        pairs,
        SEQUENCES,
        max_position_embeddings=64,
        src_vocab_size=VOCABULARY,
        tgt_vocab_size=VOCABULARY,
    ),
    # GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1)
    "led": _of(
        "LEDForConditionalGeneration",
        pairs,
        SEQUENCES,
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
        attention_window=4,
    ),
    # RuntimeError: _apply(): Couldn't swap Linear.weight
    "switch-transformers": _of(
        "SwitchTransformersForConditionalGeneration",
        pairs,
        T5,
        decoder_start_token_id=0,
        num_decoder_layers=2,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        num_experts=4,
    ),
    # RuntimeError: _apply(): Couldn't swap Linear.weight
    "nllb-moe": _of(
        "NllbMoeForConditionalGeneration",
        pairs,
        SEQUENCES,
        max_position_embeddings=64,
        num_experts=4,
        encoder_sparse_step=2,
        decoder_sparse_step=2,
    ),
    # RuntimeError: The size of tensor a (3) must match the size of tensor b (9) at non-singleton dimension 2
    "nystromformer": _of(
        "NystromformerForSequenceClassification",
        bare_words,
        TEXT,
        num_landmarks=3,
        segment_means_seq_len=TOKENS,
        conv_kernel_size=3,
    ),
    # UserError: Constraints violated (b)! You marked b as dynamic but your code specialized it to be a constant (3).
    "superpoint": _of(
        "SuperPointForKeypointDetection", image, encoder_hidden_sizes=[8, 8, 16, 16], decoder_hidden_size=16
    ),
    # UserError: Constraints violated (b)! You marked b as dynamic but your code specialized it to be a constant (3).
    "siglip2-vision": _of("Siglip2VisionModel", patches, BODY, patch_size=4, num_patches=16),
    # UserError: Constraints violated (b)! You marked b as dynamic but your code specialized it to be a constant (3).
    "clipseg": _of(
        "CLIPSegForImageSegmentation",
        words_and_image,
        text_config=TEXT,
        vision_config=VISION,
        projection_dim=16,
        extract_layers=[0, 1],
        reduce_dim=16,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=32,
    ),
    # UserError: Constraints violated (b)! You marked b as dynamic but your code specialized it to be a constant (3).
    "timesfm": _of(
        "TimesFmModelForPrediction",
        lambda seed: {"past_values": numbers(3, 32, seed=seed)},
        BODY,
        patch_length=8,
        context_length=32,
        horizon_length=8,
        head_dim=8,
        num_attention_heads=4,
    ),
    # GuardOnDataDependentSymNode: Could not guard on data-dependent expression u0 > 1
    "vilt": _of("ViltForQuestionAnswering", words_and_image, TEXT, VISION),
    # GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1)
    "encodec": _of(
        "EncodecModel",
        lambda seed: {"input_values": numbers(3, 1, 64, seed=seed)},
        hidden_size=16,
        num_filters=4,
        upsampling_ratios=[4, 2],
        codebook_size=16,
        num_lstm_layers=1,
        target_bandwidths=[48.0],
    ),
    # ValueError: Attention mask should be of size (s11, 1, 6, 6), but is torch.Size([s11, 1, 12, 12])
    "informer-distil": _of("InformerModel", past_and_future, FORECAST, sampling_factor=100),
    # RuntimeError: shape '[s11, 4, 12, 12]' is invalid for input of size 384*s11
    "autoformer": _of("AutoformerModel", past_and_future, FORECAST, moving_average=3, label_length=4),
    # UserError: Constraints violated (b)! You marked b as dynamic but your code specialized it to be a constant (3).
    "llava": _of(
        "LlavaForConditionalGeneration",
        words_with_image,
        text_config={**DECODER, "model_type": "llama"},
        vision_config={**VISION, "model_type": "clip_vision_model"},
        image_token_id=VOCABULARY - 1,
        vision_feature_layer=-1,
    ),
}
