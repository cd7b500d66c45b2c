"""Data as a model takes it: tokens, or pixels at its size and scale."""

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import signature
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spikezip.data import Pixels, tokenize
from spikezip.data.base import IMAGES, TEXT, Data, Split
from spikezip.data.tokens import positions
from spikezip.errors import ConfigError
from spikezip.training.cache import token_cache
from spikezip.training.folder import write_json
from spikezip.training.models import PREPROCESSOR, find_pixels, find_tokenizer
from spikezip.training.recipe import Recipe


@dataclass
class Inputs:
    """A dataset, made ready for one model, and what must lie beside a network that is trained on it."""

    data: Data
    tokenizer: Any = None
    pixels: Pixels | None = None

    def prepare(self, model: Any, recipe: Recipe, state: Any) -> None:
        """Bring the data to the form that this model takes."""
        settings = recipe.data
        if self.data.kind == TEXT:
            if getattr(self.data.train, "texts", None) is not None:
                self.tokenizer = self.tokenizer or find_tokenizer(recipe.model.path or model.config._name_or_path)
                room = positions(model.config)
                if settings.max_length is not None and settings.max_length > room:
                    raise ConfigError(f"data.max_length is {settings.max_length}, but the model has {room} positions")
                with state.main_process_first():
                    self.data = tokenize(
                        self.data,
                        self.tokenizer,
                        settings.max_length or room,
                        token_cache(),
                        types="token_type_ids" in signature(model.forward).parameters,
                    )
            return
        own = getattr(model.config, "image_size", None)
        takes_any = "swin" in str(model.config.model_type)
        if settings.image_size is not None and own not in (None, settings.image_size) and not takes_any:
            raise ConfigError(
                f"data.image_size is {settings.image_size}, but the model takes {own} pixels per side; set {own}, "
                "or start from a model of that size"
            )
        # A pretrained network goes on seeing pixels scaled as it has learned them.
        known = find_pixels(recipe.model.path)
        mean, std = (known.mean, known.std) if known is not None else (self.data.mean, self.data.std)
        if self.data.kind != IMAGES:
            mean, std = self.data.mean, self.data.std
        self.pixels = Pixels(settings.image_size or own, mean, std)

    def other_channels(self, model: PreTrainedModel) -> int | None:
        """The channels of the data, if the model takes another number: a 1×1 convolution then brings them together."""
        if self.data.kind == TEXT:
            return None
        channels = int(self.data.train[0]["pixel_values"].shape[0])
        return None if channels == getattr(model.config, "num_channels", channels) else channels

    def batches(
        self, split: Split, size: int, limit: int | None, device: Any, drawn_by: int | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """A split as the model takes it, with labels; with a seed `drawn_by`, samples drawn from all of it."""
        end = min(len(split), limit or len(split))
        order = range(end) if drawn_by is None else Random(drawn_by).sample(range(len(split)), end)
        for start in range(0, end, size):
            batch = split.__getitems__(order[start : start + size])
            moved = {k: v.to(device) for k, v in batch.items()}
            if self.pixels is not None:
                moved["pixel_values"] = self.pixels(moved["pixel_values"])
            yield moved

    def example(self, device: Any) -> dict[str, Tensor]:
        """Two samples without labels: their names and shapes say what a network of this data takes."""
        batch = next(self.batches(self.data.train, 2, 2, device))
        return {name: value for name, value in batch.items() if name != "labels"}

    @torch.no_grad()
    def accuracy(self, model: Any, split: Split, size: int = 256) -> float:
        model.eval()
        right = 0
        for batch in self.batches(split, size, None, model.device):
            labels = batch.pop("labels")
            right += int((model(**batch).logits.argmax(dim=-1) == labels).sum())
        return right / len(split)

    def save_beside(self, folder: Any) -> None:
        """Tokenizer and preprocessor files, so that the network is found with them."""
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)
        if self.pixels is not None:
            write_json(folder / PREPROCESSOR, self.pixels.to_json())
