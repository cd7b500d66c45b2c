"""A batch as a model takes it: a dict of inputs, or the main input alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spikezip.errors import InputError

Batch: TypeAlias = Mapping[str, Any] | Tensor

LABELS = ("labels", "label", "start_positions", "end_positions")


@dataclass(frozen=True)
class Prepared:
    """Inputs on the model's device, without labels; the number of samples; and the labels, apart."""

    inputs: dict[str, Any]
    size: int
    labels: dict[str, Any]


def prepare(model: PreTrainedModel, batch: Batch) -> Prepared:
    """Check a batch and bring it to the model's device."""
    if isinstance(batch, Tensor):
        batch = {model.main_input_name: batch}
    if not isinstance(batch, Mapping) or not batch:
        raise InputError(f"a batch is a tensor or a dict of model inputs, not {type(batch).__name__}")
    device = model.device
    inputs = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}
    labels = {k: inputs.pop(k) for k in LABELS if k in inputs}
    main = next((inputs[k] for k in (model.main_input_name, "inputs_embeds") if inputs.get(k) is not None), None)
    if not isinstance(main, Tensor) or main.ndim == 0:
        raise InputError(f"the batch holds no {model.main_input_name!r} tensor; it has {', '.join(map(str, batch))}")
    size = main.shape[0]
    if main.numel() == 0:
        raise InputError(f"the batch is empty: {model.main_input_name} has shape {tuple(main.shape)}")
    for name, value in inputs.items():
        if not isinstance(value, Tensor):
            continue
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(f"{name} holds NaN or infinite values; nothing was run")
        if value.ndim and value.shape[0] not in (1, size):
            raise InputError(f"{name} has {value.shape[0]} rows, but {model.main_input_name} has {size}")
    return Prepared(inputs, size, labels)
