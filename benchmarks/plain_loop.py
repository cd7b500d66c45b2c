"""The baseline: a spiking ViT as a plain loop over time, the way the paper's equations are usually written down.

Dense float32 deltas flow; linear layers multiply every delta, attention uses the three products of SESA, LayerNorm and
softmax hold their accumulated input and emit differences, neurons keep membrane and tracer. No tricks, no exactness:
this is what `benchmarks/run.py` compares with, on the weights of a converted network.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spikezip.program.freeze import Frozen
from spikezip.program.nodes import Weight


class PlainViT:
    """A `ViTForImageClassification` with ReLU, converted by spikezip, run as a plain step loop in float32.

    Weights are float32 from the start, by their names in the program; nothing of the network itself is kept.
    """

    def __init__(self, snn: Any) -> None:
        config, frozen = snn.config, snn.frozen()
        if config.hidden_act != "relu" or any(site.by_channel for site in snn.neurons.values()):
            raise ValueError("the plain loop knows ViTs with ReLU and one scale for each site")
        self.depth, self.heads = config.num_hidden_layers, config.num_attention_heads
        self.head_dim = config.hidden_size // self.heads
        self.patch_size, self.eps = config.patch_size, config.layer_norm_eps
        self.weights = dequantized(frozen)
        self.sites = {name: (frozen.step_size(name).float(), site.lo, site.hi) for name, site in snn.neurons.items()}
        self.state: dict[str, Any] = {}

    @torch.no_grad()
    def __call__(self, pixels: Tensor, steps: int) -> Tensor:
        """Logits `[T, B, classes]`."""
        self.state = {}
        total, logits = None, []
        for t in range(steps):
            x = self.neuron("embeddings", self.embed(pixels, first=t == 0))
            for i in range(self.depth):
                x = self.block(f"layers.{i}", x, first=t == 0)
            x = self.norm("layernorm", x)
            out = self.linear("classifier", x[:, 0], first=t == 0)
            total = out if total is None else total + out
            logits.append(total)
        return torch.stack(logits)

    def embed(self, pixels: Tensor, first: bool) -> Tensor:
        """The input charges the membrane in the first step only; afterwards nothing arrives."""
        if "embed" not in self.state:
            name = "embeddings.patch_embeddings.projection"
            weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
            patches = F.conv2d(pixels, weight, bias, self.patch_size).flatten(2).transpose(1, 2)
            cls = self.weights["embeddings.cls_token"].expand(len(pixels), -1, -1)
            self.state["embed"] = torch.cat([cls, patches], dim=1) + self.weights["embeddings.position_embeddings"]
        return self.state["embed"] if first else torch.zeros_like(self.state["embed"])

    def block(self, name: str, x: Tensor, first: bool) -> Tensor:
        attention = f"{name}.attention"
        h = self.norm(f"{name}.layernorm_before", x)
        q, k, v = (
            self.split(self.neuron(f"{attention}.{p}", self.linear(f"{attention}.{p}_proj", h, first))) for p in "qkv"
        )
        scores = self.sesa(f"{attention} qk", q, k.transpose(2, 3)) * self.head_dim**-0.5
        p = self.neuron(f"{attention}.p", self.differential(attention, lambda held: held.softmax(-1), scores))
        mixed = self.neuron(f"{attention}.o", self.sesa(f"{attention} pv", p, v))
        o = mixed.transpose(1, 2).flatten(2)
        x = x + self.neuron(f"{attention}.o_proj", self.linear(f"{attention}.o_proj", o, first))
        h = self.norm(f"{name}.layernorm_after", x)
        h = self.neuron(f"{name}.mlp.activation_fn", self.linear(f"{name}.mlp.fc1", h, first))
        return x + self.neuron(f"{name}.mlp.fc2", self.linear(f"{name}.mlp.fc2", h, first))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)

    def linear(self, name: str, x: Tensor, first: bool) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias") if first else None)

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return self.neuron(
            name, self.differential(name, lambda held: F.layer_norm(held, weight.shape, weight, bias, self.eps), x)
        )

    def sesa(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        sums = self.state.get(name)
        a_sum, b_sum = (a, b) if sums is None else (sums[0] + a, sums[1] + b)
        self.state[name] = (a_sum, b_sum)
        return a_sum @ b + a @ b_sum - a @ b

    def differential(self, name: str, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        held, last = self.state.get(f"{name} held", (None, None))
        held = x if held is None else held + x
        out = function(held)
        self.state[f"{name} held"] = (held, out)
        return out if last is None else out - last

    def neuron(self, name: str, x: Tensor) -> Tensor:
        scale, lo, hi = self.sites[name]
        membrane, tracer = self.state.get(name, (None, None))
        membrane = x + scale / 2 if membrane is None else membrane + x
        tracer = torch.zeros_like(x) if tracer is None else tracer
        spike = ((membrane >= scale) & (tracer < hi)).float() - ((membrane < 0) & (tracer > lo)).float()
        self.state[name] = (membrane - spike * scale, tracer + spike)
        return spike * scale


def dequantized(frozen: Frozen) -> dict[str, Tensor]:
    """The weights of a network by name, as float32: integers times the scale of their row."""
    found = {}
    for node in frozen.program.nodes:
        if isinstance(node, Weight) and node.bits is None:
            found[node.name] = frozen.tensors[node.key].float()
        elif isinstance(node, Weight):
            codes, scale = frozen.codes(node.key)
            found[node.name.removesuffix(".grid")] = codes.float() * scale.float().view(-1, *[1] * (codes.ndim - 1))
    return found
