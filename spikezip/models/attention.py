"""The attention function that transformers calls: it hands over to the `sesa` child of the calling module."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

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
) -> tuple[Tensor, Tensor | None]:
    """Attention with sites, in the form that `AttentionInterface` asks for."""
    sesa = getattr(module, CHILD, None)
    if sesa is None:
        raise CoverageError(f"{type(module).__name__} calls attention, but the model's table gives it no sites")
    given = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if given:
        raise CoverageError(f"{type(module).__name__} asks for {', '.join(given)}, which has no spiking form here")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    groups = query.shape[1] // key.shape[1]
    asked = kwargs.get("output_attentions")
    asked = getattr(getattr(module, "config", None), "output_attentions", False) if asked is None else asked
    result: tuple[Tensor, Tensor | None] = sesa(
        query, key, value, attention_mask, scaling, groups, dropout, bool(asked)
    )
    return result


def mask(*args: Any, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Tensor | None:
    """The mask that eager attention adds: 0 where a token may be seen, the lowest number where not.

    Nothing here waits for a GPU: whether anything is padded at all is not looked for, and no constant is sent there.
    """
    if kwargs.get("attention_mask") is not None:
        kwargs["allow_is_bidirectional_skip"] = False
    elif kwargs.get("allow_is_bidirectional_skip") and kwargs.get("local_size") is None:
        return None  # transformers makes a mask of ones while a graph is recorded
    seen: Tensor | None = sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})
    if seen is None:
        return None
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)


def register() -> None:
    """Make the functions known to transformers. Without one for masks, masks would be dropped silently."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


register()
