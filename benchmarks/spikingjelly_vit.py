"""The rival: a ViT in the form that SpikingJelly 2.0.0's SpikeZIP recipe converts, run as SpikingJelly runs it.

    pip install --no-deps spikingjelly==2.0.0 loguru

The recipe takes a ViT of timm's shape whose attention modules and quantizers it knows by their attributes. The one
here has the width, depth, heads, patches, classes and levels of a `ViTConfig`, a quantizer wherever spikezip has a
site, and random weights. Conversion, neurons and the pass over all steps are the library's own.
"""

from typing import Any

import torch
from torch import Tensor, nn


class Quantizer(nn.Module):
    """Rounds to `levels` codes; the recipe finds it by `s`, `sym`, `pos_max` and `neg_min`.

    The first batch it sees sets its scale, so that the largest value just fits.
    """

    s: Tensor
    pos_max: Tensor
    neg_min: Tensor

    def __init__(self, levels: int, signed: bool = True) -> None:
        super().__init__()
        self.level, self.sym, self.calibrated = levels, signed, False
        self.register_buffer("s", torch.tensor(1.0))
        self.register_buffer("pos_max", torch.tensor(float(levels // 2 - 1 if signed else levels - 1)))
        self.register_buffer("neg_min", torch.tensor(float(-(levels // 2) if signed else 0)))

    def forward(self, x: Tensor) -> Tensor:
        if not self.calibrated:
            self.s = x.abs().amax().clamp(min=1e-6) / self.pos_max
            self.calibrated = True
        return (x / self.s + 0.5).floor().clamp(self.neg_min, self.pos_max) * self.s


class Attention(nn.Module):
    """Self-attention with the attributes by which the recipe recognises it."""

    def __init__(self, width: int, heads: int, levels: int, bias: bool) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.scale = self.head_dim**-0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width)
        self.quan_q, self.quan_k, self.quan_v = Quantizer(levels), Quantizer(levels), Quantizer(levels)
        self.attn_quan = Quantizer(levels, signed=False)
        self.after_attn_quan, self.quan_proj = Quantizer(levels), Quantizer(levels)
        self.attn_drop, self.proj_drop = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        q, k, v = self.quan_q(q), self.quan_k(k), self.quan_v(v)
        probabilities = self.attn_quan(((q * self.scale) @ k.transpose(-2, -1)).softmax(-1))
        mixed = self.after_attn_quan(probabilities @ v).transpose(1, 2).flatten(2)
        return self.quan_proj(self.proj(mixed))


class Block(nn.Module):
    """One layer. It runs unchanged after conversion, on sequences of steps: its sums are sums of spikes then."""

    def __init__(self, config: Any, levels: int) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.norm1 = nn.Sequential(nn.LayerNorm(width, config.layer_norm_eps), Quantizer(levels))
        self.attn = Attention(width, config.num_attention_heads, levels, config.qkv_bias)
        self.norm2 = nn.Sequential(nn.LayerNorm(width, config.layer_norm_eps), Quantizer(levels))
        hidden = (nn.Linear(width, inner), nn.ReLU(), Quantizer(levels, signed=False))
        self.mlp = nn.Sequential(*hidden, nn.Linear(inner, width), Quantizer(levels))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.proj = nn.Conv2d(config.num_channels, config.hidden_size, config.patch_size, config.patch_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class QuantizedViT(nn.Module):
    """The quantized network that goes into the conversion."""

    def __init__(self, config: Any, levels: int) -> None:
        super().__init__()
        width, patches = config.hidden_size, (config.image_size // config.patch_size) ** 2
        self.patch_embed = PatchEmbed(config)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 1 + patches, width))
        self.pos_drop = Quantizer(levels)  # the place behind the embeddings that the recipe leaves to the model
        self.blocks = nn.Sequential(*(Block(config, levels) for _ in range(config.num_hidden_layers)))
        self.norm = nn.Sequential(nn.LayerNorm(width, config.layer_norm_eps), Quantizer(levels))
        self.head = nn.Linear(width, config.num_labels)

    def forward(self, pixels: Tensor) -> Tensor:
        x = torch.cat([self.cls_token.expand(len(pixels), -1, -1), self.patch_embed(pixels)], dim=1)
        x = self.blocks(self.pos_drop(x + self.pos_embed))
        return self.head(self.norm(x)[:, 0])


class SpikingJellyViT:
    """`QuantizedViT`, calibrated on `pixels` and converted by SpikingJelly; all steps go through it at once."""

    def __init__(self, config: Any, levels: int, pixels: Tensor, steps: int) -> None:
        from spikingjelly.activation_based import functional
        from spikingjelly.activation_based.ann2snn import ModuleConverter, SpikeZIPTFQANNRecipe

        self.qann = QuantizedViT(config, levels).to(pixels.device).eval()
        with torch.no_grad():
            self.qann(pixels)
        recipe = SpikeZIPTFQANNRecipe(time_steps=steps, model_family="vit")
        self.snn = ModuleConverter(recipe=recipe, device=pixels.device).convert(self.qann).eval()
        self.qann.cpu()  # the conversion works on a copy, which alone counts as its memory
        functional.set_step_mode(self.snn, "m")
        self.reset = functional.reset_net

    @torch.no_grad()
    def __call__(self, pixels: Tensor, steps: int) -> Tensor:
        """Logits `[T, B, classes]`: the image arrives in the first step, nothing afterwards."""
        self.reset(self.snn)
        sequence = pixels.new_zeros(steps, *pixels.shape)
        sequence[0] = pixels
        return self.snn(sequence).cumsum(0)
