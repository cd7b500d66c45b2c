"""A model → its frozen network, for tests of the engines."""

from typing import Any

from torch import nn

from spikezip.program.freeze import Frozen
from spikezip.quant.calibration import calibrate
from spikezip.quant.config import QuantConfig
from spikezip.quant.network import quantize


def freeze_model(model: nn.Module, batch: dict[str, Any], config: QuantConfig) -> Frozen:
    """The frozen network of a model; codes and scales of its sites are those that suit one batch best."""
    return calibrate(quantize(model, config, example=batch), batch, "quick").frozen()
