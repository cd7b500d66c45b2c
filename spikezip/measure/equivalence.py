"""Is the spiking network the quantized network? Codes at every site, compared with equality."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from spikezip.batches import Batch, prepare
from spikezip.errors import ConfigError, InputError
from spikezip.measure.certificate import Certificate
from spikezip.measure.comparison import Comparison, compare_batch, reference
from spikezip.measure.comparison import Recording as Recording
from spikezip.quant.model import QuantizedModel
from spikezip.simulate import Run, SpikingModel, simulate
from spikezip.simulate.drive import chosen


@torch.no_grad()
def verify(
    qann: QuantizedModel,
    snn: SpikingModel,
    batches: Iterable[Batch] | Batch,
    *,
    engine: str = "auto",
    coding: str = "analog",
    max_spike: int = 1,
    stagger: float = 0,
    chunk: int | None = None,
    max_steps: int | None = None,
    progress: Callable[[int], None] | None = None,
    watch: Callable[[Tensor, Run], None] | None = None,
) -> Certificate:
    """Run batches through both networks; compare codes of every site at equilibrium, and outputs, bit for bit.

    The settings are those of `simulate`. After each batch `progress` is called with the number of samples done so far,
    and `watch` with the quantized network's output and the run of the spiking network.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.calibrate(spikezip.quantize(transformers.ViTModel(vit)), torch.randn(2, 3, 32, 32))
        >>> certificate = spikezip.verify(qann, spikezip.convert(qann), [torch.randn(2, 3, 32, 32)])
        >>> certificate.exact, certificate.sites, certificate.mismatches
        (True, 12, 0)
    """
    if not isinstance(qann, QuantizedModel):
        raise ConfigError(f"verify takes the quantized network first, not {type(qann).__name__}")
    engine = chosen(snn, engine)
    compared = Comparison()
    was_training = qann.training
    qann.eval()
    try:
        for number, batch in enumerate([batches] if isinstance(batches, (dict, Tensor)) else batches):
            prepared = prepare(qann, batch)
            output, codes = reference(qann, prepared.inputs)
            run = simulate(
                snn,
                prepared.inputs,
                "equilibrium",
                engine,
                coding=coding,
                max_spike=max_spike,
                stagger=stagger,
                chunk=chunk,
                max_steps=max_steps,
            )
            compared += compare_batch(number, output, codes, run)
            if watch is not None:
                watch(output, run)
            if progress is not None:
                progress(compared.samples)
    finally:
        qann.train(was_training)
    if not compared.samples:
        raise InputError("verify needs at least one batch")
    return compared.certificate(snn, engine=engine, coding=coding, max_spike=max_spike, stagger=stagger)
