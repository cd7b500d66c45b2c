"""Operations counted the slow way: an engine that goes through what really flows into every product, spike by spike."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor

import spikezip
from spikezip.engines import ENGINES
from spikezip.engines.spike import SpikeEngine
from spikezip.program.analysis import source
from spikezip.program.nodes import Site


class CountingEngine(SpikeEngine):
    """The spike engine, with a tally. A spike that adds a number to each of n sums is n accumulates."""

    last: "CountingEngine"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        mask = args[2].get("attention_mask")
        type(self).last = self
        self.tally: Counter[str] = Counter()  # product → accumulates of the batch
        self.real: Counter[str] = Counter()  # the same among tokens that are no padding
        self.by_step: dict[str, Counter[int]] = {}
        self.fired: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()  # site → samples × steps in which its input changed
        self.before: dict[str, Tensor] = {}
        self.arrived: dict[tuple[str, int], Tensor] = {}
        self.mask = None if mask is None else mask.flatten(0, -2)  # [texts, tokens]

    def _fire(self, site: Any, u: Tensor) -> Tensor:
        was = self.state.tracers[site.name].clone() if site.name in self.state.tracers else torch.zeros_like(u)
        before = self.before.get(site.name)
        arriving = self.entering(site, u)
        by_sample = arriving.reshape(self.batch, -1)
        for b in range(self.batch):
            if before is None or not torch.equal(before[b], by_sample[b]):
                self.changed[site.name] += 1
        self.before[site.name] = by_sample.clone()
        now = super()._fire(site, u)
        for spike in (now - was).flatten().tolist():
            self.fired[site.name] += abs(int(spike))
        return now

    def _product(self, node: Any, values: Any) -> Tensor:
        operands = [values[name].clone() for name in node.reads[:2] if isinstance(source(self.program, name), Site)]
        arrivals = [x - self.arrived.get((node.name, i), torch.zeros_like(x)) for i, x in enumerate(operands)]
        if len(operands) == 1:
            self.linear(node, arrivals[0])
        else:
            self.matmul(node, *operands, *arrivals)
        self.arrived |= {(node.name, i): x for i, x in enumerate(operands)}
        return super()._product(node, values)

    def add(self, product: str, count: int, real: int) -> None:
        self.tally[product] += count
        self.real[product] += real
        self.by_step.setdefault(product, Counter())[self.state.done] += count

    def linear(self, node: Any, spikes: Tensor) -> None:
        rows = self.program[node.reads[1]].shape[0]
        count = real = 0
        for index in spikes.nonzero().tolist():
            cost = 0
            for _row in range(rows):  # one sum for each row of the weights
                cost += abs(int(spikes[tuple(index)]))
            count += cost
            real += cost * self.is_real(index, spikes.ndim, len(spikes))
        self.add(node.module, count, real)

    def is_real(self, index: list[int], ndim: int, rows: int) -> bool:
        if self.mask is None or (ndim < 3 and rows != self.mask.numel()):
            return True
        if ndim < 3:  # tokens one after another
            return bool(self.mask.flatten()[index[0]])
        return bool(self.mask[index[0], index[1]])

    def matmul(self, node: Any, a: Tensor, b: Tensor, left: Tensor, right: Tensor) -> None:
        mixes = node.a in self.program and "softmax" in str(self.program[source(self.program, node.a).u].details)
        tracer_first, spike_first, both = ("S_P·V", "P·S_V", "P·V") if mixes else ("S_Q·K", "Q·S_K", "Q·K")
        # a: [texts, heads, rows, inner], b: [texts, heads, inner, columns]
        for product, spikes, is_left in ((tracer_first, right, False), (spike_first, left, True), (both, left, True)):
            count = real = 0
            for text, head, i, j in spikes.nonzero().tolist():
                size = abs(int(spikes[text, head, i, j]))
                for other in range(b.shape[3] if is_left else a.shape[2]):
                    # the pair of operands a[row, inner] · b[inner, column] that this spike is one of
                    row, inner, column = (i, j, other) if is_left else (other, i, j)
                    count += size
                    real += size * self.both_real(mixes, text, row, inner, column)
            self.add(f"{node.name}.{product}", count, real)

    def both_real(self, mixes: bool, text: int, row: int, inner: int, column: int) -> bool:
        if self.mask is None:
            return True
        key = inner if mixes else column
        return bool(self.mask[text, row]) and bool(self.mask[text, key])


def count(snn: Any, batch: Any, **settings: Any) -> CountingEngine:
    """Run to equilibrium, counting."""
    ENGINES["counting"] = CountingEngine
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on more, each would have a part of the batch, and an engine of its own
    try:
        spikezip.simulate(snn, batch, steps="equilibrium", engine="counting", **settings)
    finally:
        del ENGINES["counting"]
        torch.set_num_threads(threads)
    return CountingEngine.last
