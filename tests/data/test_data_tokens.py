"""Tokenisation: padding, cutting, and the tokens kept on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from spikezip.data import Data, tokenize
from spikezip.data.images import Images
from spikezip.data.text import Texts
from spikezip.errors import ConfigError, InputError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(40))]
SENTENCES = ["w1 w2 w3", "w4", " ".join(f"w{number}" for number in range(12)), "w5 w6", "nothing w7"]


def make_tokenizer(words: list[str] = WORDS, special: bool = True, **settings: Any) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=made, **({"pad_token": "[PAD]"} | settings))


def make_data(texts: list[str] = SENTENCES) -> Data:
    train = Texts(texts, torch.arange(len(texts)) % 2)
    test = Texts(texts[:2], torch.tensor([1, 0]))
    return Data("mine", "text", ("a", "b"), train, test, test, note="")


def test_a_batch_is_what_the_tokenizer_makes_of_it() -> None:
    tokenizer = make_tokenizer(model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    tokens = tokenize(make_data(), tokenizer, max_length=64)
    assert tokens.validation is tokens.test
    for indices, width in (([0, 1], 8), ([2], 16), ([4, 2, 3], 16)):
        batch = tokens.train.__getitems__(indices)
        texts = [SENTENCES[index] for index in indices]
        expected = tokenizer(texts, padding="max_length", max_length=width, return_tensors="pt")
        assert set(batch) == {"input_ids", "attention_mask", "token_type_ids", "labels"}
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            assert torch.equal(batch[name], expected[name])
        assert batch["labels"].tolist() == [index % 2 for index in indices]


def test_types_are_left_out_for_models_that_do_not_take_them() -> None:
    tokenizer = make_tokenizer(model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    batch = tokenize(make_data(), tokenizer, types=False).train.__getitems__([0, 1])
    assert set(batch) == {"input_ids", "attention_mask", "labels"}


def test_longer_sentences_are_cut_and_the_width_never_exceeds_max_length() -> None:
    tokenizer = make_tokenizer(model_input_names=["input_ids", "attention_mask"])
    batch = tokenize(make_data(), tokenizer, max_length=5).train.__getitems__([1, 2])
    assert batch["input_ids"].tolist() == [[2, 8, 3, 0, 0], [2, 4, 5, 6, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert "token_type_ids" not in batch
    assert tokenize(make_data(), tokenizer, max_length=None).train.__getitems__([2])["input_ids"].shape == (1, 16)


def test_padding_on_the_left_and_with_the_end_token() -> None:
    tokenizer = make_tokenizer(special=False, padding_side="left", pad_token=None, eos_token="[SEP]")
    batch = tokenize(make_data(), tokenizer, max_length=3).train.__getitems__([1, 0])
    assert batch["input_ids"].tolist() == [[3, 3, 8], [5, 6, 7]]
    assert batch["attention_mask"].tolist() == [[0, 0, 1], [1, 1, 1]]
    assert tokenizer.pad_token is None


def test_one_sample() -> None:
    sample = tokenize(make_data(), make_tokenizer(), max_length=8).train[3]
    assert sample["input_ids"].tolist() == [2, 9, 10, 3, 0, 0, 0, 0]
    assert sample["labels"] == 1


class Counting:
    """A tokenizer that counts how often it is called."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.calls = tokenizer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, *args: Any, **settings: Any) -> Any:
        self.calls += 1
        return self.tokenizer(*args, **settings)


def calls(cache: Path, data: Data | None = None, tokenizer: Any = None, max_length: int | None = 16) -> int:
    counting = Counting(tokenizer or make_tokenizer())
    found = tokenize(data or make_data(), counting, max_length, cache)
    fresh = tokenize(data or make_data(), counting.tokenizer, max_length)
    everything = range(len(found.train))
    for name, value in fresh.train.__getitems__(everything).items():
        assert torch.equal(found.train.__getitems__(everything)[name], value)
    return counting.calls


def test_the_cache_is_hit_only_by_the_same(tmp_path: Path) -> None:
    assert calls(tmp_path) == 2
    assert calls(tmp_path) == 0
    assert calls(tmp_path, max_length=4) == 2
    assert calls(tmp_path, max_length=None) == 2
    assert calls(tmp_path, data=make_data([*SENTENCES[:-1], "w9"])) == 1  # the test sentences are known
    assert calls(tmp_path, data=make_data(["w1 w2", "w3", *SENTENCES])) == 2
    assert calls(tmp_path, tokenizer=make_tokenizer([*WORDS[:4], *reversed(WORDS[4:])])) == 2
    assert calls(tmp_path, tokenizer=make_tokenizer(special=False)) == 2
    used = make_tokenizer()
    used(["w1"], truncation=True, max_length=2, padding="max_length")  # leaves its settings in the tokenizer
    assert calls(tmp_path, tokenizer=used) == 0
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("damage", ["cut", "empty", "bytes", "other", "parts"])
def test_a_damaged_cache_is_made_anew_and_said(tmp_path: Path, damage: str) -> None:
    assert calls(tmp_path) == 2
    for file in tmp_path.iterdir():
        raw = file.read_bytes()
        if damage == "cut":
            file.write_bytes(raw[: len(raw) // 2])
        elif damage == "empty":
            file.write_bytes(b"")
        elif damage == "bytes":
            where = raw.index(b"\x93NUMPY") + 128
            file.write_bytes(raw[:where] + bytes([raw[where] ^ 1]) + raw[where + 1 :])
        else:
            with np.load(file) as arrays:
                held = dict(arrays)
            held |= {"key": np.array("other")} if damage == "other" else {"offsets": held["offsets"][:-1]}
            np.savez(file, **held)
    with pytest.warns(UserWarning, match=r"tokens-.*\.npz are damaged .*made anew"):
        assert calls(tmp_path) == 2
    assert calls(tmp_path) == 0


def test_errors() -> None:
    images = Images(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.tensor([0]))
    with pytest.raises(ConfigError, match="mine holds images, not text"):
        tokenize(Data("mine", "images", ("a",), images, images, images, note=""), make_tokenizer())
    with pytest.raises(ConfigError, match="max_length is 0"):
        tokenize(make_data(), make_tokenizer(), 0)
    with pytest.raises(ConfigError, match="neither a padding token nor an end-of-text token"):
        tokenize(make_data(), make_tokenizer(pad_token=None))
    with pytest.raises(InputError, match="no token of text 1, ''"):
        tokenize(make_data(["w1", ""]), make_tokenizer(special=False))
    with pytest.raises(ConfigError, match="mine is tokenised already"):
        tokenize(tokenize(make_data(), make_tokenizer()), make_tokenizer())
