"""Training on GPU kernels, whole networks: forward what `eval()` computes, gradients as those of the work in pieces.

On the GPU where there is one, under autocast; else under Triton's interpreter, in a process of its own: there tensors
on the CPU are handed to the kernels, and gradients stay in float32.
"""

import interpreted

CHECK = """
import torch, transformers, spikezip
from spikezip.ops import kernels

device = "cuda" if torch.cuda.is_available() else "cpu"
from spikezip.quant import attention
from spikezip.ops.sesa import triton_training

if device == "cpu":
    kernels.on_gpu = lambda *tensors: True
    attention.backward_dtype = lambda x: torch.bfloat16
used = {"forward": 0, "backward": 0}


def counting(name):
    run = getattr(triton_training, name)

    def counted(*args):
        used[name] += 1
        return run(*args)

    setattr(triton_training, name, counted)


counting("forward")
counting("backward")
torch.manual_seed(0)
shape = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, hidden_act="relu")
vit = transformers.ViTForImageClassification(transformers.ViTConfig(**shape, image_size=32, num_labels=3))
bert = transformers.BertForSequenceClassification(
    transformers.BertConfig(**shape, vocab_size=50, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
)
ids = torch.randint(3, 50, (3, 7))
seen = torch.ones_like(ids)
seen[1, 4:] = 0
cases = [(vit, {"pixel_values": torch.randn(3, 3, 32, 32)}), (bert, {"input_ids": ids, "attention_mask": seen})]
for model, batch in cases:
    batch = {name: value.to(device) for name, value in batch.items()}
    qann = spikezip.quantize(model.to(device), spikezip.QuantConfig(levels=16))
    spikezip.calibrate(qann, batch).eval()
    with torch.no_grad():
        expected = qann(**batch).logits

    def gradients(**asked):
        qann.train().zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device == "cuda"):
            found = qann(**batch, **asked)
        assert torch.equal(found.logits, expected), (found.logits - expected).abs().max()
        (found.logits.float() * torch.tensor([1.0, -0.5, 0.25], device=device)[: expected.shape[1]]).sum().backward()
        return found, {name: p.grad.clone() for name, p in qann.named_parameters() if p.grad is not None}

    used.update(forward=0, backward=0)
    _, ours = gradients()
    assert used == {"forward": 1, "backward": 1}, used
    watched, pieces = gradients(output_attentions=True)
    assert used == {"forward": 1, "backward": 1}, "whoever asks for probabilities gets them"
    assert len(watched.attentions) == 1 and all(p.requires_grad for p in watched.attentions)
    assert ours.keys() == pieces.keys()
    assert any(name.endswith("sesa.p.scale") for name in ours), list(ours)
    for name, grad in ours.items():
        # In float32 both add the same terms in other orders. Under autocast each rounds gradients to 8 bits, at other
        # places, and a scale's gradient is a sum of many terms of both signs: they agree on average, not bit by bit.
        size = float(pieces[name].norm())
        error = float((grad - pieces[name]).norm())
        bound = 1e-4 if device == "cpu" else 0.1 if name.endswith(".scale") else 0.03
        assert error <= bound * size + 1e-7, (name, error, size)
"""


def test_networks_train_on_kernels() -> None:
    interpreted.check(CHECK)
