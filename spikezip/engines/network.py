"""The spiking network (SNN): a frozen program with its integers, ready to run."""

from typing import Any

import torch
from torch import nn

from spikezip.engines.engine import Drive, Run, Steps, driven
from spikezip.engines.loop import equilibrium_output, run
from spikezip.errors import ConfigError
from spikezip.program.batch import Batch, by_position, complete, named
from spikezip.program.freeze import Frozen
from spikezip.program.nodes import Site
from spikezip.program.tree import attach, locate, tensor_at
from spikezip.quant.config import QuantConfig


class SpikingNetwork(nn.Module):
    """A spiking network. Called, it runs to equilibrium and returns what the quantized network returns.

    Its tensors are buffers: integer weights `KEY.codes` with their `KEY.scale`, and `SITE.site_scale` for every layer
    of neurons. They are read anew for every run.
    """

    kind = "snn"

    def __init__(self, frozen: Frozen, config: QuantConfig) -> None:
        super().__init__()
        self.program, self.quant_config = frozen.program, config
        self.keys = tuple(frozen.tensors)
        for key, tensor in frozen.tensors.items():
            attach(self, key, tensor.detach().clone(), parameter=False)
        self._places = {key: locate(self, key) for key in self.keys}
        self.train(False)

    @property
    def neurons(self) -> dict[str, Site]:
        """The layers of neurons by the name of their site, in the order of execution."""
        return self.program.sites

    def frozen(self) -> Frozen:
        """Program and tensors as they are now."""
        return Frozen(self.program, {key: tensor_at(*place) for key, place in self._places.items()})

    @property
    def device(self) -> torch.device:
        return tensor_at(*self._places[self.keys[0]]).device

    def prepare(self, batch: Batch) -> dict[str, Any]:
        """The inputs of the program from a batch: complete, without labels, on the network's device."""
        return complete(self.program, named(self.program, batch), self.device)

    def forward(self, *args: Any, **inputs: Any) -> Any:
        return equilibrium_output(self.frozen(), self.prepare(by_position(self.program, args, inputs)))

    def train(self, mode: bool = True) -> "SpikingNetwork":
        """A spiking network is frozen: it stays in `eval()`. Train the quantized network and convert again."""
        super().train(False)
        return self


def simulate(
    snn: SpikingNetwork,
    batch: Batch,
    steps: Steps | None = None,
    engine: str | None = None,
    *,
    drive: Drive | None = None,
    **settings: Any,
) -> Run:
    """Run a batch through a spiking network, step by step.

    Args:
        snn: what `spikezip.convert` made.
        batch: a dict of model inputs, or the main input alone; labels are left out.
        steps: how many, 64 if nothing else is said; or `"equilibrium"`: until nothing fires.
        engine: `"auto"` takes what is fastest here; the spikes are the same in all.
        drive: all settings of a run in one; see `Drive`.
        settings: further fields of `Drive` by name, such as `coding`, `max_spike`, `stagger`, `record`.

    Example:
        >>> from spikezip.quant.network import quantize
        >>> from spikezip.quant.calibration import calibrate
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> batch = torch.randn(2, 4)
        >>> snn = convert(calibrate(quantize(model, example=batch), batch))
        >>> run = simulate(snn, batch, steps="equilibrium")
        >>> run.settled, run.logits_per_step.shape[0] == run.steps
        (True, True)
    """
    if not isinstance(snn, SpikingNetwork):
        raise ConfigError(f"simulate takes what spikezip.convert returns, not {type(snn).__name__}")
    given = {name: value for name, value in (("steps", steps), ("engine", engine)) if value is not None}
    return run(snn.frozen(), snn.prepare(batch), driven(drive, {**given, **settings}))


@torch.no_grad()
def convert(qann: Any) -> SpikingNetwork:
    """The spiking network of a quantized one. It keeps integers of its own; the quantized network stays untouched."""
    if getattr(qann, "kind", None) != "qann":
        raise ConfigError(f"convert takes what spikezip.quantize returns, not {type(qann).__name__}")
    return SpikingNetwork(qann.frozen(), qann.quant_config)
