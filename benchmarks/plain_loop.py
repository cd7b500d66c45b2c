"""The baseline: a spiking ViT as a plain loop over time, the way the paper's equations are usually written down.

Dense float32 deltas flow; linear layers multiply every delta, attention uses the three products of SESA, LayerNorm and
softmax hold their accumulated input and emit differences, neurons keep membrane and tracer. No tricks, no exactness:
this is what `benchmarks/run.py` compares with, on the weights of a converted network.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class PlainViT:
    """A `ViTForImageClassification` converted by spikezip, run as a plain step loop in float32."""

    snn: Any
    state: dict[str, Any] = field(default_factory=dict)

    @torch.no_grad()
    def __call__(self, pixels: Tensor, steps: int) -> Tensor:
        """Logits `[T, B, classes]`."""
        self.state = {}
        model = self.snn.vit
        total, logits = None, []
        for t in range(steps):
            x = self.neuron(model.embeddings.site_out, self.embed(model.embeddings, pixels, first=t == 0))
            for i, layer in enumerate(model.layers):
                x = self.block(layer, x, str(i), first=t == 0)
            x = self.neuron(model.layernorm.site_out, self.differential("norm", model.layernorm, x))
            out = self.linear(self.snn.classifier, x[:, 0], first=t == 0)
            total = out if total is None else total + out
            logits.append(total)
        return torch.stack(logits)

    def embed(self, embeddings: Any, pixels: Tensor, first: bool) -> Tensor:
        """The input charges the membrane in the first step only; afterwards nothing arrives."""
        if "embed" not in self.state:
            layer = embeddings.patch_embeddings.projection
            patches = F.conv2d(pixels, layer.weight, layer.bias, **layer.geometry).flatten(2).transpose(1, 2)
            cls = embeddings.cls_token.expand(len(pixels), -1, -1)
            self.state["embed"] = torch.cat([cls, patches], dim=1) + embeddings.position_embeddings
        return self.state["embed"] if first else torch.zeros_like(self.state["embed"])

    def block(self, layer: Any, x: Tensor, name: str, first: bool) -> Tensor:
        attention, sesa = layer.attention, layer.attention.sesa
        h = self.neuron(layer.layernorm_before.site_out, self.differential(name + "ln1", layer.layernorm_before, x))
        q, k, v = (
            self.neuron(site, self.heads(self.linear(getattr(attention, p), h, first), attention.head_dim))
            for p, site in (("q_proj", sesa.q), ("k_proj", sesa.k), ("v_proj", sesa.v))
        )
        scores = self.sesa(name + "qk", q, k.transpose(2, 3)) * attention.scaling
        p = self.neuron(sesa.p, self.differential(name + "softmax", lambda s: s.softmax(-1), scores))
        mixed = self.sesa(name + "pv", p, v).transpose(1, 2)
        o = self.neuron(sesa.o, mixed).flatten(2)
        x = x + self.neuron(attention.o_proj.site_out, self.linear(attention.o_proj, o, first))
        h = self.neuron(layer.layernorm_after.site_out, self.differential(name + "ln2", layer.layernorm_after, x))
        h = self.neuron(layer.mlp.activation_fn.site_out, self.linear(layer.mlp.fc1, h, first))
        return x + self.neuron(layer.mlp.fc2.site_out, self.linear(layer.mlp.fc2, h, first))

    @staticmethod
    def heads(x: Tensor, size: int) -> Tensor:
        return x.unflatten(-1, (-1, size)).transpose(1, 2)

    def linear(self, layer: Any, x: Tensor, first: bool) -> Tensor:
        weight = self.state.setdefault(f"weight {layer.name}", layer.weight)
        return F.linear(x, weight, layer.bias if first else None)

    def sesa(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        sums = self.state.get(name)
        a_sum, b_sum = (a, b) if sums is None else (sums[0] + a, sums[1] + b)
        self.state[name] = (a_sum, b_sum)
        return a_sum @ b + a @ b_sum - a @ b

    def differential(self, name: str, function: Any, x: Tensor) -> Tensor:
        held, last = self.state.get(name, (None, None))
        held = x if held is None else held + x
        # The module is called without its site, which sits behind it as a hook.
        out = (
            F.layer_norm(held, function.normalized_shape, function.weight, function.bias, function.eps)
            if isinstance(function, torch.nn.LayerNorm)
            else function(held)
        )
        self.state[name] = (held, out)
        return out if last is None else out - last

    def neuron(self, site: Any, x: Tensor) -> Tensor:
        scale = site.scale
        membrane, tracer = self.state.get(site.name, (None, None))
        membrane = x + scale / 2 if membrane is None else membrane + x
        tracer = torch.zeros_like(x) if tracer is None else tracer
        spike = ((membrane >= scale) & (tracer < site.hi)).float() - ((membrane < 0) & (tracer > site.lo)).float()
        self.state[site.name] = (membrane - spike * scale, tracer + spike)
        return spike * scale
