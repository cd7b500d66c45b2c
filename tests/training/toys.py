"""Small tasks that can be learned in seconds, and tiny models for them."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn

from spikezip.data.base import FRAMES, IMAGES, TEXT, Data, Split
from spikezip.data.images import Images
from spikezip.data.text import Texts
from spikezip.models.saved_config import load_pretrained
from spikezip.training import Progress, Trained, check, train

SIZE = 8  # pixels per side
CLASSES = ("top left", "top right", "bottom left", "bottom right")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MARKS = ["red", "green", "blue"]
FILLERS = ["a", "house", "by", "the", "sea", "was", "seen", "there"]
WORDS = [*SPECIAL, *MARKS, *FILLERS]


def patches(count: int, seed: int, channels: int = 3) -> tuple[Tensor, Tensor]:
    """Noise with a brighter patch; the class is the corner that it lies in."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, len(CLASSES), (count,), generator=generator)
    pixels = torch.randint(0, 120, (count, channels, SIZE, SIZE), generator=generator)
    half = SIZE // 2
    for corner in range(len(CLASSES)):
        rows, columns = (slice(half * side, half * side + half) for side in divmod(corner, 2))
        pixels[labels == corner, :, rows, columns] += 120
    return pixels.to(torch.uint8), labels


def images(train: int = 256, test: int = 96, noise: float = 0.0) -> Data:
    """`noise` is the share of training labels that are random."""
    pixels, labels = patches(train, seed=1)
    generator = torch.Generator().manual_seed(3)
    random = torch.randint(0, len(CLASSES), (train,), generator=generator)
    labels = torch.where(torch.rand(train, generator=generator) < noise, random, labels)
    held = Images(*patches(test, seed=2))
    half = (0.5,) * 3
    return Data("corners", IMAGES, CLASSES, Images(pixels, labels), held, held, note="made up", mean=half, std=half)


class Frames(Split):
    """Floats in 0 … 1, most of them 0, as frames of events are."""

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.pixels, self.labels = (pixels.float() - 100).clamp(min=0) / 155, labels

    def __getitems__(self, indices: Any) -> dict[str, Any]:
        chosen = torch.as_tensor(indices)
        return {"pixel_values": self.pixels[chosen], "labels": self.labels[chosen]}


def frames(train: int = 128, test: int = 48, channels: int = 4) -> Data:
    held = Frames(*patches(test, seed=2, channels=channels))
    return Data("events", FRAMES, CLASSES, Frames(*patches(train, 1, channels)), held, held, note="made up")


def sentences(count: int, seed: int) -> Texts:
    """Fillers with one colour among them; the class is the colour."""
    generator = torch.Generator().manual_seed(seed)

    def below(limit: int) -> int:
        return int(torch.randint(0, limit, (), generator=generator))

    texts, labels = [], []
    for _ in range(count):
        words = [FILLERS[below(len(FILLERS))] for _ in range(2 + below(5))]
        labels.append(below(len(MARKS)))
        words.insert(below(len(words) + 1), MARKS[labels[-1]])
        texts.append(" ".join(words))
    return Texts(texts, torch.tensor(labels))


def texts(train: int = 256, test: int = 64) -> Data:
    held = sentences(test, seed=2)
    return Data("colours", TEXT, tuple(MARKS), sentences(train, seed=1), held, held, note="made up")


def tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )


TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
VIT = {**TINY, "initializer_range": 0.2, "image_size": SIZE, "patch_size": 4, "num_labels": len(CLASSES)}


def vit(seed: int = 0, **settings: Any) -> Any:
    torch.manual_seed(seed)
    return transformers.ViTForImageClassification(transformers.ViTConfig(**{**VIT, **settings}))


def bert(seed: int = 0, **settings: Any) -> Any:
    torch.manual_seed(seed)
    described = {
        **TINY,
        "initializer_range": 0.2,
        "vocab_size": len(WORDS),
        "max_position_embeddings": 16,
        "num_labels": len(MARKS),
        **settings,
    }
    return transformers.BertForSequenceClassification(transformers.BertConfig(**described))


def stage(**settings: Any) -> dict[str, Any]:
    """A short training. Rates are high: the models are tiny."""
    return {"epochs": 1, "batch_size": 32, "learning_rate": 3e-3, "weight_decay": 0.0, **settings}


def run(model: Any, stages: dict[str, Any], data: Data, output: Path, tried: bool = True, **more: Any) -> Trained:
    """Carry out stages. Not `tried`: without quantizing a copy first, which is half the time of a run that is fine."""
    keywords = {key: more.pop(key) for key in ("tokenizer", "resume", "progress") if key in more}
    recipe = {"name": "toy", "stages": stages, **more}
    with nullcontext() if tried else patch.object(check, "_try_quantizing"):
        return train(model, recipe, data=data, output=output, cpu=True, **keywords)


def load(folder: Path) -> Any:
    """A quantized or spiking network that a run left."""
    return load_pretrained(folder)


class StopError(Exception):
    """Raised in the middle of a run."""


def stop_at(stage: str, step: int, act: Any) -> Any:
    """A watcher that acts once, at the end of this step of this stage."""
    acted: list[int] = []

    def watch(progress: Progress) -> None:
        if (progress.stage, progress.done) == (stage, step) and not acted:
            acted.append(step)
            act()

    return watch


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Every parameter and buffer, bit for bit."""
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
