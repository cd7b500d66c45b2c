"""Operations of a spiking network, counted from the spikes of a run (docs/energy.md has the formulas)."""

from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor

from spikezip.batches import Batch, prepare
from spikezip.errors import InputError
from spikezip.measure.padding import Padding
from spikezip.measure.rows import INPUT, LINEAR, MIX, SCORES, Dense, Function, Layer, Operations, Product
from spikezip.measure.shapes import ATTENTION_MASK, AttentionShape, Layout, LinearShape, SiteShape, layout, layout_of
from spikezip.simulate import Run, SpikingModel

__all__ = ["Operations", "operations", "sites_to_record"]


def operations(snn: SpikingModel, run: Run, batch: Batch | None = None) -> Operations:
    """Count what a run cost, product by product, from its spikes and the shapes of the network.

    A head that reads one token sees the spikes of that token only. These are known step by step if the site was
    recorded (`simulate(..., record=sites_to_record(snn))`), and in sum with `simulate(..., count_neurons=True)`.

    Args:
        snn: the network that was run.
        run: what `spikezip.simulate` returned.
        batch: what was run. Needed where the config does not tell the input's shape (images of another size). With an
            `attention_mask` in it, and with `count_neurons=True`, counts without padded tokens are given too.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.quantize(transformers.ViTForImageClassification(vit))
        >>> snn = spikezip.convert(spikezip.calibrate(qann, torch.randn(2, 3, 32, 32)))
        >>> run = spikezip.simulate(snn, torch.randn(2, 3, 32, 32), "equilibrium", record=sites_to_record(snn))
        >>> counted = operations(snn, run)
        >>> fc1 = next(row for row in counted.products if row.name.endswith("mlp.fc1"))
        >>> fc1.accumulates == fc1.spikes * 3072 == int(run.spike_counts[fc1.source].sum()) * 3072
        True
    """
    found = layout_of(snn, run, batch)
    return _Count(snn, found, run, _mask(snn, batch)).operations()


def sites_to_record(snn: SpikingModel, batch: Batch | None = None) -> tuple[str, ...]:
    """The sites whose spike trains are needed to know, for each step, which spikes arrive at every product.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.calibrate(spikezip.quantize(transformers.ViTModel(vit)), torch.randn(2, 3, 32, 32))
        >>> sites_to_record(spikezip.convert(qann))
        ('layernorm',)
    """
    return layout(snn, batch).read_in_part


def _mask(snn: SpikingModel, batch: Batch | None) -> Tensor | None:
    if batch is None:
        return None
    mask = prepare(snn, batch).inputs.get(ATTENTION_MASK)
    return mask.cpu() if isinstance(mask, Tensor) and mask.ndim >= 2 else None


class _Count:
    """One run, counted."""

    def __init__(self, snn: SpikingModel, found: Layout, run: Run, mask: Tensor | None) -> None:
        self.layout = found
        self.run = run
        self.samples = len(run.t_eq)
        # What arrives where, [T, B]: the spikes of whole sites, and of the parts that some products read.
        self.arrived = {site: counts.cpu().to(torch.int64) for site, counts in run.spike_counts.items()}
        self.untimed: dict[str, int] = {}
        for product in found.linears:
            if product.read is not None:
                self._part(product, product.read)
        self.padding = Padding.of(found, run, mask)
        levels = next(site.levels for site in found.sites.values() if site.entry)
        self.ramp = levels if run.coding == "rate" else 1
        self.per_step: dict[str, Tensor] = defaultdict(lambda: torch.zeros(run.steps, dtype=torch.int64))

    def operations(self) -> Operations:
        products = tuple(self._products())
        layers = tuple(self._layer(site) for site in self.layout.sites.values())
        elements: dict[str, Tensor] = defaultdict(lambda: torch.zeros(self.run.steps, dtype=torch.int64))
        rows: dict[str, Tensor] = defaultdict(lambda: torch.zeros(self.run.steps, dtype=torch.int64))
        functions = []
        for shape in self.layout.functions:
            active = self._active(shape.sources).sum(dim=1)
            elements[shape.kind] += active * shape.elements
            rows[shape.kind] += active * shape.rows
            times = int(active.sum())
            single = shape.elements * self.samples, shape.rows * self.samples
            function = Function(shape.name, shape.kind, times, times * shape.elements, times * shape.rows, *single)
            functions.append(function)
        return Operations(
            samples=self.samples,
            steps=self.run.steps,
            products=products,
            dense=tuple(self._dense()),
            layers=layers,
            functions=tuple(functions),
            per_step=_tuples(self.per_step),
            function_elements=_tuples(elements),
            function_rows=_tuples(rows),
            untimed=sum(self.untimed[p.arriving] * p.out_features for p in self._untimed()),
        )

    def _part(self, product: LinearShape, read: Tensor) -> None:
        """The spikes of those neurons of a site that a product reads."""
        site, arriving = product.source, product.arriving
        chosen = read.nonzero().flatten()
        if site in self.run.trains:
            trains = self.run.trains[site].reshape(self.run.steps, self.samples, -1)
            spikes = trains[:, :, chosen.to(trains.device)].to(torch.int64).abs().cpu()
            self.arrived[arriving] = (spikes * read[chosen]).sum(dim=2)
        elif site in self.run.neuron_spikes:
            spikes = self.run.neuron_spikes[site].reshape(self.samples, -1).cpu()[:, chosen]
            self.untimed[arriving] = int((spikes.to(torch.int64) * read[chosen]).sum())
        else:
            raise InputError(
                f"{product.name} reads a part of the site {site!r}, and this run does not say which of its spikes are "
                "in that part: call simulate(..., record=sites_to_record(snn)), or with count_neurons=True"
            )

    def _untimed(self) -> Iterator[LinearShape]:
        return (product for product in self.layout.linears if product.arriving in self.untimed)

    def _products(self) -> Iterator[Product]:
        sites = self.layout.sites
        for shape in self.layout.linears:
            bits, fan_out = shape.weight_bits, shape.out_features
            real = self.padding.linear(shape) if self.padding else None
            yield self._driven(shape.name, LINEAR, shape.source, shape.arriving, bits, fan_out, real)
        for a in self.layout.attentions:
            real_costs = self.padding.attention(a) if self.padding else {}
            for name, kind, source, other, fan_out in sesa_rows(a):
                yield self._driven(name, kind, source, source, sites[other].bits, fan_out, real_costs.get(name))

    def _driven(
        self,
        name: str,
        kind: str,
        source: str,
        arriving: str,
        bits: int | None,
        fan_out: int,
        real: tuple[int, int] | None,
    ) -> Product:
        if arriving in self.untimed:
            spikes = self.untimed[arriving]
        else:
            over_time = self.arrived[arriving].sum(dim=1)
            self.per_step[kind] += over_time * fan_out
            spikes = int(over_time.sum())
        return Product(name, kind, source, bits, spikes, fan_out, spikes * fan_out, *(real or (None, None)))

    def _layer(self, site: SiteShape) -> Layer:
        """A step looks at a sample's neurons if something arrives, or if one of them has fired and may go on."""
        fired = self.arrived[site.name] > 0
        looked = self._active(site.sources) | fired
        looked[1:] |= fired[:-1]
        if site.entry:
            looked[: self.ramp] = True
        spikes = self.arrived[site.name].sum(dim=1)
        self.per_step["spikes"] += spikes
        updates = looked.sum(dim=1) * site.neurons
        self.per_step["updates"] += updates
        return Layer(site.name, site.bits, site.neurons * self.samples, int(spikes.sum()), int(updates.sum()))

    def _active(self, sources: frozenset[str]) -> Tensor:
        """`[T, B]`: whether a step changes what depends on these sources. In the first step everything is new."""
        active = torch.zeros(self.run.steps, self.samples, dtype=torch.bool)
        active[0] = True
        for source in sources:
            # A part that was not recorded is silent at least when its whole site is.
            known = source if source in self.arrived else source.split(" → ")[0]
            active |= self.arrived[known] > 0
        return active

    def _dense(self) -> Iterator[Dense]:
        n, sites = self.samples, self.layout.sites
        for shape in self.layout.inputs:
            yield Dense(shape.name, INPUT, None, None, shape.macs * n, shape.outputs * n)
        for linear in self.layout.linears:
            bits = sites[linear.source].bits if linear.weight_bits is not None else None
            yield Dense(linear.name, LINEAR, bits, linear.weight_bits, linear.macs * n, linear.outputs * n)
        for a in self.layout.attentions:
            q, k, v, p = (sites[name].bits for name in (a.q, a.k, a.v, a.p))
            scores, mixed = a.heads * a.queries * a.keys, a.heads * a.queries * a.width
            yield Dense(f"{a.name}.scores", SCORES, q, k, a.score_macs * n, scores * n)
            yield Dense(f"{a.name}.mix", MIX, p, v, a.mix_macs * n, mixed * n)


def sesa_rows(a: AttentionShape) -> list[tuple[str, str, str, str, int]]:
    """The three products of SESA, for scores and for the mix: name, kind, whose spikes, what they add, fan-out.

    A spike of q (one token, one channel) meets that channel of every key; one of k that of every query, in every head
    that shares the key. A spike of p meets every channel of one value; one of v that value's weight in every query.
    """
    queries = a.queries * a.groups
    return [
        (f"{a.name}.S_Q·K", SCORES, a.k, a.q, queries),
        (f"{a.name}.Q·S_K", SCORES, a.q, a.k, a.keys),
        (f"{a.name}.Q·K", SCORES, a.q, a.k, a.keys),
        (f"{a.name}.S_P·V", MIX, a.v, a.p, queries),
        (f"{a.name}.P·S_V", MIX, a.p, a.v, a.width),
        (f"{a.name}.P·V", MIX, a.p, a.v, a.width),
    ]


def _tuples(over_time: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(counts.tolist()) for name, counts in over_time.items()}
