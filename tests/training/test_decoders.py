"""Decoders, scales per channel, and other weights than 8 bits go through all stages."""

from pathlib import Path
from typing import Any

import pytest
import torch
import toys
import transformers

WORDS = len(toys.WORDS)


def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=16,
        n_layer=1,
        n_head=2,
        vocab_size=WORDS,
        n_positions=16,
        num_labels=3,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        initializer_range=0.2,
    )
    return transformers.GPT2ForSequenceClassification(config)


def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        vocab_size=WORDS,
        max_position_embeddings=16,
        num_labels=3,
        pad_token_id=0,
        initializer_range=0.2,
    )
    return transformers.LlamaForSequenceClassification(config)


CASES = [
    (gpt2, {"weight_bits": 8, "embedding_bits": 8, "sites": {"*ln_*": {"per_channel": True}}}),
    (gpt2, {"weight_bits": 16}),
    (llama, {"weight_bits": 8, "sites": {"*norm*": {"per_channel": True}}}),
    (llama, {"weight_bits": None}),
]


@pytest.mark.parametrize(("make", "settings"), CASES, ids=["gpt2-channels", "gpt2-16", "llama-channels", "llama-float"])
def test_all_stages(make: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    stages = {
        "relu": toys.stage(epochs=8),
        "quantize": {"levels": 16, **settings},
        "qat": toys.stage(epochs=2, distill={}, dropout=0.0),
        "convert": True,
        "verify": {},
    }
    result = toys.run(make(), stages, toys.texts(128, 32), tmp_path / "run", tokenizer=toys.tokenizer())
    wide = [name for name, site in result.qann.sites.items() if site.by_channel]
    assert bool(wide) == ("sites" in settings)
    assert result.metrics["qann"]["accuracy"] > 0.4  # a third is chance
    if settings["weight_bits"] is not None:  # float weights in float32 promise nothing
        assert result.certificate is not None
        assert result.certificate.exact
        assert result.metrics["qat"]["grid_agreement"] == 1.0
