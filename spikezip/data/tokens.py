"""Sentences to tokens, once, kept on disk."""

import hashlib
import json
import os
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spikezip.data.base import TEXT, Data, Split
from spikezip.data.text import Texts
from spikezip.errors import ConfigError, InputError

MULTIPLE = 8  # what lengths are rounded up to: few different shapes, and those that matrix units like
CHUNK = 10_000  # sentences per call of the tokenizer


@dataclass(frozen=True)
class Flat:
    """Sequences of unequal length, one behind the other: sequence i is `ids[offsets[i] : offsets[i + 1]]`."""

    ids: np.ndarray  # int32
    types: np.ndarray  # int8, as long as `ids`; empty where the tokenizer makes none
    offsets: np.ndarray  # int64


class Tokens(Split):
    """Tokenised sentences. A batch is padded to its longest one, rounded up to a multiple of 8.

    Example:
        >>> flat = Flat(np.array([5, 6, 7], np.int32), np.array([], np.int8), np.array([0, 2, 3]))
        >>> split = Tokens(flat, torch.tensor([1, 0]), pad=0, left=False, max_length=4)
        >>> split.__getitems__([0, 1])["input_ids"]
        tensor([[5, 6, 0, 0],
                [7, 0, 0, 0]])
    """

    def __init__(self, flat: Flat, labels: Tensor, *, pad: int, left: bool, max_length: int | None) -> None:
        self.labels, self.pad, self.left, self.max_length = labels, pad, left, max_length
        self.ids, self.types, self.offsets = (torch.from_numpy(part) for part in (flat.ids, flat.types, flat.offsets))

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Any]:
        chosen = torch.as_tensor(indices)
        starts, lengths = self.offsets[chosen], self.offsets[chosen + 1] - self.offsets[chosen]
        width = padded_length(int(lengths.max()), self.max_length)
        place = torch.arange(width) - (width - lengths[:, None] if self.left else 0)  # of a token in its sentence
        held = (place >= 0) & (place < lengths[:, None])
        where = torch.where(held, starts[:, None] + place, 0)
        batch = {
            "input_ids": torch.where(held, self.ids[where].long(), self.pad),
            "attention_mask": held.long(),
        }
        if len(self.types):
            batch["token_type_ids"] = torch.where(held, self.types[where].long(), 0)
        return batch | {"labels": self.labels[chosen]}


def padded_length(longest: int, max_length: int | None) -> int:
    """How long a batch is whose longest sentence has so many tokens.

    Example:
        >>> padded_length(5, None), padded_length(13, 14)
        (8, 14)
    """
    width = -(-longest // MULTIPLE) * MULTIPLE
    return width if max_length is None else min(width, max_length)


def positions(config: Any) -> int:
    """How many tokens a model has positions for. RoBERTa counts positions from behind the padding token's number.

    Example:
        >>> from transformers import RobertaConfig
        >>> positions(RobertaConfig())
        510
    """
    found = int(getattr(config, "max_position_embeddings", None) or 512)
    return found - (int(config.pad_token_id) + 1 if "roberta" in config.model_type else 0)


def tokenize(
    data: Data, tokenizer: Any, max_length: int | None = None, cache: Path | None = None, types: bool = True
) -> Data:
    """The dataset with tokens in place of its texts.

    Args:
        tokenizer: a tokenizer of transformers. Where it has no token for padding, its end-of-text token pads.
        max_length: longer sentences are cut: at most as many tokens as the model has positions for. None cuts nothing.
        types: whether to hand out `token_type_ids`, where the tokenizer makes them; not every model takes them.
        cache: a folder. Tokens are kept there under a name made from the texts, the tokenizer's state and
            `max_length`; a file that is damaged is made anew, with a warning.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = Tokenizer(models.WordLevel({"[PAD]": 0, "so": 1, "good": 2, "bad": 3}, unk_token="[PAD]"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
        >>> texts = Texts(["so good", "so so bad"], torch.tensor([1, 0]))
        >>> data = Data("mine", "text", ("negative", "positive"), texts, texts, texts, note="")
        >>> tokenize(data, tokenizer).train.__getitems__([0, 1])["input_ids"]
        tensor([[1, 2, 0, 0, 0, 0, 0, 0],
                [1, 1, 3, 0, 0, 0, 0, 0]])
    """
    if data.kind != TEXT:
        raise ConfigError(f"{data.name} holds {data.kind}, not text: there is nothing to tokenise")
    if max_length is not None and max_length < 1:
        raise ConfigError(f"max_length is {max_length}; it is at least 1, or None")
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if pad is None:
        raise ConfigError("the tokenizer has neither a padding token nor an end-of-text token: set its pad_token")
    state = _state(tokenizer)
    done: dict[int, Split] = {}  # by identity: where validation is test, it stays so
    for split in (data.train, data.validation, data.test):
        if id(split) in done:
            continue
        if not isinstance(split, Texts):
            raise ConfigError(f"{data.name} is tokenised already")
        flat = _cached(split.texts, tokenizer, max_length, state, cache)
        flat = flat if types else replace(flat, types=flat.types[:0])
        left = tokenizer.padding_side == "left"
        done[id(split)] = Tokens(flat, split.labels, pad=int(pad), left=left, max_length=max_length)
    return replace(data, train=done[id(data.train)], validation=done[id(data.validation)], test=done[id(data.test)])


# ---- tokens ----


def _flat(texts: Sequence[str], tokenizer: Any, max_length: int | None) -> Flat:
    ids: list[np.ndarray] = []
    types: list[np.ndarray] = []
    lengths: list[int] = []
    for start in range(0, len(texts), CHUNK):
        made = tokenizer(
            list(texts[start : start + CHUNK]),
            padding=False,
            truncation=max_length is not None,
            max_length=max_length,
            return_attention_mask=False,
        )
        lengths += [len(sequence) for sequence in made["input_ids"]]
        ids += [np.array(sequence, np.int32) for sequence in made["input_ids"]]
        types += [np.array(sequence, np.int8) for sequence in made.get("token_type_ids", [])]
    if 0 in lengths:
        where = lengths.index(0)
        raise InputError(f"the tokenizer makes no token of text {where}, {texts[where]!r}: leave it out")
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Flat(np.concatenate(ids), np.concatenate(types) if types else np.array([], np.int8), offsets)


def _state(tokenizer: Any) -> bytes:
    """All that decides which tokens a text becomes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str())
        state["truncation"] = state["padding"] = None  # these follow the latest call; `max_length` stands in the key
        files = {"tokenizer.json": json.dumps(state, sort_keys=True).encode()}
    else:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    about = [type(tokenizer).__name__, tokenizer.truncation_side, list(tokenizer.model_input_names)]
    return _digest(
        json.dumps(about).encode(), *(part for item in files.items() for part in (item[0].encode(), item[1]))
    )


def _digest(*parts: bytes) -> bytes:
    """One hash of several parts; their lengths count, so that no two lists of parts look alike."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.digest()


# ---- the cache ----


def _cached(texts: Sequence[str], tokenizer: Any, max_length: int | None, state: bytes, cache: Path | None) -> Flat:
    if cache is None:
        return _flat(texts, tokenizer, max_length)
    key = _digest(b"spikezip tokens 1", state, str(max_length).encode(), *(text.encode() for text in texts)).hex()
    file = Path(cache) / f"tokens-{key[:32]}.npz"
    if file.exists():
        try:
            return _load(file, key, len(texts))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            warnings.warn(f"the kept tokens {file} are damaged ({error}); they are made anew", stacklevel=3)
    flat = _flat(texts, tokenizer, max_length)
    _save(file, key, flat)
    return flat


def _load(file: Path, key: str, count: int) -> Flat:
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        flat = Flat(arrays["ids"], arrays["types"], arrays["offsets"])
        if str(arrays["key"]) != key:
            raise ValueError("it holds the tokens of something else")
    if len(flat.offsets) != count + 1 or flat.offsets[-1] != len(flat.ids) or len(flat.types) not in (0, len(flat.ids)):
        raise ValueError("its parts do not fit together")
    return flat


def _save(file: Path, key: str, flat: Flat) -> None:
    """Under another name first, then renamed: nobody ever sees half a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            np.savez(stream, ids=flat.ids, types=flat.types, offsets=flat.offsets, key=np.array(key))
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
