"""DeiT: ViT with a distillation token, and a second head for it."""

from dataclasses import replace

from spikezip.models.tables.vit import VIT

DEIT = replace(
    VIT,
    model_types=("deit",),
    heads={
        **VIT.heads,
        "ForImageClassificationWithTeacher": {
            "?cls_classifier": "layernorm",
            "?distillation_classifier": "layernorm",
        },
    },
)
