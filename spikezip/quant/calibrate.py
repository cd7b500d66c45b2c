"""Scales from data, without training."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch

from spikezip.batches import Batch, prepare
from spikezip.errors import CoverageError, InputError
from spikezip.quant.guard import watching_products
from spikezip.quant.model import QuantizedModel
from spikezip.quant.observer import RangeObserver
from spikezip.spiking.neuron import checking_reads


@torch.no_grad()
def calibrate(qann: QuantizedModel, batches: Iterable[Batch] | Batch) -> QuantizedModel:
    """Set the scale of every site from what the float activations look like on `batches`; returns the same network.

    A few batches are enough. Each scale minimises the squared quantization error on a sample of what its site saw.
    At the end one batch runs on the grid, to check that every product reads a site and nothing else.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.quantize(transformers.ViTModel(vit))
        >>> qann = spikezip.calibrate(qann, [torch.randn(2, 3, 32, 32)])
        >>> qann.eval()(torch.randn(1, 3, 32, 32)).last_hidden_state.shape
        torch.Size([1, 5, 8])
    """
    stream = iter([batches] if isinstance(batches, (dict, torch.Tensor)) else batches)
    first = next(stream, None)
    if first is None:
        raise InputError("calibrate needs at least one batch")
    was_training = qann.training
    observers = {name: RangeObserver(name, site.lo, site.hi, site.by_channel) for name, site in qann.sites.items()}
    sites = qann.sites
    qann.eval()
    try:
        for name, site in sites.items():
            site.observer = observers[name]
        with watching_products(qann, qann.constants):
            _forward(qann, first)
        for batch in chain(stream):
            _forward(qann, batch)
        scales = {name: observers[name].best_scale() for name in sites}
    finally:
        for site in sites.values():
            site.observer = None
    for name, site in sites.items():
        site.set_scale(scales[name])
    with checking_reads():
        _forward(qann, first)
    qann.train(was_training)
    return qann


def _forward(qann: QuantizedModel, batch: Batch) -> Any:
    try:
        return qann(**prepare(qann, batch).inputs)
    except CoverageError as error:
        raise CoverageError(f"{type(qann).__name__}: {error}") from None
