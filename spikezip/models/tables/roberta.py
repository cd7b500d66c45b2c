"""RoBERTa and XLM-RoBERTa: BERT's body; the head applies tanh between its two products."""

from dataclasses import replace

from spikezip.models.tables.bert import _LAST, BERT

ROBERTA = replace(
    BERT,
    model_types=("roberta", "xlm-roberta"),
    heads={
        "Model": {},
        "ForSequenceClassification": {"classifier.dense": _LAST, "classifier.out_proj": "in"},
        "ForMultipleChoice": {"classifier": "in"},
        "ForTokenClassification": {"classifier": _LAST},
        "ForQuestionAnswering": {"qa_outputs": _LAST},
        "ForMaskedLM": {"lm_head.dense": _LAST, "lm_head.decoder": "lm_head.layer_norm"},
    },
    head_outputs={"ForMaskedLM": ("lm_head.layer_norm",)},
)
