"""Float model → quantized network → spiking network, for any module. Those of transformers stay `PreTrainedModel`s."""

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spikezip.engines import network as spiking
from spikezip.errors import ConfigError
from spikezip.quant import network as quant
from spikezip.quant.config import QuantConfig


def quantize(
    model: nn.Module,
    config: QuantConfig | None = None,
    example: Mapping[str, Any] | Tensor | None = None,
    *,
    batch_dim: int = 0,
) -> Any:
    """A quantized network (QANN) of a float model, in `train()` or `eval()` as that is; the model stays untouched.

    Args:
        model: any module that `torch.export` can follow.
        config: levels, bits and placement; see `QuantConfig`.
        example: a batch whose names and shapes tell what the model takes. Hugging Face models need none where their
            configuration tells.
        batch_dim: the dimension of the example's tensors that counts samples; 1 for sequences with time first.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> list(quantize(model, QuantConfig(levels=16), example=torch.randn(2, 4)).sites)
        ['2.in']
    """
    if getattr(model, "kind", None) in ("qann", "snn"):
        raise ConfigError("this model is quantized already; start from the float model")
    if not isinstance(model, nn.Module):
        raise ConfigError(f"quantize takes a float model, not {type(model).__name__}")
    if _is_pretrained(model):
        from spikezip.models.huggingface import quantize_pretrained  # needs transformers, as such a model does

        return quantize_pretrained(model, config, example, batch_dim)
    return quant.quantize(model, config, example, batch_dim)


@torch.inference_mode(False)  # whose tensors could not be changed outside of it
def convert(qann: Any) -> Any:
    """The spiking network (SNN) of a quantized one, with integers of its own; the quantized network stays untouched."""
    if _is_pretrained(qann):
        from spikezip.models.huggingface import convert_pretrained

        return convert_pretrained(qann)
    return spiking.convert(qann)


def _is_pretrained(model: Any) -> bool:
    """Whether a model is one of transformers. If it is, transformers is imported already."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)
