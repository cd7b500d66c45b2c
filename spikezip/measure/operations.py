"""Operations of a spiking network, counted from the spikes of a run (docs/energy.md has the formulas)."""

from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor

from spikezip.engines import Run, SpikingNetwork
from spikezip.errors import InputError
from spikezip.measure.padding import ATTENTION_MASK, Padding
from spikezip.measure.rows import INPUT, LINEAR, SCORES, Dense, Function, Layer, Operations, Product
from spikezip.measure.shapes import Layout, Operand, SiteShape, layout, layout_of
from spikezip.program.batch import Batch
from spikezip.program.sizes import bind

__all__ = ["Operations", "operations", "sites_to_record"]


def operations(snn: SpikingNetwork, run: Run, batch: Batch | None = None) -> Operations:
    """Count what a run cost, product by product, from its spikes and the shapes of the network.

    A head that reads one token sees the spikes of that token only. These are known step by step if the site was
    recorded (`simulate(..., record=sites_to_record(snn))`), and in sum with `simulate(..., count_neurons=True)`.

    Args:
        snn: the network that was run.
        run: what `spikezip.simulate` returned.
        batch: what was run. With an `attention_mask` in it, and with `count_neurons=True`, counts without padded
            tokens are given too.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.quantize(transformers.ViTForImageClassification(vit))
        >>> snn = spikezip.convert(spikezip.calibrate(qann, torch.randn(2, 3, 32, 32)))
        >>> run = spikezip.simulate(snn, torch.randn(2, 3, 32, 32), steps="equilibrium", record=sites_to_record(snn))
        >>> counted = operations(snn, run)
        >>> fc1 = next(row for row in counted.products if row.name.endswith("mlp.fc1"))
        >>> fc1.accumulates == fc1.spikes * 3072 == int(run.spike_counts[fc1.source].sum()) * 3072
        True
    """
    found = layout_of(snn, run, batch)
    mask = None if batch is None else snn.prepare(batch).get(ATTENTION_MASK)
    return _Count(snn, found, run, None if mask is None else mask.cpu()).operations()


def sites_to_record(snn: SpikingNetwork, batch: Batch | None = None) -> tuple[str, ...]:
    """The sites whose spike trains are needed to know, for each step, which spikes arrive at every product.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.calibrate(spikezip.quantize(transformers.ViTModel(vit)), torch.randn(2, 3, 32, 32))
        >>> sites_to_record(spikezip.convert(qann))
        ('layernorm',)
    """
    return layout(snn, batch).read_in_part


class _Count:
    """One run, counted."""

    def __init__(self, snn: SpikingNetwork, found: Layout, run: Run, mask: Tensor | None) -> None:
        self.layout = found
        self.run = run
        self.samples = len(run.t_eq)
        # What arrives where, [T, B]: the spikes of whole sites, and of the parts that some products read.
        self.arrived = {site: counts.cpu().to(torch.int64) for site, counts in run.spike_counts.items()}
        self.padding = Padding.of(snn.frozen(), found, run, mask)
        self.untimed = 0
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
            untimed=self.untimed,
        )

    def _products(self) -> Iterator[Product]:
        for shape in self.layout.products:
            if shape.kind == LINEAR:
                yield self._driven(shape.name, LINEAR, shape.operands[0], shape.weight_bits)
                continue
            (left, right), bits = shape.operands, {o.site: self.layout.sites[o.site].bits for o in shape.operands}
            a, b = ("Q", "K") if shape.kind == SCORES else ("P", "V")
            # The three products of SESA: the tracer of one operand with the spikes of the other, and both spikes.
            yield self._driven(f"{shape.name}.S_{a}·{b}", shape.kind, right, bits[left.site])
            yield self._driven(f"{shape.name}.{a}·S_{b}", shape.kind, left, bits[right.site])
            yield self._driven(f"{shape.name}.{a}·{b}", shape.kind, left, bits[right.site])

    def _driven(self, name: str, kind: str, operand: Operand, bits: int | None) -> Product:
        """What the spikes of an operand cost; where neurons differ, each is asked for its own spikes."""
        cost, site, real = operand.cost, operand.site, self.padding.count(operand) if self.padding else (None, None)
        if isinstance(cost, int):
            spikes = self.arrived[site].sum(dim=1)
            self.per_step[kind] += spikes * cost
            arrived, total = int(spikes.sum()), int(spikes.sum()) * cost
        elif site in self.run.trains:
            trains = self._by_neuron(self.run.trains[site], site, 1)  # [T, B, neurons]
            chosen = (cost.flatten() > 0).nonzero().flatten()
            taken = trains[:, :, chosen.to(trains.device)].to(torch.int64).abs().cpu()
            self.arrived[operand.arriving] = taken.sum(dim=2)
            over_time = (taken * cost.flatten()[chosen]).sum(dim=(1, 2))
            self.per_step[kind] += over_time
            arrived, total = int(taken.sum()), int(over_time.sum())
        elif site in self.run.neuron_spikes:
            fired = self._by_neuron(self.run.neuron_spikes[site], site, 0).cpu().to(torch.int64)
            arrived, total = int(fired[:, cost.flatten() > 0].sum()), int((fired * cost.flatten()).sum())
            self.untimed += total
        else:
            raise InputError(
                f"the spikes of the site {site!r} do not all cost the same in {name}, and this run does not say which "
                "neurons fired: call simulate(..., record=sites_to_record(snn)), or with count_neurons=True"
            )
        return Product(name, kind, site, bits, arrived, operand.fan_out, total, *real)

    def _by_neuron(self, x: Tensor, site: str, before: int) -> Tensor:
        """Values of a site as `[…, B, neurons]`, behind `before` dimensions of their own."""
        prefix = self.layout.program.layout.prefix.get(site)
        if prefix is None:  # samples share these neurons
            return x.reshape(*x.shape[:before], 1, -1).expand(*x.shape[:before], self.samples, -1)
        by_sample = x.reshape(*x.shape[:before], bind(prefix, self.layout.sizes), self.samples, -1)
        return by_sample.transpose(before, before + 1).flatten(before + 1)

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
        for layer in self.layout.inputs:
            yield Dense(layer.name, INPUT, None, None, layer.macs * n, layer.outputs * n)
        for shape in self.layout.products:
            left = sites[shape.operands[0].site].bits
            right = shape.weight_bits if shape.kind == LINEAR else sites[shape.operands[1].site].bits
            left_bits = left if right is not None else None
            yield Dense(shape.name, shape.kind, left_bits, right, shape.macs * n, shape.outputs * n)


def _tuples(over_time: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(counts.tolist()) for name, counts in over_time.items()}
