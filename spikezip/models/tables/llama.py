"""Llama: a pre-norm decoder with rotary positions, grouped keys and a gated MLP (forward without cache)."""

from spikezip.models.table import Table

LLAMA = Table(
    model_types=("llama",),
    entry="embed_tokens",
    outputs=(
        "embed_tokens",
        "layers.*.input_layernorm",
        "layers.*.self_attn.o_proj",
        "layers.*.post_attention_layernorm",
        "layers.*.mlp.down_proj",
        "norm",
    ),
    activations=(),
    attention="layers.*.self_attn",
    reads={
        "layers.*.self_attn.q_proj": "layers.*.input_layernorm",
        "layers.*.self_attn.k_proj": "layers.*.input_layernorm",
        "layers.*.self_attn.v_proj": "layers.*.input_layernorm",
        "layers.*.self_attn.o_proj": "layers.*.self_attn.o",
        "layers.*.mlp.gate_proj": "layers.*.post_attention_layernorm",
        "layers.*.mlp.up_proj": "layers.*.post_attention_layernorm",
        "layers.*.mlp.down_proj": "in",
    },
    heads={
        "Model": {},
        "ForCausalLM": {"lm_head": "norm"},
        "ForSequenceClassification": {"score": "norm"},
        "ForTokenClassification": {"score": "norm"},
        "ForQuestionAnswering": {"qa_outputs": "norm"},
    },
    constants=("rotary_emb",),
)
