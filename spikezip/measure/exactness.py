"""Is the spiking network the quantized network? For networks that are programs."""

import platform
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.network import SpikingNetwork
from spikezip.engines.quantized import quantized
from spikezip.engines.run import Run
from spikezip.engines.simulate import find_primary, resolve_engine, run
from spikezip.engines.state import Drive, driven
from spikezip.errors import ConfigError, InputError
from spikezip.measure.certificate import Certificate
from spikezip.measure.comparison import Comparison, compare_batch
from spikezip.measure.devices import device_name
from spikezip.measure.latency import distribution
from spikezip.program.batch import Batch, as_batches
from spikezip.quant.network import QuantizedNetwork
from spikezip.version import __version__

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
        compared += compare_batch(number, find_primary(output), codes, ended)
        if watch is not None:
            watch(find_primary(output), ended)
        if progress is not None:
            progress(compared.samples)
    if not compared.samples:
        raise InputError("verify needs at least one batch")
    engine, _ = resolve_engine(found, found.program.layout, drive.engine)
    return Certificate(
        exact=compared.exact,
        sites=compared.sites,
        codes=compared.codes,
        samples=compared.samples,
        mismatches=compared.mismatches,
        output_mismatches=compared.output_mismatches,
        unsettled=compared.unsettled,
        first_mismatch=compared.first,
        t_eq=asdict(distribution(compared.t_eq)),
        settings={
            "engine": engine,
            "coding": drive.coding,
            "max_spike": drive.max_spike,
            "stagger": drive.stagger,
            "quantization": snn.quant_config.to_json(),
            "device": device_name(found.device),
            "dtype": str(found.dtype).removeprefix("torch."),
            "versions": {"spikezip": __version__, "torch": torch.__version__, "python": platform.python_version()},
        },
    )
