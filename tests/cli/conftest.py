"""Tiny random models and their data, made once."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from shell import ok
from tokenizers import Tokenizer, models, pre_tokenizers, processors

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "a", "good", "bad", "film", "so", "very", "dull", "fine", "it", "was"]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two float models, their data, and their quantized and spiking networks."""
    home = tmp_path_factory.mktemp("cli")
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    vit = transformers.ViTConfig(**TINY, image_size=16, patch_size=8, num_labels=3, hidden_act="relu")
    transformers.ViTForImageClassification(vit).save_pretrained(home / "vit")
    (home / "vit" / "preprocessor_config.json").write_text(
        '{"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.2, 0.2]}'
    )
    images = rng.integers(0, 256, (10, 16, 16, 3), dtype=np.uint8)
    np.savez(home / "images.npz", x=images, y=rng.integers(0, 3, 10))

    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(home / "bert")
    bert = transformers.BertConfig(**TINY, vocab_size=len(WORDS), max_position_embeddings=12, num_labels=2)
    transformers.BertForSequenceClassification(bert).save_pretrained(home / "bert")
    lines = [f"{i % 2}\t{' '.join(rng.choice(WORDS[5:], rng.integers(1, 20)))}" for i in range(9)]
    (home / "dev.tsv").write_text("\n".join(["label\tsentence", *lines]) + "\n")

    ok("quantize", home / "vit", home / "vit-qann", "--data", home / "images.npz", "--levels", 16, "--site", "*.p=8")
    ok("convert", home / "vit-qann", home / "vit-snn")
    ok("quantize", home / "bert", home / "bert-qann", "--data", home / "dev.tsv", "--weight-bits", 16)
    ok("convert", home / "bert-qann", home / "bert-snn")
    return home
