"""The paper's feature-map figure, as pictures for papers: the input as the network sees it, step by step."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spikezip.batches import Batch
from spikezip.errors import InputError
from spikezip.quant.model import QuantizedModel
from spikezip.show.attention import attention_maps
from spikezip.show.sample import Token, one_sample, picture, tokens_of
from spikezip.show.static import new_figure, styled
from spikezip.simulate import SpikingModel

SHADE = 0.15  # of a pixel's brightness, where nothing looks


def attention_figure(
    snn: SpikingModel,
    batch: Batch,
    qann: QuantizedModel | None = None,
    *,
    sample: int = 0,
    at: Sequence[int] = (2, 4, 8, 16, 32),
    name: str | None = None,
    image: Tensor | None = None,
    tokenizer: Any = None,
    **settings: Any,
) -> Any:
    """The paper's feature-map figure: the input masked by the accumulated attention at chosen steps, then the QANN's.

    Args:
        at: the steps.
        name: which map, a site or "rolled out"; None: the last layer's.
        image: the picture as bytes `[H, W, C]`; without it, it is made from the pixels.
        tokenizer: for text, to show words in place of numbers.

    Example:
        >>> import spikezip, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.quantize(transformers.ViTModel(vit), spikezip.QuantConfig(levels=8))
        >>> snn = spikezip.convert(spikezip.calibrate(qann, torch.randn(2, 3, 32, 32)))
        >>> [axis.get_title() for axis in attention_figure(snn, torch.randn(1, 3, 32, 32), at=(1, 4)).axes]
        ['input', 'T = 1', 'T = 4', 'QANN']
    """
    if not at or min(at) < 1:
        raise InputError(f"at={tuple(at)!r}: steps are counted from 1")
    found = attention_maps(snn, batch, qann, sample=sample, **settings)
    chosen = found.last_layer if name is None else found[name]
    titles = [*(f"T = {step}" for step in at), "QANN"]
    weights = [*(chosen.shown(step) for step in at), (chosen.qann / chosen.top).clamp(0, 1)]
    inputs, _ = one_sample(snn, batch, sample)
    with styled():
        if found.grid is None:
            return _draw_tokens(tokens_of(inputs, tokenizer), titles, weights, found.source)
        base = picture(inputs["pixel_values"][0]) if image is None else image
        return _draw_images(base, found.grid, titles, weights)


def masked(image: Tensor, weights: Tensor, grid: tuple[int, int]) -> Tensor:
    """Bytes `[H, W, C]`, darkened by the weight (0 … 1) of the patch each pixel lies in.

    A shade of the input remains where the weight is 0, to show what is being looked at.

    Example:
        >>> masked(torch.full((2, 2, 1), 200, dtype=torch.uint8), torch.tensor([1.0, 0.0]), (1, 2)).flatten().tolist()
        [200, 30, 200, 30]
    """
    height, width = image.shape[:2]
    rows = torch.arange(height) * grid[0] // height
    columns = torch.arange(width) * grid[1] // width
    mask = weights.cpu().view(grid)[rows][:, columns]
    return (image * (SHADE + (1 - SHADE) * mask[..., None])).round().to(torch.uint8)


def _draw_images(image: Tensor, grid: tuple[int, int], titles: list[str], weights: list[Tensor]) -> Any:
    width, gap, above = 1.27, 0.08, 0.27  # inches; the title stands above
    height = width * image.shape[0] / image.shape[1] + above  # as the image is shaped: nothing stays empty below it
    figure, axes = new_figure((width + gap) * (len(titles) + 1), height, 1, len(titles) + 1)
    shown = [image, *(masked(image, one, grid) for one in weights)]
    for axis, title, pixels in zip(axes[0], ["input", *titles], shown, strict=True):
        axis.imshow(pixels.expand(-1, -1, 3).numpy(), interpolation="nearest")
        axis.set_title(title)
        axis.set_axis_off()
        axis.set_anchor("S")
    return figure


def _draw_tokens(tokens: list[Token], titles: list[str], weights: list[Tensor], source: str) -> Any:
    """One row of words per step, each on a ground as dark as its weight."""
    longest = max(len(token.text) for token in tokens)
    figure, axes = new_figure(1 + len(tokens) * (0.2 + 0.07 * longest), 0.8 + 0.28 * len(titles))
    axis = axes[0, 0]
    axis.imshow(torch.stack(weights).numpy(), aspect="auto", cmap="Blues", vmin=0, vmax=1)
    for row, values in enumerate(weights):
        for column, token in enumerate(tokens):
            colour = "white" if float(values[column]) > 0.55 else "black"
            axis.text(column, row, token.text, ha="center", va="center", fontsize=7, color=colour, parse_math=False)
    axis.set_yticks(range(len(titles)), titles)
    axis.set_xticks([])
    axis.set_title(f"attention of {source}")
    axis.grid(False)
    return figure
