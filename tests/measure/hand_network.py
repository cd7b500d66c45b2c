"""A spiking network small enough to count on paper: a ViT of two tokens and two channels, with ones for weights.

The class token starts as (3, 1) and the only patch as (1, 3); every product but the head passes its input on. A
LayerNorm of two numbers gives 1 to the larger, −1 to the smaller, 0 to equal ones. docs/energy.md goes through it.

    step                  1   2   3   4   5
    embeddings            4   2   2           codes (3, 1), (1, 3)
    layernorm_before          4               both start equal: nothing to say in step 1
    q, k, v, each             4
    p                     4   4   2   2       0.5 each at first; then the own token wins: 4, 0
    o                         2   2           ½·v, then ¾·v
    o_proj                    2   2
    layernorm_after           4
    activation_fn             2               ReLU lets the 1s through
    fc2                       2
    layernorm                 4               the head reads the first token: 2 of these
"""

from typing import Any

import torch
import transformers

import spikezip

SPIKES = {
    "embeddings": [4, 2, 2, 0, 0],
    "layers.0.layernorm_before": [0, 4, 0, 0, 0],
    "layers.0.attention.q": [0, 4, 0, 0, 0],
    "layers.0.attention.k": [0, 4, 0, 0, 0],
    "layers.0.attention.v": [0, 4, 0, 0, 0],
    "layers.0.attention.p": [4, 4, 2, 2, 0],
    "layers.0.attention.o": [0, 2, 2, 0, 0],
    "layers.0.attention.o_proj": [0, 2, 2, 0, 0],
    "layers.0.layernorm_after": [0, 4, 0, 0, 0],
    "layers.0.mlp.activation_fn": [0, 2, 0, 0, 0],
    "layers.0.mlp.fc2": [0, 2, 0, 0, 0],
    "layernorm": [0, 4, 0, 0, 0],
}


def make_hand_network(weight_bits: int | None = 8) -> Any:
    config = transformers.ViTConfig(
        hidden_size=2,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=2,
        image_size=2,
        patch_size=2,
        num_channels=1,
        num_labels=3,
        hidden_act="relu",
    )
    model = transformers.ViTForImageClassification(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layernorm" in name:
                continue  # weight 1, bias 0
            parameter.zero_()
            if parameter.shape == (2, 2):
                parameter.copy_(torch.eye(2))
        model.vit.embeddings.cls_token.copy_(torch.tensor([[[3.0, 1.0]]]))
        model.vit.embeddings.patch_embeddings.projection.bias.copy_(torch.tensor([1.0, 3.0]))
        model.classifier.weight.fill_(1.0)
    qann = spikezip.quantize(model, spikezip.QuantConfig(levels=8, weight_bits=weight_bits)).eval()
    for name in qann.sites:
        qann.set_scale(name, torch.tensor([0.25 if name.endswith(".p") else 1.0]))
    return spikezip.convert(qann)


IMAGE = torch.zeros(1, 1, 2, 2)
