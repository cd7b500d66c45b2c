"""Folders of models: where a name leads, what lies beside the weights, where a result may be written."""

import shutil
from pathlib import Path
from typing import Any

import spikezip
from spikezip import models
from spikezip.errors import CheckpointError, ConfigError
from spikezip.files import CERTIFICATE, MANIFEST
from spikezip.models.folders import CONFIG

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
SIDE_FILES = (
    *TOKENIZER_FILES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "preprocessor_config.json",
    "processor_config.json",
)


def locate(name: str) -> Path:
    """The folder of a model: here, or for a name on the Hub the local copy of all but its weights."""
    return models.locate(name, [CONFIG, MANIFEST, *SIDE_FILES])


def is_checkpoint(folder: Path) -> bool:
    """Whether spikezip saved this folder."""
    return (folder / MANIFEST).is_file()


def load(name: str, kind: str) -> Any:
    """The network saved under a name, which must be a "qann" or an "snn"."""
    folder = locate(name)
    if not is_checkpoint(folder):
        what = "a float model: run `spikezip quantize` on it first" if (folder / CONFIG).is_file() else "no model"
        raise CheckpointError(f"{name} holds no {MANIFEST}; it is {what}")
    model = spikezip.load(name)
    if model.kind != kind:
        article = {"qann": "a QANN", "snn": "an SNN"}
        raise CheckpointError(f"{name} holds {article[model.kind]}; here {article[kind]} is needed")
    return model


def check_target(folder: Path) -> None:
    """Refuse, before any work, to write over something that is not ours."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; the result is a folder")
    if (folder / CONFIG).is_file() and not is_checkpoint(folder):
        raise ConfigError(f"{folder} holds another model, which would be overwritten; choose another folder")


def save(model: Any, folder: Path, source: Path, compact: bool = True) -> None:
    """Save a network, with the tokenizer and image-processor files of the model it came from."""
    (folder / CERTIFICATE).unlink(missing_ok=True)  # it spoke of the network that is being replaced
    spikezip.save(model, folder, compact=compact)
    for name in SIDE_FILES:
        if (source / name).is_file() and source.resolve() != folder.resolve():
            shutil.copyfile(source / name, folder / name)
