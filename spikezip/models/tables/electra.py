"""ELECTRA: BERT's body behind a projection from a narrower embedding; the head applies GELU."""

from dataclasses import replace

from spikezip.models.tables.bert import _LAST, BERT

ELECTRA = replace(
    BERT,
    model_types=("electra",),
    outputs=("?embeddings_project", *BERT.outputs),
    reads={"?embeddings_project": "embeddings.LayerNorm", **BERT.reads},
    heads={
        "Model": {},
        "ForSequenceClassification": {"classifier.dense": _LAST, "classifier.out_proj": "in"},
        "ForTokenClassification": {"classifier": _LAST},
        "ForQuestionAnswering": {"qa_outputs": _LAST},
    },
    head_outputs={},
)
