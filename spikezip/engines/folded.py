"""The folded engine: the accumulator domain, with time folded into the batch.

All steps of a chunk go through a node at once, as a batch of `T·B` samples. Products are those of the quantized
network; only the neuron knows about time: a scan over the chunk, which carries the tracer into the next one. What does
not change over time is computed once for `B` samples, and repeated where it meets something that does.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.engine import Engine
from spikezip.engines.walk import collect, walk
from spikezip.errors import ConfigError
from spikezip.ops import neuron
from spikezip.program.floats import float_value
from spikezip.program.nodes import Input, Matmul, Ref, Site, Weight, map_arguments
from spikezip.program.sizes import bind


class FoldedEngine(Engine):
    name = "folded"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        refused = self.refused(self.layout)
        if refused:
            raise ConfigError(f"engine='folded' cannot run this network: {refused}; choose engine='spike'")
        self._repeated: dict[int, dict[str, Any]] = {}  # steps of a chunk → constants for that many

    @staticmethod
    def refused(layout: Any) -> str:
        """Why time cannot be folded into the batch; empty if it can."""
        return f"samples are not independent of one another ({layout.mixed})" if layout.mixed else ""

    def advance(self, steps: int) -> list[Any]:
        """The output of a chunk of steps, with time in the batch: `[T·B, …]` for each tensor."""
        self.steps = steps
        assert self.program.batch is not None
        sizes = {**self.sizes, self.program.batch: steps * self.batch}
        values = dict(self._constants(steps, sizes))
        walk(self.network, self.network.moving, values, sizes, self._fire, self._product, self.free)
        self.state.done += steps
        return [collect(self._per_step(values), values)]

    def _per_step(self, values: dict[str, Any]) -> Any:
        """The program's output; tensors with samples as `[T, …]`."""
        for name in self.program.returned:
            if isinstance(values[name], Tensor):
                values[name] = self._unfold(name, values[name])
        return map_arguments(self.program.output, lambda x: Ref(x.name) if isinstance(x, Ref) else x)

    def _unfold(self, name: str, x: Tensor) -> Tensor:
        """`[…, T·B, …]` → `[T, …, B, …]`: what the program returns in each step."""
        prefix = self.layout.prefix.get(name)
        if prefix is None:
            return x.expand(self.steps, *x.shape)
        outer = bind(prefix, self.sizes)
        shape = [bind(size, self.sizes) for size in self.program[name].shape]
        return x.reshape(outer, self.steps, -1).transpose(0, 1).reshape(self.steps, *shape)

    def _constants(self, steps: int, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Constants with samples, for `T·B` of them: repeated; those made from sizes alone are made anew."""
        found = self._repeated.get(steps)
        if found is not None:
            return found
        anew: dict[str, Any] = {}
        for node in self.network.constant:
            if node.name in self.layout.follows_batch:
                read = {name: anew.get(name, self._still(name)) for name in node.reads}
                anew[node.name] = float_value(node, read, sizes, self.network.device)
        self._repeated[steps] = {
            name: anew[name] if name in anew else self._repeat(name, value, steps)
            for name, value in self.constants.items()
        }
        return self._repeated[steps]

    def _still(self, name: str) -> Any:
        """A value that is made from weights alone, whether it was kept or not."""
        if name in self.constants:
            return self.constants[name]
        node = self.program[name]
        if isinstance(node, Weight):
            return self.network.tensors[node.key if node.bits is None else f"{node.key}.codes"]
        assert not isinstance(node, Input)
        return float_value(node, {n: self._still(n) for n in node.reads}, self.sizes, self.network.device)

    def _repeat(self, name: str, x: Any, steps: int) -> Any:
        prefix = self.layout.prefix.get(name)
        if prefix is None or not isinstance(x, Tensor):
            return x
        outer = bind(prefix, self.sizes)
        assert self.program.batch is not None
        sizes = {**self.sizes, self.program.batch: steps * self.batch}
        shape = [bind(size, sizes) for size in self.program[name].shape]
        return x.reshape(outer, 1, -1).expand(outer, steps, -1).reshape(shape)

    def _fire(self, site: Site, u: Tensor) -> Tensor:
        """A chunk of steps of a layer of neurons: their codes in every step."""
        network, steps = self.network, self.steps
        outer = bind(self.layout.prefix[site.name], self.sizes)
        # Neurons stand sample after sample: [T, B, prefix, rest].
        rows = u.reshape(outer, steps, self.batch, -1).permute(1, 2, 0, 3).reshape(steps, -1)
        if site.entry and self.ramp > 1:
            rows = rows * self.share(self.state.done, steps, u)[:, None]
        tracer = self.state.tracers.get(site.name)
        if tracer is None:
            narrow = site.lo >= -128 and site.hi <= 127
            tracer = torch.zeros(rows.shape[1], dtype=torch.int8 if narrow else u.dtype, device=u.device)
        held = min(max(self.hold(site) - self.state.done, 0), steps)
        walked = [tracer.expand(held, -1)] if held else []
        counts = [u.new_zeros(held, self.batch)] if held else []
        if held < steps:
            limits = (site.lo, site.hi, self.drive.max_spike, self.batch)
            codes, fired = neuron.walk(rows[held:], tracer, network.step_size(site.name), *limits)
            walked.append(codes)
            counts.append(fired)
        codes = torch.cat(walked) if held else walked[0]
        self.state.tracers[site.name] = codes[-1]
        self.recording.counts.setdefault(site.name, []).append(torch.cat(counts) if held else counts[0])
        if self.recording.wants(site.name, self.drive):
            wide = torch.cat([tracer[None], codes]).to(torch.int16)
            self.recording.keep(site.name, self._by_sample(site, wide.diff(dim=0), outer), self.drive)
        return codes.view(steps, self.batch, outer, -1).permute(2, 0, 1, 3).reshape(u.shape)

    def _by_sample(self, site: Site, x: Tensor, outer: int) -> Tensor:
        """Neurons `[n, B·prefix·rest]` in the shape of their site, `[n, …]`."""
        shape = [bind(size, self.sizes) for size in site.shape]
        return x.view(len(x), self.batch, outer, -1).transpose(1, 2).reshape(len(x), *shape)

    def tracer(self, name: str) -> Tensor:
        site = self.program.sites[name]
        outer = bind(self.layout.prefix[name], self.sizes)
        return self._by_sample(site, self.state.tracers[name][None], outer)[0]

    def _product(self, node: Any, values: Mapping[str, Any]) -> Tensor:
        if isinstance(node, Matmul):
            pair = self.pair(node)
            return pair.output(pair.total(values[node.a], values[node.b]))
        synapse = self.synapse(node)
        return synapse.output(synapse.totals(values[node.x]))
