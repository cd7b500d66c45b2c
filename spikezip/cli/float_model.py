"""A float model, from the Hub or from a folder, by the class that its config names."""

from pathlib import Path
from typing import Any

import torch
import transformers

from spikezip.cli.folders import is_checkpoint, locate
from spikezip.cli.screen import one_line
from spikezip.errors import InputError
from spikezip.models.folders import CONFIG

TASKS = {
    "auto": None,
    "base": "AutoModel",
    "image-classification": "AutoModelForImageClassification",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "masked-lm": "AutoModelForMaskedLM",
    "causal-lm": "AutoModelForCausalLM",
}


def load_float(name: str, task: str = "auto") -> transformers.PreTrainedModel:
    """The model with its weights, in float32."""
    config = _config(name)
    try:
        return _model_class(config, task).from_pretrained(name, config=config, dtype=torch.float32).eval()
    except (OSError, ValueError) as error:
        raise InputError(f"{name} cannot be loaded: {one_line(error)}") from error


def build_from_config(name: str, task: str = "auto") -> transformers.PreTrainedModel:
    """The model with random weights: coverage looks at what it computes, not at its weights."""
    config = _config(name)
    cls = _model_class(config, task)
    return (cls.from_config(config) if hasattr(cls, "from_config") else cls(config)).eval()


def _config(name: str) -> Any:
    folder = locate(name)
    if is_checkpoint(folder):
        raise InputError(f"{name} was saved by spikezip and is quantized already; a float model is needed")
    if not (folder / CONFIG).is_file():
        raise InputError(f"{name} holds no {CONFIG}: it is not a transformers model")
    try:
        return transformers.AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{Path(name) / CONFIG} cannot be read: {one_line(error)}") from error


def _model_class(config: Any, task: str) -> Any:
    named = TASKS[task] or (config.architectures or [""])[0]
    return getattr(transformers, named, transformers.AutoModel)
