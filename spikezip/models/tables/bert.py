"""BERT: post-norm; a LayerNorm's output feeds the next product and the residual sum alike."""

from spikezip.models.table import Table

_LAYER = "encoder.layer.*"
_LAST = "encoder.layer.$.output.LayerNorm"
# A block reads the block before it; the first reads the embedding.
_BEFORE = ("encoder.layer.*-1.output.LayerNorm", "embeddings_project", "embeddings.LayerNorm")

BERT = Table(
    model_types=("bert",),
    entry="embeddings.LayerNorm",
    outputs=(
        "embeddings.LayerNorm",
        f"{_LAYER}.attention.output.dense",
        f"{_LAYER}.attention.output.LayerNorm",
        f"{_LAYER}.output.dense",
        f"{_LAYER}.output.LayerNorm",
    ),
    activations=(f"{_LAYER}.intermediate.intermediate_act_fn",),
    attention=f"{_LAYER}.attention.self",
    reads={
        f"{_LAYER}.attention.self.query": _BEFORE,
        f"{_LAYER}.attention.self.key": _BEFORE,
        f"{_LAYER}.attention.self.value": _BEFORE,
        f"{_LAYER}.attention.output.dense": f"{_LAYER}.attention.self.o",
        f"{_LAYER}.intermediate.dense": f"{_LAYER}.attention.output.LayerNorm",
        f"{_LAYER}.output.dense": f"{_LAYER}.intermediate.intermediate_act_fn",
        "?pooler.dense": _LAST,
    },
    heads={
        "Model": {},
        "ForSequenceClassification": {"classifier": "in"},
        "ForMultipleChoice": {"classifier": "in"},
        "ForTokenClassification": {"classifier": _LAST},
        "ForQuestionAnswering": {"qa_outputs": _LAST},
        "ForMaskedLM": {
            "cls.predictions.transform.dense": _LAST,
            "cls.predictions.decoder": "cls.predictions.transform.LayerNorm",
        },
    },
    head_outputs={"ForMaskedLM": ("cls.predictions.transform.LayerNorm",)},
)
