"""Reading a model's output class: every tensor in it, and the one that people mean by its result."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from spikezip.errors import SpikezipError


def primary(output: Any) -> Tensor:
    """The logits of an output; for models without a head the last hidden state.

    Example:
        >>> from transformers.modeling_outputs import ImageClassifierOutput
        >>> primary(ImageClassifierOutput(logits=torch.zeros(1, 2))).shape
        torch.Size([1, 2])
    """
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(output, name, None), Tensor):
            result: Tensor = getattr(output, name)
            return result
    if isinstance(getattr(output, "start_logits", None), Tensor):
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    raise SpikezipError(f"{type(output).__name__} holds neither logits nor a last hidden state")


def map_tensors(output: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same output with a function applied to every tensor in it."""
    if isinstance(output, Tensor):
        return function(output)
    if isinstance(output, ModelOutput):
        return type(output)(**{k: map_tensors(v, function) for k, v in output.items()})
    if isinstance(output, (tuple, list)):
        return type(output)(map_tensors(v, function) for v in output)
    return output


def tensors_in(output: Any) -> list[Tensor]:
    """Every tensor of an output, in the order in which `map_tensors` takes them.

    Example:
        >>> tensors_in((torch.zeros(2), None, [torch.ones(1)]))
        [tensor([0., 0.]), tensor([1.])]
    """
    found: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        found.append(x)
        return x

    map_tensors(output, keep)
    return found


def stack_outputs(outputs: list[Any]) -> Any:
    """Outputs of consecutive chunks of time `[n, B, …]` as one."""
    first = outputs[0]
    if len(outputs) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(outputs)
    if isinstance(first, ModelOutput):
        return type(first)(**{k: stack_outputs([o[k] for o in outputs]) for k in first})
    if isinstance(first, (tuple, list)):
        return type(first)(stack_outputs(list(values)) for values in zip(*outputs, strict=True))
    return first
