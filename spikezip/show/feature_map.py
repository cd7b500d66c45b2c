"""The paper's feature-map figure, as pictures for papers: the input as the network sees it, step by step."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikezip.engines import SpikingNetwork
from spikezip.errors import InputError
from spikezip.program.batch import Batch
from spikezip.quant.network import QuantizedNetwork
from spikezip.show.attention import attention_maps
from spikezip.show.attention_document import AttentionDocument, AttentionSample
from spikezip.show.sample import one_sample, picture, pixels_of, tokens_of
from spikezip.show.static import new_figure, styled

SHADE = 0.15  # of a pixel's brightness, where nothing looks
LONGEST = 18  # letters of a label beside a row, before it goes on in the next line


@dataclass(frozen=True)
class Row:
    """One image, bytes `[H, W, C]`, the weights (0 … 1) of its patches for every column, and what stands beside it."""

    image: Tensor
    grid: tuple[int, int]
    weights: Sequence[Tensor]
    label: str = ""


def attention_figure(
    snn: SpikingNetwork,
    batch: Batch,
    qann: QuantizedNetwork | None = None,
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
        >>> import transformers
        >>> from spikezip.models.networks import convert, quantize
        >>> from spikezip.quant.calibration import calibrate
        >>> from spikezip.quant.config import QuantConfig
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = quantize(transformers.ViTModel(vit), QuantConfig(levels=8))
        >>> snn = convert(calibrate(qann, torch.randn(2, 3, 32, 32)))
        >>> [axis.get_title() for axis in attention_figure(snn, torch.randn(1, 3, 32, 32), at=(1, 4)).axes]
        ['input', 'T = 1', 'T = 4', 'QANN']
    """
    if not at or min(at) < 1:
        raise InputError(f"at={tuple(at)!r}: steps are counted from 1")
    found = attention_maps(snn, batch, qann, sample=sample, **settings)
    chosen = found.last_layer if name is None else found[name]
    weights = [*(chosen.shown(step) for step in at), (chosen.qann / chosen.top).clamp(0, 1)]
    inputs, _ = one_sample(snn, batch, sample)
    pixels = pixels_of(snn, inputs)
    if pixels is None or found.grid is None:
        words = [token.text for token in tokens_of(inputs, tokenizer)]
        return draw_words(words, at, weights, f"attention of {found.source}")
    base = picture(pixels) if image is None else image
    return draw_images([Row(base, found.grid, weights)], at)


def draw(document: AttentionDocument) -> Any:
    """The same figure from a document: a row for each image, with its class and the network's answer; or one text."""
    first = document.samples[0]
    if first.picture is None:
        said = first.said.replace("\n", ", ")
        title = f"attention of {document.source}" + (f" ({said})" if said else "")
        return draw_words(first.tokens, document.steps, _weights(first), title)
    return draw_images([_row(sample) for sample in document.samples], document.steps)


def _row(sample: AttentionSample) -> Row:
    assert sample.picture is not None  # a document holds images, or a text
    assert sample.grid is not None
    height, width = sample.grid
    return Row(sample.picture.tensor(), (height, width), _weights(sample), sample.said)


def _weights(sample: AttentionSample) -> list[Tensor]:
    return [torch.tensor(values).clamp(0, 1) for values in (*sample.weights, sample.qann)]


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


def draw_images(rows: Sequence[Row], at: Sequence[int]) -> Any:
    """A row for each image: the input, masked at each step, masked by the QANN.

    Example:
        >>> row = Row(torch.zeros(4, 4, 3, dtype=torch.uint8), (1, 1), [torch.ones(1)] * 2, "cat")
        >>> [axis.get_title() for axis in draw_images([row, row], [8]).axes]
        ['input', 'T = 8', 'QANN', '', '', '']
    """
    titles = ["input", *_titles(at)]
    with styled():
        figure, axes = new_figure(1, 1, len(rows), len(titles))
        for row, places in zip(rows, axes, strict=True):
            shown = [row.image, *(masked(row.image, one, row.grid) for one in row.weights)]
            for axis, pixels in zip(places, shown, strict=True):
                # "none": files of lines hold the pixels that there are, and no enlarged copy of them.
                axis.imshow(pixels.expand(-1, -1, 3).numpy(), interpolation="none")
                axis.set_axis_off()
        for axis, title in zip(axes[0], titles, strict=True):
            axis.set_title(title)
        labels = [_beside(axis, row.label) for axis, row in zip(axes[:, 0], rows, strict=True) if row.label]
        widest = max((label.get_window_extent().width / figure.dpi for label in labels), default=0.0)
        _place(figure, axes, [row.image.shape[0] / row.image.shape[1] for row in rows], widest)
    return figure


def _place(figure: Any, axes: Any, shapes: list[float], beside: float) -> None:
    """Give every image its place. Matplotlib's own layout is not the same to the last bit every time."""
    width, gap, above, edge = 1.27, 0.08, 0.23, 0.04  # inches; the titles stand above
    heights = [width * shape for shape in shapes]
    left = edge + (beside + gap if beside else 0)
    whole = left + (width + gap) * axes.shape[1] - gap + edge
    tall = above + sum(heights) + gap * (len(heights) - 1) + edge
    figure.set_layout_engine("none")
    figure.set_size_inches(whole, tall)
    bottom = tall - above
    for places, height in zip(axes, heights, strict=True):
        bottom -= height
        for column, axis in enumerate(places):
            x = left + (width + gap) * column
            axis.set_position((x / whole, bottom / tall, width / whole, height / tall))
        bottom -= gap


def _beside(axis: Any, label: str) -> Any:
    """Text to the left of an image."""
    text = "\n".join(textwrap.fill(line, LONGEST) for line in label.splitlines())
    place = {"xy": (0, 0.5), "xycoords": "axes fraction", "xytext": (-5, 0), "textcoords": "offset points"}
    return axis.annotate(text, **place, ha="right", va="center", fontsize=8, parse_math=False)


def draw_words(words: Sequence[str], at: Sequence[int], weights: Sequence[Tensor], title: str) -> Any:
    """One row of words per step, each on a ground as dark as its weight.

    Example:
        >>> figure = draw_words(["so", "good"], [4], [torch.tensor([0.1, 0.9])] * 2, "attention of the first token")
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['so', 'good', 'so', 'good']
    """
    titles = _titles(at)
    longest = max(map(len, words))
    with styled():
        figure, axes = new_figure(1 + len(words) * (0.2 + 0.07 * longest), 0.8 + 0.28 * len(titles))
        axis = axes[0, 0]
        axis.imshow(torch.stack(list(weights)).numpy(), aspect="auto", cmap="Blues", vmin=0, vmax=1)
        for row, values in enumerate(weights):
            for column, word in enumerate(words):
                colour = "white" if float(values[column]) > 0.55 else "black"
                axis.text(column, row, word, ha="center", va="center", fontsize=7, color=colour, parse_math=False)
        axis.set_yticks(range(len(titles)), titles)
        axis.set_xticks([])
        axis.set_title(title)
        axis.grid(False)
    return figure


def _titles(at: Sequence[int]) -> list[str]:
    return [*(f"T = {step}" for step in at), "QANN"]
