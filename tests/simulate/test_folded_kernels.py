"""The folded engine on its GPU kernels, whole networks: the same spikes as the spike engine, and the codes of the QANN.

On the GPU where there is one, else under Triton's interpreter, in a process of its own: there tensors on the CPU are
handed to the kernels.
"""

import interpreted
import pytest

START = """
import torch, transformers, spikezip
from spikezip.ops import kernels

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    kernels.on_gpu = lambda *tensors: True
    kernels.moves_tiles = lambda device: True
from spikezip.ops.neuron import triton_product
from spikezip.ops.norm import triton as norm
from spikezip.ops.sesa import triton as sesa

used = {"product": 0, "attention": 0, "norm": 0}
rested = {"product": 0, "attention": 0}  # how often a sample's codes were said to rest, and did


def counting(module, name, what, look=None):
    run = getattr(module, name)

    def counted(*args):
        used[what] += 1
        if look is not None:
            look(*args)
        return run(*args)

    setattr(module, name, counted)


def check_rests(what, codes, spikes):
    # What a kernel is told: where a sample's spikes are zero, its codes are those of the step before.
    steps, samples = spikes.shape
    assert len(codes) == steps
    over_time = codes.reshape(steps, samples, -1)
    still = spikes[1:] == 0
    assert bool((over_time[1:] == over_time[:-1]).all(dim=2)[still].all())
    rested[what] += int(still.sum())


def look_at_product(codes, weight, factor, bias, tracer, scale, lo, hi, max_spike, samples, moved):
    if moved is not None:
        check_rests("product", codes, moved)


def look_at_attention(q, k, v, mask, p, o, score_factor, mix_factor, max_spike, samples, in_place, moved):
    for codes, spikes in zip((q, k, v), moved):
        check_rests("attention", codes, spikes)


counting(triton_product, "walk_products", "product", look_at_product)
counting(sesa, "attention", "attention", look_at_attention)
counting(norm, "_walk", "norm")
torch.manual_seed(0)
shape = dict(hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, hidden_act="relu")


def leave_out_what_rests():
    # From the first run on: a GPU's memory of a network would wait until it has seen one.
    from spikezip.simulate import folded, graphs

    folded.FoldedEngine.resting = graphs.Memory.rests = True
    graphs.RESTS = -1.0


def check(model, batch, expected, levels=16, per_channel=False, steps=6, **drive):
    sites = {"*layernorm*": spikezip.SiteConfig(per_channel=True)} if per_channel else {}
    config = spikezip.QuantConfig(levels=levels, sites=sites)
    batch = {name: value.to(device) for name, value in batch.items()}
    qann = spikezip.calibrate(spikezip.quantize(model.eval().to(device), config), batch)
    snn = spikezip.convert(qann)
    used.update(product=0, attention=0, norm=0)
    folded = spikezip.simulate(snn, batch, steps, "folded", chunk=4, stop_early=False, **drive)
    assert {what for what, times in used.items() if times} == expected, used
    spike = spikezip.simulate(snn, batch, steps, "spike", stop_early=False, **drive)
    assert torch.equal(folded.logits_per_step, spike.logits_per_step)
    for site in spike.spike_counts:
        assert torch.equal(folded.spike_counts[site], spike.spike_counts[site]), site
        assert torch.equal(folded.tracers[site], spike.tracers[site]), site
    if not drive:
        assert spikezip.verify(qann, snn, [batch]).exact
    return snn, batch
"""

CASES = {
    "vit": """
from spikezip.spiking.repeated import Repeated
def nobody(self):
    raise AssertionError("the input layer was repeated for every step")
Repeated.scaled = nobody
config = transformers.ViTConfig(**shape, image_size=12, patch_size=4)
images = {"pixel_values": torch.randn(2, 3, 12, 12)}
snn, batch = check(transformers.ViTForImageClassification(config), images, {"product", "attention", "norm"})
everything = {"product", "attention", "norm"}
check(transformers.ViTForImageClassification(config), images, everything, stagger=0.5, max_spike=2)
check(transformers.ViTForImageClassification(config), images, everything, per_channel=True)
# The probabilities were not kept, and are there when asked for.
asked = snn(**batch, output_attentions=True).attentions[0]
found = spikezip.simulate(snn, batch, "equilibrium", "spike")
step = snn.neurons["layers.0.attention.p"].step_size
assert torch.equal(asked, found.tracers["layers.0.attention.p"] * step)
# Sites that are recorded are computed in pieces.
name = "layers.0.attention.p"
trains = [spikezip.simulate(snn, batch, 6, engine, record=[name]).trains[name] for engine in ("folded", "spike")]
assert torch.equal(*trains)
""",
    "rest": """
leave_out_what_rests()
# Through equilibrium and past it: layers come to rest one after another, samples at steps of their own.
config = transformers.ViTConfig(**shape, image_size=12, patch_size=4)
images = {"pixel_values": torch.randn(2, 3, 12, 12) * torch.tensor([1.0, 3.0]).view(2, 1, 1, 1)}
everything = {"product", "attention", "norm"}
for drive in ({}, {"stagger": 0.3, "max_spike": 2}):
    rested.update(product=0, attention=0)
    snn, batch = check(transformers.ViTForImageClassification(config), images, everything, 8, steps=14, **drive)
    settled = spikezip.simulate(snn, batch, "equilibrium", "spike", **drive).t_eq
    assert all(4 < step < 12 for step in settled), settled  # neither in the first chunk nor in the last
    assert all(rested.values()), rested
""",
    "swin": """
leave_out_what_rests()
# Windows, and windows that are shifted: codes move between rows, but not from sample to sample.
config = transformers.SwinConfig(
    image_size=8, patch_size=2, embed_dim=32, depths=[2], num_heads=[1], window_size=2, hidden_act="relu"
)
images = {"pixel_values": torch.randn(2, 3, 8, 8) * torch.tensor([1.0, 0.2]).view(2, 1, 1, 1)}
model = transformers.SwinForImageClassification(config)
check(model, images, {"product", "attention", "norm"}, 4, steps=8)
assert all(rested.values()), rested
""",
    "bert": """
config = transformers.BertConfig(**shape, vocab_size=50, max_position_embeddings=32)
tokens = torch.randint(1, 50, (2, 9))
mask = torch.ones_like(tokens)
mask[1, 6:] = 0
texts = {"input_ids": tokens, "attention_mask": mask}
check(transformers.BertForSequenceClassification(config), texts, {"product", "attention", "norm"}, levels=32)
""",
    "decoder": """
config = transformers.LlamaConfig(
    hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=64,
    hidden_act="relu", vocab_size=50, max_position_embeddings=32,
)
texts = {"input_ids": torch.randint(1, 50, (2, 7))}
check(transformers.LlamaForCausalLM(config), texts, {"product", "attention"}, levels=32)
""",
    "narrow": """
# Heads of 8 channels and layers of 24: too odd for the large kernels, so in pieces, and the same.
narrow = {**shape, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 24}
config = transformers.ViTConfig(**narrow, image_size=12, patch_size=4)
check(transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 12, 12)}, {"norm"})
""",
}


@pytest.mark.parametrize("case", CASES)
def test_network_on_kernels(case: str) -> None:
    interpreted.check(START + CASES[case])
