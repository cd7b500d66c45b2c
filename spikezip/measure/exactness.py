"""Is the spiking network the quantized network? Codes at every site, compared with equality."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spikezip.engines import Drive, Run, SpikingNetwork, quantized, resolve_engine
from spikezip.engines.engine import driven
from spikezip.engines.loop import find_primary, run
from spikezip.errors import ConfigError, InputError
from spikezip.measure.certificate import Certificate
from spikezip.measure.comparison import Comparison, compare_batch
from spikezip.measure.hashes import hash_batch
from spikezip.program.batch import Batch, as_batches
from spikezip.quant.network import QuantizedNetwork

TO_EQUILIBRIUM = Drive(steps="equilibrium")


@torch.no_grad()
def verify(
    qann: QuantizedNetwork,
    snn: SpikingNetwork,
    batches: Iterable[Batch] | Batch,
    drive: Drive = TO_EQUILIBRIUM,
    *,
    progress: Callable[[int], None] | None = None,
    watch: Callable[[Tensor, Run], None] | None = None,
    **settings: Any,
) -> Certificate:
    """Run batches through both networks; compare codes of every site at equilibrium, and outputs, bit for bit.

    The settings are those of a `Drive`, and stand in place of its own. After each batch `progress` is called with the
    number of samples done so far, and `watch` with the quantized network's output and the run of the spiking network.

    Example:
        >>> from torch import nn
        >>> from spikezip.engines.network import convert
        >>> from spikezip.quant.calibration import calibrate
        >>> from spikezip.quant.network import quantize
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> batch = {"input": torch.randn(2, 4)}
        >>> qann = calibrate(quantize(model, example=batch), batch)
        >>> certificate = verify(qann, convert(qann), batch)
        >>> certificate.exact, certificate.sites, certificate.codes
        (True, 1, 16)
    """
    if not isinstance(qann, QuantizedNetwork):
        raise ConfigError(f"verify takes the quantized network first, not {type(qann).__name__}")
    drive = driven(drive, settings)
    if drive.steps != "equilibrium":
        raise ConfigError("verify compares networks at equilibrium: leave steps='equilibrium'")
    expected, found = qann.frozen(), snn.frozen()
    compared = Comparison()
    for number, batch in enumerate(as_batches(batches)):
        inputs = qann.prepare(batch)
        output, codes = quantized(expected, inputs)
        ended = run(found, snn.prepare(inputs), drive)
        hashes = hash_batch(expected.program, inputs, output, codes)
        compared += compare_batch(number, find_primary(output), codes, ended, hashes)
        if watch is not None:
            watch(find_primary(output), ended)
        if progress is not None:
            progress(compared.samples)
    if not compared.samples:
        raise InputError("verify needs at least one batch")
    engine, _ = resolve_engine(found, found.program.layout, drive.engine)
    return compared.certificate(snn, replace(drive, engine=engine))
