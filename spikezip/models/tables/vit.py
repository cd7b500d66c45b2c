"""ViT: pre-norm; the sites are those of the paper's vision transformer."""

from spikezip.models.table import Table

VIT = Table(
    model_types=("vit",),
    input_layer="embeddings.patch_embeddings.projection",
    entry="embeddings",
    outputs=(
        "embeddings",
        "layers.*.layernorm_before",
        "layers.*.attention.o_proj",
        "layers.*.layernorm_after",
        "layers.*.mlp.fc2",
        "layernorm",
    ),
    activations=("layers.*.mlp.activation_fn",),
    attention="layers.*.attention",
    reads={
        "layers.*.attention.q_proj": "layers.*.layernorm_before",
        "layers.*.attention.k_proj": "layers.*.layernorm_before",
        "layers.*.attention.v_proj": "layers.*.layernorm_before",
        "layers.*.attention.o_proj": "layers.*.attention.o",
        "layers.*.mlp.fc1": "layers.*.layernorm_after",
        "layers.*.mlp.fc2": "layers.*.mlp.activation_fn",
        "?pooler.dense": "layernorm",
    },
    heads={"Model": {}, "ForImageClassification": {"?classifier": "layernorm"}},
)
