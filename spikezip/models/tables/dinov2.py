"""DINOv2: pre-norm with LayerScale; the site comes after it. The head reads `cat[cls, mean of patches]`."""

from spikezip.models.table import Table

DINOV2 = Table(
    model_types=("dinov2",),
    input_layer="embeddings.patch_embeddings.projection",
    entry="embeddings",
    outputs=(
        "embeddings",
        "encoder.layer.*.norm1",
        "encoder.layer.*.layer_scale1",
        "encoder.layer.*.norm2",
        "encoder.layer.*.layer_scale2",
        "layernorm",
    ),
    activations=("?encoder.layer.*.mlp.activation_fn",),
    attention="encoder.layer.*.attention",
    reads={
        "encoder.layer.*.attention.q_proj": "encoder.layer.*.norm1",
        "encoder.layer.*.attention.k_proj": "encoder.layer.*.norm1",
        "encoder.layer.*.attention.v_proj": "encoder.layer.*.norm1",
        "encoder.layer.*.attention.o_proj": "encoder.layer.*.attention.o",
        "?encoder.layer.*.mlp.fc1": "encoder.layer.*.norm2",
        "?encoder.layer.*.mlp.fc2": "encoder.layer.*.mlp.activation_fn",
        # the gated MLP of the giant size
        "?encoder.layer.*.mlp.gate_proj": "encoder.layer.*.norm2",
        "?encoder.layer.*.mlp.up_proj": "encoder.layer.*.norm2",
        "?encoder.layer.*.mlp.down_proj": "in",
    },
    heads={"Model": {}, "ForImageClassification": {"?classifier": "in"}},
    aliases=(  # transformers before 5.20
        (r"attention\.attention\.query$", "attention.q_proj"),
        (r"attention\.attention\.key$", "attention.k_proj"),
        (r"attention\.attention\.value$", "attention.v_proj"),
        (r"attention\.output\.dense$", "attention.o_proj"),
        (r"attention\.attention$", "attention"),
        (r"mlp\.activation$", "mlp.activation_fn"),
    ),
)
