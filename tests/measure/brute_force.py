"""Operations counted the slow way: an engine that goes through what really flows into every product, spike by spike."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

import spikezip
from spikezip.simulate.drive import ENGINES
from spikezip.simulate.spike import SpikeEngine


class CountingEngine(SpikeEngine):
    """The spike engine, with a tally. A spike that adds a number to each of n sums is n accumulates."""

    last: "CountingEngine"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        type(self).last = self
        self.tally: Counter[str] = Counter()  # product → accumulates of the batch
        self.real: Counter[str] = Counter()  # the same among tokens that are no padding
        self.by_step: dict[str, Counter[int]] = {}
        self.fired: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()  # site → samples × steps in which its input changed
        self.before: dict[str, Tensor] = {}
        self.mask: Tensor | None = None  # [texts, tokens]

    def advance(self, network: Any, inputs: dict[str, Any], steps: int) -> Any:
        mask = inputs.get("attention_mask")
        self.mask = None if mask is None else mask.flatten(0, -2)
        return super().advance(network, inputs, steps)

    def codes(self, site: Any, u: Tensor) -> Tensor:
        was = self.tracers[site.name].clone() if site.name in self.tracers else torch.zeros_like(u)
        before = self.before.get(site.name)
        by_sample = u.reshape(self.settings.batch, -1)
        for b in range(self.settings.batch):
            if before is None or not torch.equal(before[b], by_sample[b]):
                self.changed[site.name] += 1
        self.before[site.name] = by_sample.clone()
        now = super().codes(site, u)
        for spike in (now - was).flatten().tolist():
            self.fired[site.name] += abs(int(spike))
        return now

    def arrivals(self, owner: nn.Module, tag: str, codes: Tensor) -> Tensor:
        key = (owner, tag)
        return codes - self.seen[key] if key in self.seen else codes.clone()

    def add(self, product: str, count: int, real: int) -> None:
        self.tally[product] += count
        self.real[product] += real
        self.by_step.setdefault(product, Counter())[self.done] += count

    def linear(self, owner: Any, tag: str, codes: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        if tag == "0":  # the second half of a 16-bit weight belongs to the same accumulate
            spikes = self.arrivals(owner, tag, codes)
            count = real = 0
            for index in spikes.nonzero().tolist():
                cost = 0
                for _row in weight:  # one sum for each row of the weights
                    cost += abs(int(spikes[tuple(index)]))
                count += cost
                real += cost * self.is_real(index, spikes.ndim)
            self.add(owner.name, count, real)
        return super().linear(owner, tag, codes, weight, *rest)

    def is_real(self, index: list[int], ndim: int) -> bool:
        if self.mask is None or ndim < 3:
            return True
        return bool(self.mask[index[0], index[1]])

    def matmul(self, owner: Any, tag: str, a: Tensor, b: Tensor, *rest: Any) -> Tensor:
        left, right = self.arrivals(owner, tag + ":a", a), self.arrivals(owner, tag + ":b", b)
        tracer_first, spike_first, both = ("S_Q·K", "Q·S_K", "Q·K") if tag == "qk" else ("S_P·V", "P·S_V", "P·V")
        name = owner.p.name.removesuffix(".p")
        # a: [texts, heads, rows, inner], b: [texts, heads, inner, columns]
        for product, spikes, is_left in ((tracer_first, right, False), (spike_first, left, True), (both, left, True)):
            count = real = 0
            for text, head, i, j in spikes.nonzero().tolist():
                size = abs(int(spikes[text, head, i, j]))
                for other in range(b.shape[3] if is_left else a.shape[2]):
                    # the pair of operands a[row, inner] · b[inner, column] that this spike is one of
                    row, inner, column = (i, j, other) if is_left else (other, i, j)
                    count += size
                    real += size * self.both_real(tag, text, row, inner, column)
            self.add(f"{name}.{product}", count, real)
        return super().matmul(owner, tag, a, b, *rest)

    def both_real(self, tag: str, text: int, row: int, inner: int, column: int) -> bool:
        if self.mask is None:
            return True
        key = column if tag == "qk" else inner
        return bool(self.mask[text, row]) and bool(self.mask[text, key])


def count(snn: Any, batch: Any, **settings: Any) -> CountingEngine:
    """Run to equilibrium, counting."""
    ENGINES["counting"] = CountingEngine
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on more, each would have a part of the batch, and an engine of its own
    try:
        spikezip.simulate(snn, batch, "equilibrium", "counting", **settings)
    finally:
        del ENGINES["counting"]
        torch.set_num_threads(threads)
    return CountingEngine.last
