"""The spiking network (SNN): a frozen program with its integers, ready to run."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from spikezip.engines.simulate import equilibrium_output, run
from spikezip.engines.state import Drive
from spikezip.program.freeze import Frozen
from spikezip.program.nodes import Site
from spikezip.program.tree import attach, locate
from spikezip.quant.config import QuantConfig


class SpikingNetwork(nn.Module):
    """A spiking network. Called, it runs to equilibrium and returns what the quantized network returns.

    Its tensors are buffers: integer weights `KEY.codes` with their `KEY.scale`, and `SITE.scale` for every layer of
    neurons. They are read anew for every run.
    """

    kind = "snn"

    def __init__(self, frozen: Frozen, config: QuantConfig) -> None:
        super().__init__()
        self.program, self.quant_config = frozen.program, config
        self.keys = tuple(frozen.tensors)
        for key, tensor in frozen.tensors.items():
            attach(self, self._buffer(key), tensor.detach().clone(), parameter=False)
        self._places = {key: locate(self, self._buffer(key)) for key in self.keys}
        self.train(False)

    @property
    def neurons(self) -> dict[str, Site]:
        """The layers of neurons by the name of their site, in the order of execution."""
        return self.program.sites

    def frozen(self) -> Frozen:
        """Program and tensors as they are now."""
        return Frozen(self.program, {key: getattr(module, leaf) for key, (module, leaf) in self._places.items()})

    def _buffer(self, key: str) -> str:
        """The name of a tensor in this module. A table read in floats and on a grid has `T` and `T_grid_codes`.

        A module cannot hold a tensor and a module of the same name.
        """
        parts = key.split(".")
        for i in range(1, len(parts)):
            if ".".join(parts[:i]) in self.keys:
                return ".".join([*parts[: i - 1], "_".join(parts[i - 1 :])])
        return key

    def prepare(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of the program from a batch; networks of other libraries fill in and leave out some."""
        return dict(batch)

    def forward(self, **inputs: Any) -> Any:
        return equilibrium_output(self.frozen(), inputs)

    def simulate(self, inputs: dict[str, Any], drive: Drive) -> Any:
        return run(self.frozen(), self.prepare(inputs), drive)

    def train(self, mode: bool = True) -> "SpikingNetwork":
        """A spiking network is frozen: it stays in `eval()`. Train the quantized network and convert again."""
        super().train(False)
        return self


@torch.no_grad()
def convert(qann: Any) -> SpikingNetwork:
    """The spiking network of a quantized one. It keeps integers of its own; the quantized network stays untouched."""
    return SpikingNetwork(qann.frozen(), qann.quant_config)
