"""The quantized network as a class: the model's own class with a few names added."""

from typing import Any, Self

from torch import nn
from transformers import PreTrainedModel

from spikezip.adoption import adopt_class
from spikezip.checkpoint.write import save
from spikezip.models.plan import Plan
from spikezip.quant.config import QuantConfig
from spikezip.quant.site import Site
from spikezip.quant.synapse import QuantSynapse


class QuantizedModel(PreTrainedModel):
    """Mixed into a model's class by `quantize`. `isinstance` with the model's own class stays true."""

    kind = "qann"
    quant_config: QuantConfig
    canonical: dict[str, str]
    constants: list[str]

    @property
    def sites(self) -> dict[str, Site]:
        """The sites by name, in the order of the table."""
        return {m.name: m for m in self.modules() if isinstance(m, Site)}

    def train(self, mode: bool = True) -> Self:
        """As of any module. With dropout somewhere, products in training cannot tell codes by their values alone."""
        super().train(mode)
        plain = not any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in self.modules())
        for module in self.modules():
            if isinstance(module, QuantSynapse):
                module.plain_glue = plain
        return self

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        save(self, save_directory, **kwargs)


def adopt_model(model: nn.Module, config: QuantConfig, plan: Plan) -> QuantizedModel:
    adopted: QuantizedModel = adopt_class(model, QuantizedModel)
    adopted.quant_config = config
    adopted.canonical = plan.canonical
    adopted.constants = plan.constants
    return adopted
