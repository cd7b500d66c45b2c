"""A start for vision transformers that learn from little data: attention that first looks at what is near.

Mimetic initialization (Trockman and Kolter, "Mimetic Initialization of Self-Attention Layers", ICML 2023): pretrained
ViTs have W_Q W_Kᵀ near the identity and W_V W_O near the negative identity. A network that starts so, with positions
in sines, mixes neighbouring patches from the first step; from plain random weights it has to find that out.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from spikezip.errors import ConfigError

# (share of noise, share of the identity), as in the paper.
QUERY_KEY = (0.7, 0.7)
VALUE_OUTPUT = (0.4, -0.4)


@torch.no_grad()
def initialize_mimetic(model: Any) -> None:
    """Give a ViT these weights; all others stay as they are.

    Example:
        >>> from transformers import ViTConfig, ViTForImageClassification
        >>> vit = ViTForImageClassification(ViTConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=2,
        ...     image_size=32, patch_size=8, intermediate_size=64))
        >>> initialize_mimetic(vit)
        >>> attention = vit.vit.layers[0].attention
        >>> product = attention.o_proj.weight @ attention.v_proj.weight
        >>> -0.5 < float(product.detach().diagonal().mean()) < -0.3
        True
    """
    attentions = [m for m in model.modules() if all(hasattr(m, f"{name}_proj") for name in "qkvo")]
    embeddings: Any = getattr(model.base_model, "embeddings", None)
    positions = getattr(embeddings, "position_embeddings", None)
    if not attentions or not isinstance(positions, nn.Parameter):
        raise ConfigError(
            f"model.initialization: mimetic is for ViTs with learned positions, not {type(model).__name__}; set null"
        )
    for attention in attentions:
        _set_attention(attention, model.config.num_attention_heads)
    tokens, width = positions.shape[1:]
    side = math.isqrt(tokens - 1)
    if side * side != tokens - 1 or width % 4:
        raise ConfigError(
            f"model.initialization: mimetic needs square images and a hidden_size that 4 divides, not {tokens - 1} "
            f"patches of {width}"
        )
    positions[0, 1:] = waves(side, width)
    patches = embeddings.patch_embeddings.projection.weight
    nn.init.trunc_normal_(patches, std=patches[0].numel() ** -0.5)  # what is seen then weighs as much as where


def _set_attention(attention: Any, heads: int) -> None:
    width: int = attention.q_proj.weight.shape[1]
    size = width // heads
    for head in range(heads):
        left, values, right = torch.linalg.svd(_near_identity(width, *QUERY_KEY))
        root = values[:size].sqrt()[:, None]
        rows = slice(head * size, (head + 1) * size)
        attention.q_proj.weight[rows] = root * left.T[:size]
        attention.k_proj.weight[rows] = root * right[:size]
    left, values, right = torch.linalg.svd(_near_identity(width, *VALUE_OUTPUT))
    root = values.sqrt()
    attention.v_proj.weight.copy_(root[:, None] * left.T)
    attention.o_proj.weight.copy_(right.T * root)


def _near_identity(width: int, noise: float, identity: float) -> Tensor:
    return noise * torch.randn(width, width) / math.sqrt(width) + identity * torch.eye(width)


def waves(side: int, width: int) -> Tensor:
    """Positions of side × side patches: sines and cosines of row and column, at `width` / 4 wavelengths each.

    Example:
        >>> waves(4, 8).shape
        torch.Size([16, 8])
    """
    rates = 10000.0 ** -torch.linspace(0, 1, width // 4)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    angles = [place.flatten()[:, None] * rates for place in (rows, columns)]
    return torch.cat([function(angle) for angle in angles for function in (torch.sin, torch.cos)], dim=1)
