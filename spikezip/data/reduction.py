"""A learned reduction of many input channels to the three that a pretrained vision model was made for.

Frames of events have any number of channels; a pretrained ViT has a patch convolution over three. A 1×1 convolution R
in front of a convolution W is one convolution, whose weight is the product of the two:

    weight[h, c, i, j] = Σ_r W[h, r, i, j] · R[r, c]

So R is kept as a parametrization of the patch convolution's weight. The model stays a plain Hugging Face model with
more input channels, W and R are both trained, and `fold_reduction` leaves the product as an ordinary weight: nothing is
added to the network that has to be quantized or to spike.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import PreTrainedModel

from spikezip.errors import ConfigError


class Reduction(nn.Module):
    """The parametrization: turns a convolution's weight over few channels into one over many.

    It starts with `stretches`: the channels, in order, are cut into as many equal stretches as the convolution has
    inputs, and each input is the mean of its stretch. For frames of events the three inputs are then the beginning, the
    middle and the end of the recording (with one bin: off, both, on), so they differ, keep the range of the frames, and
    with as many channels as inputs the reduction starts as the identity.
    """

    def __init__(self, channels: int, inputs: int, like: Tensor) -> None:
        super().__init__()
        self.matrix = nn.Parameter(stretches(channels, inputs).to(like))

    def forward(self, weight: Tensor) -> Tensor:
        # Laid out as it would be read from a file: convolutions sum in an order that depends on it.
        return torch.einsum("hrij,rc->hcij", weight, self.matrix).contiguous()


def stretches(channels: int, inputs: int = 3) -> Tensor:
    """`[inputs, channels]`: row r is the mean over the r-th of `inputs` equal stretches of the channels.

    A channel that a cut goes through counts on both sides, by its share.

    Example:
        >>> stretches(6)[0]
        tensor([0.5000, 0.5000, 0.0000, 0.0000, 0.0000, 0.0000])
        >>> stretches(2)
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000],
                [0.0000, 1.0000]])
    """
    # In units of 1 / (channels · inputs) all edges are integers, so the shares come out exact.
    channel = torch.arange(channels) * inputs
    stretch = torch.arange(inputs)[:, None] * channels
    overlap = torch.minimum(channel + inputs, stretch + channels) - torch.maximum(channel, stretch)
    return overlap.clamp(min=0) / channels


def add_reduction(model: PreTrainedModel, channels: int) -> None:
    """Let a vision model take `channels` input channels, through a learned 1×1 convolution to those it has.

    Changes the model in place; call it on the float model and train it. `fold_reduction` must come before
    `spikezip.quantize` and before `save_pretrained`.

    Example:
        >>> import torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> model = transformers.ViTForImageClassification(vit)
        >>> add_reduction(model, channels=8)
        >>> model(pixel_values=torch.rand(2, 8, 32, 32)).logits.shape
        torch.Size([2, 2])
        >>> fold_reduction(model)
        >>> model.vit.embeddings.patch_embeddings.projection.weight.shape
        torch.Size([8, 8, 16, 16])
    """
    if isinstance(channels, bool) or not isinstance(channels, int) or channels < 1:
        raise ConfigError(f"channels must be a whole number from 1 on, not {channels!r}")
    if _reduced(model):
        raise ConfigError(f"{type(model).__name__} has a reduction already; fold_reduction makes it permanent")
    layer = _input_layer(model)
    inputs = layer.in_channels
    parametrize.register_parametrization(layer, "weight", Reduction(channels, inputs, layer.weight), unsafe=True)
    layer.in_channels = channels
    # transformers compares the input with a copy of the number, kept in the patch embedding.
    for module in model.modules():
        if getattr(module, "num_channels", None) == inputs:
            module.num_channels = channels
    model.config.num_channels = channels


def fold_reduction(model: PreTrainedModel) -> None:
    """Multiply the reduction into the patch convolution: what is left is a plain model, with the same output.

    Example: see `add_reduction`.
    """
    reduced = _reduced(model)
    if not reduced:
        raise ConfigError(f"{type(model).__name__} has no reduction to fold; add_reduction(model, channels) adds one")
    for layer in reduced:
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def has_reduction(model: nn.Module) -> bool:
    """Whether a reduction was added that is not folded yet."""
    return bool(_reduced(model))


def _reduced(model: nn.Module) -> list[nn.Module]:
    """The layers whose weight goes through a `Reduction`."""
    return [
        module
        for module in model.modules()
        if parametrize.is_parametrized(module, "weight")
        and any(isinstance(step, Reduction) for step in module.get_submodule("parametrizations.weight").children())
    ]


def _input_layer(model: PreTrainedModel) -> nn.Conv2d:
    """The first convolution, in the order of declaration, that takes as many channels as an image has."""
    found = (m for m in model.modules() if isinstance(m, nn.Conv2d) and m.in_channels == model.config.num_channels)
    layer = next(found, None) if hasattr(model.config, "num_channels") else None
    if layer is None:
        raise ConfigError(f"{type(model).__name__} has no input convolution: a reduction needs a vision model")
    if layer.groups != 1:
        raise ConfigError(f"the input layer of {type(model).__name__} is {layer}: a Conv2d with groups=1 is needed")
    return layer
