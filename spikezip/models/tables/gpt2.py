"""GPT-2: a pre-norm decoder of `Conv1D` layers; the language head is tied to the embedding."""

from spikezip.models.table import Table

GPT2 = Table(
    model_types=("gpt2",),
    entry="drop",
    outputs=("drop", "h.*.ln_1", "h.*.attn.c_proj", "h.*.ln_2", "h.*.mlp.c_proj", "ln_f"),
    activations=("h.*.mlp.act",),
    attention="h.*.attn",
    reads={
        "h.*.attn.c_attn": "h.*.ln_1",
        "h.*.attn.c_proj": "h.*.attn.o",
        "h.*.mlp.c_fc": "h.*.ln_2",
        "h.*.mlp.c_proj": "h.*.mlp.act",
    },
    heads={
        "Model": {},
        "LMHeadModel": {"lm_head": "ln_f"},
        "ForSequenceClassification": {"score": "ln_f"},
        "ForTokenClassification": {"classifier": "ln_f"},
        "ForQuestionAnswering": {"qa_outputs": "ln_f"},
    },
)
