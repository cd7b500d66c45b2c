"""The command line, run as a user would."""

from pathlib import Path

import transformers
from typer.testing import CliRunner, Result

from spikezip.cli.app import app


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def ok(*args: object) -> str:
    result = run(*args)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def fails(*args: object) -> str:
    """Exit code 2 and one line on stderr, without a traceback; returns the line."""
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: "), result.stderr
    assert result.stderr.count("\n") == 1
    return result.stderr


def save_longformer(folder: Path) -> None:
    """The config of a model whose shapes depend on values: torch.export cannot follow it."""
    transformers.LongformerConfig(
        architectures=["LongformerForSequenceClassification"], attention_window=4, hidden_size=16,
        num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=40, max_position_embeddings=32,
    ).save_pretrained(folder)  # fmt: skip
