"""Swin: windows, shifted windows, patch merging; the head reads the mean over tokens."""

from spikezip.models.table import Table

_BLOCK = "encoder.layers.*.blocks.*"

SWIN = Table(
    model_types=("swin",),
    input_layer="embeddings.patch_embeddings.projection",
    entry="embeddings.dropout",
    outputs=(
        "embeddings.dropout",
        f"{_BLOCK}.layernorm_before",
        f"{_BLOCK}.attention.o_proj",
        f"{_BLOCK}.layernorm_after",
        f"{_BLOCK}.mlp.fc2",
        "?encoder.layers.*.downsample.norm",
        "?encoder.layers.*.downsample.reduction",
        "layernorm",
    ),
    activations=(f"{_BLOCK}.mlp.activation_fn",),
    attention=f"{_BLOCK}.attention",
    reads={
        f"{_BLOCK}.attention.q_proj": f"{_BLOCK}.layernorm_before",
        f"{_BLOCK}.attention.k_proj": f"{_BLOCK}.layernorm_before",
        f"{_BLOCK}.attention.v_proj": f"{_BLOCK}.layernorm_before",
        f"{_BLOCK}.attention.o_proj": f"{_BLOCK}.attention.o",
        f"{_BLOCK}.mlp.fc1": f"{_BLOCK}.layernorm_after",
        f"{_BLOCK}.mlp.fc2": f"{_BLOCK}.mlp.activation_fn",
        "?encoder.layers.*.downsample.reduction": "encoder.layers.*.downsample.norm",
    },
    heads={"Model": {}, "ForImageClassification": {"?classifier": "in"}},
    constants=(f"{_BLOCK}.attention.relative_position_bias",),
)
