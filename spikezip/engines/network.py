"""The spiking network (SNN): a frozen program with its integers, ready to run."""

from typing import Any

import torch
from torch import nn

from spikezip.engines.simulate import equilibrium_output, run
from spikezip.engines.state import Drive
from spikezip.program.freeze import Frozen
from spikezip.program.nodes import Site
from spikezip.program.tree import attach, tensors_in
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
            attach(self, key, tensor.detach().clone(), parameter=False)
        self.train(False)

    @property
    def neurons(self) -> dict[str, Site]:
        """The layers of neurons by the name of their site, in the order of execution."""
        return self.program.sites

    def frozen(self) -> Frozen:
        """Program and tensors as they are now."""
        found = tensors_in(self)
        return Frozen(self.program, {key: found[key] for key in self.keys})

    def forward(self, **inputs: Any) -> Any:
        return equilibrium_output(self.frozen(), inputs)

    def simulate(self, inputs: dict[str, Any], drive: Drive) -> Any:
        return run(self.frozen(), inputs, drive)

    def train(self, mode: bool = True) -> "SpikingNetwork":
        """A spiking network is frozen: it stays in `eval()`. Train the quantized network and convert again."""
        super().train(False)
        return self


@torch.no_grad()
def convert(qann: Any) -> SpikingNetwork:
    """The spiking network of a quantized one. It keeps integers of its own; the quantized network stays untouched."""
    return SpikingNetwork(qann.frozen(), qann.quant_config)
