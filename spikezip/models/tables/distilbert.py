"""DistilBERT: BERT's body with names of its own; the head applies ReLU between its two products."""

from spikezip.models.table import Table

_LAYER = "transformer.layer.*"
_LAST = "transformer.layer.$.output_layer_norm"
_BEFORE = ("transformer.layer.*-1.output_layer_norm", "embeddings.LayerNorm")

DISTILBERT = Table(
    model_types=("distilbert",),
    entry="embeddings.LayerNorm",
    outputs=(
        "embeddings.LayerNorm",
        f"{_LAYER}.attention.out_lin",
        f"{_LAYER}.sa_layer_norm",
        f"{_LAYER}.ffn.lin2",
        f"{_LAYER}.output_layer_norm",
    ),
    activations=(f"{_LAYER}.ffn.activation",),
    attention=f"{_LAYER}.attention",
    reads={
        f"{_LAYER}.attention.q_lin": _BEFORE,
        f"{_LAYER}.attention.k_lin": _BEFORE,
        f"{_LAYER}.attention.v_lin": _BEFORE,
        f"{_LAYER}.attention.out_lin": f"{_LAYER}.attention.o",
        f"{_LAYER}.ffn.lin1": f"{_LAYER}.sa_layer_norm",
        f"{_LAYER}.ffn.lin2": f"{_LAYER}.ffn.activation",
    },
    heads={
        "Model": {},
        "ForSequenceClassification": {"pre_classifier": _LAST, "classifier": "in:unsigned"},
        "ForTokenClassification": {"classifier": _LAST},
        "ForQuestionAnswering": {"qa_outputs": _LAST},
    },
)
