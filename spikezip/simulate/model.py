"""The spiking network as a class: the model's own class, whose forward pass is a simulation to equilibrium."""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from spikezip.adoption import adopt_class, own_class
from spikezip.checkpoint.write import save
from spikezip.errors import ConfigError
from spikezip.quant.config import QuantConfig
from spikezip.spiking.neuron import Neuron


class SpikingModel(PreTrainedModel):
    """Mixed into a model's class by `convert`.

    `snn(**batch)` runs to equilibrium and returns the model's own output class, so that pipelines and evaluation code
    run unchanged. `spikezip.simulate` shows what happens on the way.
    """

    kind = "snn"
    quant_config: QuantConfig
    canonical: dict[str, str]

    @property
    def neurons(self) -> dict[str, Neuron]:
        """The layers of neurons by the name of their site."""
        return {m.name: m for m in self.modules() if isinstance(m, Neuron)}

    def network(self, **inputs: Any) -> Any:
        """The model's own forward pass, once. Inside an engine this is one step, or one chunk of them."""
        return own_class(self).forward(self, **inputs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        from spikezip.simulate.drive import equilibrium_output  # drive imports this class

        if len(args) > 1:
            raise ConfigError("pass model inputs by name")
        if args:
            kwargs[self.main_input_name] = args[0]
        return equilibrium_output(self, kwargs)

    def train(self, mode: bool = True) -> "SpikingModel":
        """A spiking network is frozen: it stays in `eval()`. Train the quantized network and convert again."""
        nn.Module.train(self, False)
        return self

    def check_dtype(self) -> None:
        dtype = next(iter(self.neurons.values())).scale.dtype
        if dtype not in (torch.float32, torch.float64):
            raise ConfigError(f"the network is in {dtype}: call .float(); codes need float32 or float64")

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        save(self, save_directory, **kwargs)


def adopt_spiking(model: nn.Module, config: QuantConfig, canonical: dict[str, str]) -> SpikingModel:
    adopted: SpikingModel = adopt_class(model, SpikingModel)
    adopted.quant_config = config
    adopted.canonical = canonical
    return adopted
