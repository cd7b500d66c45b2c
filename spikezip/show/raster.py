"""Rasters: which neuron fired when, up or down."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spikezip.engines import Run
from spikezip.errors import ConfigError, InputError
from spikezip.show.chart import COLOURS
from spikezip.show.need import need
from spikezip.show.static import new_figure, styled

UP, DOWN = COLOURS[0], COLOURS[1]


def raster(run: Run, sites: Sequence[str] = (), *, sample: int = 0, neurons: int = 80) -> Any:
    """A matplotlib figure with a raster for each recorded site: spikes of +1 and of −1, and how many at each step.

    Args:
        run: of `spikezip.simulate(…, record=[…])`.
        sites: which of the recorded sites; none named: all.
        neurons: how many of a site's neurons are drawn, at equal distances. The counts are of all.

    Example:
        >>> import transformers
        >>> from spikezip.engines import simulate
        >>> from spikezip.models.networks import convert, quantize
        >>> from spikezip.quant.calibration import calibrate
        >>> from spikezip.quant.config import QuantConfig
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = quantize(transformers.ViTModel(vit), QuantConfig(levels=8))
        >>> snn = convert(calibrate(qann, torch.randn(2, 3, 32, 32)))
        >>> run = simulate(snn, torch.randn(1, 3, 32, 32), steps="equilibrium", record=["layernorm"])
        >>> [axis.get_xlabel() for axis in raster(run).axes]
        ['', 'step']
    """
    chosen = list(sites) or list(run.trains)
    missing = [site for site in chosen if site not in run.trains]
    if missing or not chosen:
        what = ", ".join(map(repr, missing)) or "no site"
        raise ConfigError(f"{what} was recorded in this run: name sites in simulate(record=[…])")
    if not 0 <= sample < len(run.t_eq):
        raise InputError(f"there is no sample {sample}: the run holds {len(run.t_eq)}, counted from 0")
    if neurons < 1:
        raise ConfigError(f"neurons={neurons}: at least 1")
    with styled():
        heights = [3, 1] * len(chosen)
        figure, axes = new_figure(5.6, 2.6 * len(chosen), 2 * len(chosen), 1, sharex=True, height_ratios=heights)
        for place, site in enumerate(chosen):
            train = _train(run, site, sample)
            _draw_spikes(axes[2 * place, 0], site, train, min(neurons, train.shape[1]))
            _draw_counts(axes[2 * place + 1, 0], train)
        axes[-1, 0].set_xlabel("step")
        axes[-1, 0].set_xlim(0.5, run.steps + 0.5)
        axes[-1, 0].xaxis.set_major_locator(need("matplotlib.ticker").MaxNLocator(integer=True))
        axes[0, 0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)
        return figure


def _train(run: Run, site: str, sample: int) -> Tensor:
    """The spikes of one sample, `[T, neurons]`. A site's rows may be several per sample (windows)."""
    return run.trains[site].cpu().reshape(run.steps, len(run.t_eq), -1)[:, sample].to(torch.int32)


def _draw_spikes(axis: Any, site: str, train: Tensor, count: int) -> None:
    total = train.shape[1]
    chosen = torch.arange(count) * total // count
    shown = train[:, chosen]
    for sign, colour, name in ((1, UP, "spike +"), (-1, DOWN, "spike −")):
        step, neuron = (shown.sign() == sign).nonzero(as_tuple=True)
        axis.scatter((step + 1).tolist(), neuron.tolist(), s=5, marker="s", linewidths=0, color=colour, label=name)
    axis.set_ylim(-1, count)
    axis.set_title(site, loc="left")
    axis.set_ylabel(f"{count:,} of {total:,} neurons")
    axis.set_yticks([])
    axis.grid(False)


def _draw_counts(axis: Any, train: Tensor) -> None:
    steps = range(1, len(train) + 1)
    axis.bar(steps, train.clamp(min=0).sum(dim=1).tolist(), color=UP)
    axis.bar(steps, train.clamp(max=0).sum(dim=1).tolist(), color=DOWN)
    axis.axhline(0, color="#555555", linewidth=0.6)
    axis.set_ylabel("spikes")
