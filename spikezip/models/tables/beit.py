"""BEiT: ViT with relative position biases; `lambda_1` and `lambda_2` scale the branches before the residual sum."""

from dataclasses import replace

from spikezip.models.tables.vit import VIT

BEIT = replace(
    VIT,
    model_types=("beit",),
    outputs=(
        "embeddings",
        "layers.*.layernorm_before",
        "layers.*.attention.o_proj",
        "layers.*.layernorm_after",
        "layers.*.mlp.fc2",
    ),
    reads={k: v for k, v in VIT.reads.items() if k != "?pooler.dense"},
    # The pooler averages tokens or takes the first, and normalises: the head's input is a site of its own.
    heads={"Model": {}, "ForImageClassification": {"?classifier": "in"}},
    constants=("?layers.*.relative_position_bias", "?shared_position_bias"),
    folds={"layers.*.lambda_1": "layers.*.attention.o_proj", "layers.*.lambda_2": "layers.*.mlp.fc2"},
)
