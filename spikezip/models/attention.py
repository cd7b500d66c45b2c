"""The attention function that transformers calls: it hands over to the `sesa` child of the calling module."""

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from spikezip.errors import CoverageError

NAME = "spikezip"
CHILD = "sesa"

# Arguments that change what attention computes and that our attention does not know.
_UNSUPPORTED = ("softcap", "s_aux", "head_mask")


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention with sites, in the form that `AttentionInterface` asks for."""
    sesa = getattr(module, CHILD, None)
    if sesa is None:
        raise CoverageError(f"{type(module).__name__} calls attention, but the model's table gives it no sites")
    given = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if given:
        raise CoverageError(f"{type(module).__name__} asks for {', '.join(given)}, which has no spiking form here")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    groups = query.shape[1] // key.shape[1]
    result: tuple[Tensor, Tensor] = sesa(query, key, value, attention_mask, scaling, groups, dropout)
    return result


def register() -> None:
    """Make the function known to transformers. Without the mask function beside it, masks would be dropped silently."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, eager_mask)


register()
