"""Tiny networks that were measured, and stories of them; each is made once."""

from functools import cache
from typing import Any

import tiny_models
import torch

from spikezip.measure.document import Measurement
from spikezip.measure.exactness import verify
from spikezip.measure.measuring import measure
from spikezip.models.networks import convert, quantize
from spikezip.quant.calibration import calibrate
from spikezip.quant.config import QuantConfig
from spikezip.show.story import Story, tell

VIT, BERT = "ViTForImageClassification", "BertForSequenceClassification"


@cache
def networks(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """The QANN, the SNN and a labelled batch of a tiny model."""
    torch.manual_seed(0)
    model = tiny_models.make(name)
    batch = tiny_models.inputs(model)
    qann = calibrate(quantize(model, QuantConfig(levels=16)), batch, "quick").eval()
    if "Classification" in name:
        batch = {**batch, "labels": torch.tensor([0, 2, 1])}
    return qann, convert(qann), batch


@cache
def measured(name: str = VIT) -> Measurement:
    qann, snn, batch = networks(name)
    certificate = verify(qann, snn, [batch])
    return measure(snn, [batch], qann, certificate=certificate, name=name, command="spikezip report & co <x>")


@cache
def story(name: str = VIT, sample: int = 1) -> Story:
    qann, snn, batch = networks(name)
    return tell(snn, batch, qann, sample=sample)
