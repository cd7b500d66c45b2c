"""A batch for a Hugging Face model, made up from its configuration.

Nothing here imports transformers: it reads configurations and signatures.
"""

import inspect
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor

from spikezip.errors import ConfigError

# Sizes differ from one another and from usual widths, so that capture never takes one for another.
SAMPLES = 2
_TOKENS, _DECODED, _REGIONS, _MOMENTS = 9, 6, 4, 7
_PADDING = 3  # tokens of padding at the end of the second sample
_IMAGE = 224  # for networks that take any size, which a program does not
_FEATURES = 25  # frames that a speech model gets
_VOCABULARY = ("vocab_size", "src_vocab_size", "tgt_vocab_size")
_CHOICES = 4  # texts a sample where one of them is to be chosen; a program takes as many as its example has
_WAVE = 4000  # samples of sound where the configuration does not tell the stride


def example_inputs(model: Any) -> dict[str, Tensor]:
    """A batch of two for a model, for `quantize` and `capture`: its names and shapes matter, its values do not.

    Text comes with padding and with all optional inputs that a tokenizer gives. Images have the size of the
    configuration, or 224 where it has none.

    Example:
        >>> import transformers
        >>> config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> {k: tuple(v.shape) for k, v in example_inputs(transformers.BertModel(config)).items()}
        {'input_ids': (2, 9), 'attention_mask': (2, 9), 'token_type_ids': (2, 9)}
    """
    parameters = inspect.signature(type(model).forward).parameters
    maker = _Maker(model, tuple(parameters))
    found = {}
    for name in parameters:
        value = maker.make(name)
        if value is not None:
            found[name] = value
    needed = [name for name, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    missing = [name for name in needed if name != "self" and name not in found]
    if missing or not found:
        what = ", ".join(missing or [model.main_input_name])
        raise ConfigError(
            f"{type(model).__name__} takes {what}, whose shape its configuration does not tell: {_REMEDY}"
        )
    if type(model).__name__.endswith("ForMultipleChoice"):  # several texts a sample
        found = {k: v[:, None].expand(-1, _CHOICES, *v.shape[1:]).clone() for k, v in found.items()}
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return {k: v.to(model.device, dtype if v.is_floating_point() else v.dtype) for k, v in found.items()}


_REMEDY = "pass example=batch, a batch as the model takes it"


class _Maker:
    """Makes inputs by name. A method `input_NAME` makes NAME, or gives None where the model needs none."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        self.model, self.names = model, names
        self.configs = list(_nested(model.config))
        self.random = torch.Generator().manual_seed(0)

    def make(self, name: str) -> Tensor | None:
        method: Callable[[], Tensor | None] | None = getattr(self, f"input_{name}", None)
        if method is not None:
            return method()
        return self.noise(*_SHAPES[name](self)) if name in _SHAPES else None

    # --- what the configuration says

    def get(self, *names: str, default: Any = None) -> Any:
        """The first field that the configuration, or one nested in it, has under one of these names."""
        for config in self.configs:
            for name in names:
                value = getattr(config, name, None)
                if value is not None:
                    return value
        return default

    def need(self, *names: str) -> Any:
        value = self.get(*names)
        if value is None:
            raise ConfigError(
                f"{type(self.model).__name__} has no {' or '.join(names)} in its configuration: {_REMEDY}"
            )
        return value

    @property
    def text(self) -> bool:
        return "input_ids" in self.names and self.get(*_VOCABULARY) is not None

    # --- values

    def noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random)

    def whole(self, most: int, *shape: int, least: int = 0) -> Tensor:
        return torch.randint(least, max(most, least + 1), shape, generator=self.random)

    @property
    def vocabulary(self) -> int:
        """The size of the smallest one."""
        self.need(*_VOCABULARY)
        found = (getattr(config, name, None) for config in self.configs for name in _VOCABULARY)
        return min(size for size in found if isinstance(size, int))

    def ids(self, length: int) -> Tensor:
        """Words from the middle of the smallest vocabulary: special ones tend to stand at the ends."""
        size = self.vocabulary
        return self.whole(max(size * 3 // 4, 1), SAMPLES, length, least=size // 4)

    def mask(self, length: int, padding: int = _PADDING) -> Tensor:
        lengths = torch.tensor([length, max(length - padding, 1)])
        return (torch.arange(length) < lengths[:, None]).long()

    # --- text

    @property
    def tokens(self) -> int:
        most: int = self.get("max_position_embeddings", "n_positions", "max_seq_len", default=_TOKENS)
        return min(_TOKENS, most) if most > 0 else _TOKENS

    @property
    def image_tokens(self) -> int:
        """How many tokens stand for the image, where a model puts it among the words."""
        if "pixel_values" not in self.names or self.get("image_token_id", "image_token_index") is None:
            return 0
        height, width = self.image_size
        patch = _pair(self.need("patch_size"))
        return (height // patch[0]) * (width // patch[1])

    def input_input_ids(self) -> Tensor | None:
        if not self.text:
            return None
        ids, mask = self.ids(self.tokens), self.mask(self.tokens)
        end = _first(self.get("eos_token_id"))
        if end is not None and end < self.vocabulary:  # some heads read the end of the sentence
            ids[torch.arange(SAMPLES), mask.sum(1) - 1] = end
        pad = _first(self.get("pad_token_id", default=0))
        ids = ids.masked_fill(mask == 0, pad if 0 <= pad < self.vocabulary else 0)
        image = torch.full((SAMPLES, self.image_tokens), self.get("image_token_id", "image_token_index", default=0))
        return torch.cat([image, ids], 1)

    def input_attention_mask(self) -> Tensor | None:
        if self.text:
            return torch.cat([torch.ones(SAMPLES, self.image_tokens).long(), self.mask(self.tokens)], 1)
        if "states" in self.names:
            return self.mask(_MOMENTS)
        for name in ("input_values", "input_features"):
            sound = self.make(name) if name in self.names else None
            # Spectrograms of a fixed length have no padding; for most models neither has [batch, bands, time].
            if sound is not None and (sound.ndim == 2 or (sound.ndim == 3 and self._time_first(name))):
                return self.mask(sound.shape[1], sound.shape[1] // 3)
        return None

    def input_token_type_ids(self) -> Tensor | None:
        sizes = self.get("type_vocab_sizes")
        if sizes is not None:
            return torch.stack([self.whole(size, SAMPLES, self.tokens) for size in sizes], -1)
        # Models without this field read token types from the table of words, where zero is not neutral.
        size = self.get("type_vocab_size")
        return None if size is None or not self.text else self.whole(max(size, 1), SAMPLES, self.tokens)

    def input_position_ids(self) -> Tensor | None:
        # Generation gives positions, since padding stands on the left there. Elsewhere models count by themselves.
        decoder = self.model.can_generate() and not self.get("is_encoder_decoder")
        if not decoder or not self.text or "pixel_values" in self.names:
            return None
        return torch.arange(self.tokens).repeat(SAMPLES, 1)

    def input_decoder_input_ids(self) -> Tensor | None:
        if not self.get("is_encoder_decoder"):
            return None
        ids = self.ids(_DECODED)
        start = self.get("decoder_start_token_id", "bos_token_id")
        ids[:, 0] = ids[:, 0] if start is None else start
        return ids

    def input_bbox(self) -> Tensor | None:
        size, most = self.get("dim_bbox", default=4), self.get("max_2d_position_embeddings")
        corner = torch.rand(SAMPLES, self.tokens, size // 2, generator=self.random) / 2
        box = torch.cat([corner, corner + 0.4], -1)
        return box if most is None else (box * (most - 1)).long()

    # --- images

    @property
    def image_size(self) -> tuple[int, int]:
        size = self.get("image_size", "input_size", default=_IMAGE)
        return (size["height"], size["width"]) if isinstance(size, dict) else _pair(size)

    def input_pixel_values(self) -> Tensor:
        channels = self.get("num_channels", default=3)
        # The configuration of a reader of anything, whose main input is `inputs`, tells of videos though it has none.
        frames = None if self.model.main_input_name == "inputs" else self.get("num_frames", "frames_per_clip")
        shape = (SAMPLES,) if frames is None else (SAMPLES, frames)
        return self.noise(*shape, channels, *self.image_size)

    def input_pixel_values_videos(self) -> Tensor:
        return self.noise(SAMPLES, self.need("num_frames", "frames_per_clip"), 3, *self.image_size)

    def input_pixel_mask(self) -> Tensor:
        return torch.ones(SAMPLES, *self.image_size).long()

    def input_noise(self) -> Tensor | None:
        if "pixel_values" not in self.names:
            return None
        sides = zip(self.image_size, _pair(self.need("patch_size")), strict=True)
        return self.noise(SAMPLES, prod(side // patch for side, patch in sides))

    # --- sound

    def _time_first(self, name: str) -> bool:
        return name == "input_features" and not self._is_spectrogram_of_fixed_length()

    def _is_spectrogram_of_fixed_length(self) -> bool:
        widths = self.get("input_feat_per_channel", "feature_projection_input_dim")
        return self.get("max_source_positions") is not None and widths is None

    def input_input_values(self) -> Tensor:
        if self.get("num_mel_bins") is not None and self.get("max_length") is not None and self.get("time_stride"):
            return self.noise(SAMPLES, self.need("max_length"), self.need("num_mel_bins"))
        strides = self.get("downsampling_ratios", "upsampling_ratios")
        if strides is not None:
            return self.noise(SAMPLES, self.get("audio_channels", default=1), 8 * prod(strides))
        strides = self.get("conv_stride")
        return self.noise(SAMPLES, _FEATURES * prod(strides) if isinstance(strides, (tuple, list)) else _WAVE)

    def input_input_features(self) -> Tensor:
        spectrum = self.get("spec_size")
        if spectrum is not None:  # folded into a square
            bands = self.need("num_mel_bins")
            return self.noise(SAMPLES, 1, spectrum * spectrum // bands, bands)
        if self._is_spectrogram_of_fixed_length():
            return self.noise(SAMPLES, self.need("num_mel_bins"), 2 * self.need("max_source_positions"))
        width = self.get("feature_projection_input_dim")
        if width is None and self.get("input_feat_per_channel") is not None:
            width = self.need("input_feat_per_channel") * self.get("input_channels", default=1)
        width = self.need("num_mel_bins", "feature_size") if width is None else width
        return self.noise(SAMPLES, _FEATURES + 7, width)

    # --- series

    @property
    def past(self) -> tuple[int, ...]:
        length = self.need("context_length") + max(self.get("lags_sequence", default=[0]))
        channels = self.get("num_input_channels")
        if channels is None:
            channels = self.get("input_size", default=1)
            return (SAMPLES, length) if channels == 1 else (SAMPLES, length, channels)
        return SAMPLES, length, channels

    @property
    def future(self) -> tuple[int, ...]:
        return SAMPLES, self.need("prediction_length"), *self.past[2:]

    def input_past_observed_mask(self) -> Tensor | None:
        return torch.ones(self.past) if self.get("lags_sequence") else None

    def input_future_values(self) -> Tensor | None:
        return self.noise(*self.future) if self.get("lags_sequence") else None  # else they are labels

    def input_static_categorical_features(self) -> Tensor | None:
        count = self.get("num_static_categorical_features", default=0)
        return torch.zeros(SAMPLES, count).long() if count else None

    def input_static_real_features(self) -> Tensor | None:
        count = self.get("num_static_real_features", default=0)
        return self.noise(SAMPLES, count) if count else None

    def input_timesteps(self) -> Tensor | None:
        return torch.arange(_MOMENTS).repeat(SAMPLES, 1) if "states" in self.names else None


# Inputs of plain numbers: name → shape.
_SHAPES: dict[str, Callable[[_Maker], tuple[int, ...]]] = {
    "past_values": lambda m: m.past,
    "past_time_features": lambda m: (*m.past[:2], m.need("num_time_features")),
    "future_time_features": lambda m: (*m.future[:2], m.need("num_time_features")),
    "states": lambda m: (SAMPLES, _MOMENTS, m.need("state_dim")),
    "actions": lambda m: (SAMPLES, _MOMENTS, m.need("act_dim")),
    "rewards": lambda m: (SAMPLES, _MOMENTS, 1),
    "returns_to_go": lambda m: (SAMPLES, _MOMENTS, 1),
    "spectrogram": lambda m: (SAMPLES, _FEATURES, m.need("model_in_dim", "num_mel_bins")),
    "visual_embeds": lambda m: (SAMPLES, _REGIONS, m.need("visual_embedding_dim")),
    "visual_feats": lambda m: (SAMPLES, _REGIONS, m.need("visual_feat_dim")),
    "visual_pos": lambda m: (SAMPLES, _REGIONS, m.need("visual_pos_dim")),
}


def _nested(config: Any) -> Iterator[Any]:
    """A configuration and those inside it, outer ones first."""
    waiting = [config]
    while waiting:
        config = waiting.pop(0)
        yield config
        waiting += [value for value in vars(config).values() if hasattr(value, "model_type")]


def _pair(size: Any) -> tuple[int, int]:
    """Height and width, given as one number or as a sequence that ends in both."""
    if isinstance(size, int):
        return size, size
    return (size[0], size[0]) if len(size) == 1 else (size[-2], size[-1])


def _first(token: Any) -> Any:
    return token[0] if isinstance(token, (list, tuple)) else token
