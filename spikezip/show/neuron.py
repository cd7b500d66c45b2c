"""Single neurons at work: membrane and tracer over time, beside the staircase of their quantizer."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikezip.engines import Drive, SpikingNetwork
from spikezip.engines.engine import driven
from spikezip.engines.loop import step_limit
from spikezip.engines.spike import SpikeEngine
from spikezip.errors import ConfigError
from spikezip.ops import neuron as equations
from spikezip.ops import rounding
from spikezip.program.batch import Batch
from spikezip.program.freeze import Frozen
from spikezip.program.nodes import Site
from spikezip.show.chart import COLOURS
from spikezip.show.need import need
from spikezip.show.sample import one_sample
from spikezip.show.static import new_figure, styled


@dataclass(frozen=True)
class NeuronTrace:
    """One neuron over time. Every list has a value per step, after it.

    Attributes:
        place: where in the site's tensor, without the batch.
        accumulated: U, the input so far. membrane: `s/2 + U − s·S`. tracer: S, the spikes so far, up minus down.
        code: what the quantizer says of U; where the tracer rests, it is the same.
    """

    site: str
    place: tuple[int, ...]
    scale: float
    lo: int
    hi: int
    accumulated: list[float]
    membrane: list[float]
    tracer: list[int]
    code: list[int]

    @property
    def spikes(self) -> list[int]:
        return [now - before for before, now in zip([0, *self.tracer], self.tracer, strict=False)]


@torch.no_grad()
def trace_neurons(
    snn: SpikingNetwork,
    batch: Batch,
    neurons: Mapping[str, Sequence[int]],
    *,
    sample: int = 0,
    steps: Any = "equilibrium",
    **settings: Any,
) -> list[NeuronTrace]:
    """Watch neurons: site → numbers of neurons, counted through its tensor. It runs on the spike engine.

    Example:
        >>> import transformers
        >>> from spikezip.models.networks import convert, quantize
        >>> from spikezip.quant.calibration import calibrate
        >>> from spikezip.quant.config import QuantConfig
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = quantize(transformers.ViTModel(vit), QuantConfig(levels=8))
        >>> snn = convert(calibrate(qann, torch.randn(2, 3, 32, 32)))
        >>> (trace,) = trace_neurons(snn, torch.randn(1, 3, 32, 32), {"layernorm": [9]})
        >>> trace.place, trace.tracer[-1] == trace.code[-1]
        ((1, 1), True)
    """
    known = snn.neurons
    unknown = [site for site in neurons if site not in known]
    if unknown or not neurons:
        raise ConfigError(
            f"no site is called {', '.join(map(repr, unknown)) or 'nothing'}; see snn.neurons for the names"
        )
    inputs, _ = one_sample(snn, batch, sample)
    network, drive = snn.frozen(), driven(None, {**settings, "steps": steps, "engine": "spike"})
    with torch.autocast(network.device.type, enabled=False):
        engine = _Listening(network, inputs, drive, neurons)
        for _ in range(step_limit(engine)):
            engine.advance(1)
            if drive.steps == "equilibrium" and bool(engine.at_equilibrium(engine.last_spike()).all()):
                break
    return [
        _trace(known[site], network.step_size(site).cpu(), engine.heard[site], number)
        for site, numbers in neurons.items()
        for number in numbers
    ]


class _Listening(SpikeEngine):
    """The spike engine, keeping what arrives at some sites and their tracers, step by step."""

    def __init__(self, network: Frozen, inputs: Mapping[str, Any], drive: Drive, sites: Iterable[str]) -> None:
        super().__init__(network, network.program.layout, inputs, drive)
        self.heard: dict[str, list[tuple[Tensor, Tensor]]] = {site: [] for site in sites}

    def _fire(self, site: Site, u: Tensor) -> Tensor:
        tracer = super()._fire(site, u)
        if site.name in self.heard:
            self.heard[site.name].append((self.entering(site, u).cpu(), tracer.cpu()))
        return tracer


def _trace(site: Site, scale: Tensor, heard: list[tuple[Tensor, Tensor]], number: int) -> NeuronTrace:
    shape = heard[0][0].shape
    if not 0 <= number < shape.numel():
        raise ConfigError(f"{site.name} has {shape.numel():,} neurons, counted from 0: there is no {number}")
    place = torch.unravel_index(torch.tensor(number), shape)
    scale = scale if scale.ndim == 0 else scale[int(place[-1])]
    u, tracer = (torch.stack([each.flatten()[number] for each in values]) for values in zip(*heard, strict=True))
    return NeuronTrace(
        site=site.name,
        place=tuple(int(index) for index in place[1:]),
        scale=float(scale),
        lo=site.lo,
        hi=site.hi,
        accumulated=u.tolist(),
        membrane=equations.membrane(u, tracer.to(u), scale).tolist(),
        tracer=tracer.to(torch.int64).tolist(),
        code=rounding.code(u, scale, site.lo, site.hi).to(torch.int64).tolist(),
    )


def neuron_figure(traces: Sequence[NeuronTrace]) -> Any:
    """A matplotlib figure with a row per neuron: membrane, tracer, and the walk up the quantizer's staircase."""
    if not traces:
        raise ConfigError("there is no neuron to draw")
    with styled():
        figure, axes = new_figure(9.6, 2.5 * len(traces), len(traces), 3)
        for row, trace in zip(axes, traces, strict=True):
            place = ", ".join(map(str, trace.place))
            row[0].set_title(f"{trace.site} [{place}]", loc="left")
            _draw_membrane(row[0], trace)
            _draw_tracer(row[1], trace)
            _draw_staircase(row[2], trace)
        named = [axis.get_legend_handles_labels() for axis in axes[0]]
        handles, names = ([item for pair in named for item in pair[place]] for place in (0, 1))
        figure.legend(handles, names, loc="outside upper center", ncols=len(names))
        return figure


def _draw_membrane(axis: Any, trace: NeuronTrace) -> None:
    steps = range(1, len(trace.membrane) + 1)
    axis.axhspan(0, trace.scale, color="#eeeeee", zorder=0)
    axis.plot(steps, trace.membrane, color=COLOURS[2], label="membrane V")
    axis.axhline(trace.scale, color="#555555", linewidth=0.8, linestyle=":", label="threshold s and 0")
    axis.axhline(0, color="#555555", linewidth=0.8, linestyle=":")
    axis.set(xlabel="step", ylabel="membrane V after the step")
    axis.xaxis.set_major_locator(need("matplotlib.ticker").MaxNLocator(integer=True))


def _draw_tracer(axis: Any, trace: NeuronTrace) -> None:
    steps = list(range(1, len(trace.tracer) + 1))
    axis.step(steps, trace.code, where="mid", color="#999999", label="code of the input so far")
    axis.step(steps, trace.tracer, where="mid", color=COLOURS[0], label="tracer S")
    for sign, marker, colour, name in ((1, "^", COLOURS[0], "spike +"), (-1, "v", COLOURS[1], "spike −")):
        fired = [(t, s) for t, s, spike in zip(steps, trace.tracer, trace.spikes, strict=True) if spike * sign > 0]
        axis.scatter(
            *(zip(*fired, strict=True) if fired else ((), ())), marker=marker, s=16, color=colour, label=name, zorder=3
        )
    axis.set(xlabel="step", ylabel="tracer S")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(need("matplotlib.ticker").MaxNLocator(integer=True))


def _draw_staircase(axis: Any, trace: NeuronTrace) -> None:
    """The quantizer's code over its input in units of s; the neuron walks to it, one unit per step."""
    u = [value / trace.scale for value in trace.accumulated]
    low = max(min(*u, *trace.tracer, -1) - 1, trace.lo - 1.5)
    high = min(max(*u, *trace.tracer, 1) + 1, trace.hi + 1.5)
    edges = [low, *(code + 0.5 for code in range(trace.lo, trace.hi) if low < code + 0.5 < high), high]
    codes = [min(max(math.floor(edge + 0.5 + 1e-9), trace.lo), trace.hi) for edge in edges[:-1]]
    axis.stairs(codes, edges, baseline=None, color="#999999", label="quantizer")
    axis.plot(u, trace.tracer, color=COLOURS[0], linewidth=0.6, alpha=0.5)
    points = axis.scatter(u, trace.tracer, c=range(1, len(u) + 1), cmap="viridis", s=14, zorder=3)
    axis.scatter(
        u[-1:], trace.tracer[-1:], marker="o", s=60, facecolors="none", edgecolors=COLOURS[1], label="at rest", zorder=4
    )
    axis.set(xlabel="input so far U / s", ylabel="tracer S, code", xlim=(min(low, *u), max(high, *u)))
    axis.yaxis.set_major_locator(need("matplotlib.ticker").MaxNLocator(integer=True))
    axis.figure.colorbar(points, ax=axis, label="step")
