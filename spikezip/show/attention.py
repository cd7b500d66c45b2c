"""Where a spiking network looks: the attention that has accumulated up to each step, beside the quantized network's.

At step t the tracers of an attention-probability site hold the spikes that it has fired so far. Times its scale they
are the accumulated attention, which the paper's feature-map figure lays over the input as a mask.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikezip.engines import Run, SpikingNetwork, quantized, simulate
from spikezip.engines.loop import find_primary
from spikezip.errors import InputError
from spikezip.program.analysis import source
from spikezip.program.attention import is_exponential, weighs_places
from spikezip.program.batch import Batch, sizes_of
from spikezip.program.nodes import Convolution, Matmul, Program, Site
from spikezip.program.sizes import bind
from spikezip.quant.network import QuantizedNetwork
from spikezip.show.sample import one_sample, pixels_of, real_tokens

ROLLED_OUT = "rolled out"
_BYTES = 512 * 2**20  # spike trains that may be held at once: layers are recorded in groups that stay below


@dataclass(frozen=True)
class AttentionMap:
    """Weights over patches or tokens: `over_time` is `[T, places]`, `qann` is `[places]`.

    `name` is a site, averaged over heads, or "rolled out": all layers together.
    """

    name: str
    over_time: Tensor
    qann: Tensor

    @property
    def top(self) -> float:
        """The largest weight of the quantized network: what counts as full brightness at every step."""
        return max(float(self.qann.max()), 1e-12)

    def shown(self, step: int) -> Tensor:
        """The weights at a step (from 1; the last step stands for all after it), 0 … 1."""
        return (self.over_time[min(step, len(self.over_time)) - 1] / self.top).clamp(0, 1)


@dataclass(frozen=True)
class Attentions:
    """The maps of one input: of each layer in order, then rolled out.

    `grid` is the height and width of an image in patches; a text has None.
    """

    maps: tuple[AttentionMap, ...]
    grid: tuple[int, int] | None
    source: str  # whose attention it is: "the class token", …

    @property
    def last_layer(self) -> AttentionMap:
        return self.maps[-2]

    def __getitem__(self, name: str) -> AttentionMap:
        for one in self.maps:
            if one.name == name:
                return one
        raise InputError(f"there is no attention map {name!r}; there are {', '.join(m.name for m in self.maps)}")


@torch.no_grad()
def attention_maps(
    snn: SpikingNetwork,
    batch: Batch,
    qann: QuantizedNetwork | None = None,
    *,
    sample: int = 0,
    steps: Any = "equilibrium",
    **settings: Any,
) -> Attentions:
    """The accumulated attention of one sample at every step: of each layer, and rolled out over all of them.

    The weights are those of the class token; of the last token in a network that reads from left to right; the mean
    over all, where there is no such token. Rolled out means that half of each layer's input passes it by, as the
    residual connection does, and layers are multiplied (Abnar and Zuidema, 2020).

    Args:
        qann: the quantized network to compare with. Without one it is computed from the SNN's own weights.
        settings: how to simulate, as `spikezip.simulate` takes it.

    Example:
        >>> import transformers
        >>> from spikezip.models.networks import convert, quantize
        >>> from spikezip.quant.calibration import calibrate
        >>> from spikezip.quant.config import QuantConfig
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = quantize(transformers.ViTModel(vit), QuantConfig(levels=8))
        >>> snn = convert(calibrate(qann, torch.randn(2, 3, 32, 32)))
        >>> found = attention_maps(snn, torch.randn(1, 3, 32, 32), qann)
        >>> [one.name for one in found.maps], found.grid, found.source
        (['layers.0.attention.p', 'rolled out'], (2, 2), 'the class token')
        >>> torch.equal(found["rolled out"].over_time[-1], found["rolled out"].qann)
        True
    """
    inputs, _ = one_sample(snn, batch, sample)
    run = simulate(snn, inputs, steps=steps, **settings)
    return maps_of(snn, inputs, qann_answer(snn, qann, inputs)[1], run, steps, settings)


def qann_answer(
    snn: SpikingNetwork, qann: QuantizedNetwork | None, inputs: dict[str, Any]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The quantized network's output and the codes of its sites, computed from the SNN's integers without a QANN."""
    network = snn if qann is None else qann
    output, codes = quantized(network.frozen(), network.prepare(inputs))
    return find_primary(output), codes


def attention_sites(program: Program) -> list[str]:
    """The sites of attention, in order: a softmax over the last dimension, or its exponentials, times another value."""
    lefts = (source(program, node.a) for node in program.products if isinstance(node, Matmul))
    found = {site.name for site in lefts if isinstance(site, Site) and weighs_places(program, site.u)}
    return [name for name in program.sites if name in found]


def maps_of(
    snn: SpikingNetwork, inputs: dict[str, Any], codes: Mapping[str, Tensor], run: Run, steps: Any, settings: Any
) -> Attentions:
    """As `attention_maps`, when one run and the codes of the quantized network are there already."""
    network = snn.frozen()
    names = attention_sites(snn.program)
    if not names:
        raise InputError(f"{type(snn).__name__} has no attention")
    _check_places(snn.program, names, codes)
    view = _view(snn, inputs, [codes[name] for name in names])
    identity = torch.eye(len(view.start), dtype=torch.float64)
    start = view.start.expand(run.steps + 1, -1)
    rolled, maps = start, []
    for name, over_time in _recorded(snn, inputs, names, run, steps, settings):
        # The quantized network goes along as one more step: equal codes then give equal maps, to the last bit.
        still = codes[name].to(over_time)[None]
        weights = torch.cat([over_time, still]).flatten(1, -3).double()  # [T + 1, heads, n, n]
        if is_exponential(snn.program, snn.program.sites[name].u):
            weights /= weights.sum(dim=-1, keepdim=True).clamp(min=1)
        else:
            weights *= network.step_size(name).cpu().double()
        attention = weights.mean(dim=1)
        maps.append(view.map(name, _from(start, attention)))
        mixed = attention + identity
        rolled = _from(rolled, mixed / mixed.sum(dim=-1, keepdim=True))
    return Attentions((*reversed(maps), view.map(ROLLED_OUT, rolled)), view.grid, view.source)


def _check_places(program: Program, names: list[str], codes: Mapping[str, Tensor]) -> None:
    """All layers must look from the same places at the same places."""
    places = program.sites[names[0]].shape[-1]
    for name in names:
        if codes[name].ndim > 3 and codes[name].shape[0] != 1:
            raise InputError(
                f"{name} attends within windows: there is no one weight from one place to all others to show"
            )
        queries, keys = program.sites[name].shape[-2:]
        if queries != keys or keys != places:
            raise InputError(
                f"{name} looks from {queries} places at {keys}, {names[0]} at {places}: there is no one map to show"
            )


def _recorded(
    snn: SpikingNetwork, inputs: dict[str, Any], names: list[str], run: Run, steps: Any, settings: Any
) -> Iterator[tuple[str, Tensor]]:
    """For each site, from the last layer to the first, its tracers over time `[T, …, n, n]`."""
    groups: list[list[str]] = []
    room = 0
    for name in reversed(names):
        size = 5 * run.steps * run.neurons[name]  # spikes as int8 and their running sum as int32
        if size > room:
            groups.append([])
            room = max(_BYTES, size)
        groups[-1].append(name)
        room -= size
    for group in groups:
        trains = simulate(snn, inputs, steps=steps, **settings, record=tuple(group)).trains
        for name in group:
            yield name, trains.pop(name).cpu().cumsum(dim=0, dtype=torch.int32)


def _from(weights: Tensor, attention: Tensor) -> Tensor:
    """Weights `[…, n]` over queries, carried on to keys by `attention` `[…, n, n]`."""
    return (weights.unsqueeze(-2) @ attention).squeeze(-2)


@dataclass(frozen=True)
class _View:
    """Which query is looked from, and which keys are shown."""

    start: Tensor  # [n], the weights of queries
    shown: Tensor  # [n], which keys
    grid: tuple[int, int] | None
    source: str

    def map(self, name: str, weights: Tensor) -> AttentionMap:
        """From weights `[T + 1, n]`, the last of which are the quantized network's."""
        seen = weights[:, self.shown].float()
        return AttentionMap(name, seen[:-1], seen[-1])


def _view(snn: SpikingNetwork, inputs: Mapping[str, Any], codes: list[Tensor]) -> _View:
    places = codes[0].shape[-1]
    start = torch.zeros(places, dtype=torch.float64)
    if pixels_of(snn, inputs) is not None:
        grid = _patches(snn, inputs)
        before = places - grid[0] * grid[1]  # the class token and its like
        if before < 0:
            raise InputError(f"attention is over {places} places, fewer than the {grid[0]} × {grid[1]} patches")
        shown = torch.arange(places) >= before
        if before:
            start[0] = 1
            return _View(start, shown, grid, "the class token")
        return _View(start + 1 / places, shown, grid, "all patches, on average")
    shown = real_tokens(inputs)
    if len(shown) != places:
        raise InputError(f"attention is over {places} places, and there are {len(shown)} tokens")
    if all(_looks_back(each, shown) for each in codes):
        start[int(shown.nonzero().max())] = 1
        return _View(start, shown, None, "the last token")
    start[int(shown.nonzero().min())] = 1
    return _View(start, shown, None, "the first token")


def _patches(snn: SpikingNetwork, inputs: Mapping[str, Any]) -> tuple[int, int]:
    """Height and width of the image in patches: what the first convolution makes of it."""
    sizes = sizes_of(snn.program, inputs)
    for node in snn.program.products:
        if isinstance(node, Convolution) and len(node.stride) == 2:
            height, width = (bind(size, sizes) for size in node.shape[-2:])
            return height, width
    raise InputError(f"{type(snn).__name__} has no convolution that cuts an image into patches")


def _looks_back(codes: Tensor, tokens: Tensor) -> bool:
    """Whether no token looks at a later one, padding aside: the network reads from left to right."""
    seen = codes.cpu()[..., tokens, :][..., tokens]
    return not bool(seen.triu(1).any())
