"""Is the spiking network the quantized network? Codes at every site, compared with equality."""

import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor

from spikezip.batches import Batch, prepare
from spikezip.errors import ConfigError, InputError
from spikezip.execution import Execution, SiteLike, executing
from spikezip.measure.certificate import Certificate, summarize_t_eq
from spikezip.ops.neuron.fast import triton_is_here
from spikezip.quant.model import QuantizedModel
from spikezip.simulate import Run, SpikingModel, simulate
from spikezip.simulate.outputs import primary
from spikezip.spiking.neuron import checking_reads
from spikezip.version import __version__


class Recording(Execution):
    """The quantized network's arithmetic, remembering the codes of every site in the order of execution."""

    def __init__(self) -> None:
        self.seen: dict[str, Tensor] = {}

    def codes(self, site: SiteLike, u: Tensor) -> Tensor:
        self.seen[site.name] = super().codes(site, u)
        return self.seen[site.name]


@dataclass
class _Tally:
    codes: int = 0
    samples: int = 0
    mismatches: int = 0
    output_mismatches: int = 0
    unsettled: int = 0
    first: dict[str, Any] | None = None
    t_eq: list[int] = field(default_factory=list)
    sites: int = 0


@torch.no_grad()
def verify(
    qann: QuantizedModel,
    snn: SpikingModel,
    batches: Iterable[Batch] | Batch,
    *,
    engine: str = "folded",
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
    tally = _Tally()
    was_training = qann.training
    qann.eval()
    try:
        for number, batch in enumerate([batches] if isinstance(batches, (dict, Tensor)) else batches):
            prepared = prepare(qann, batch)
            reference = Recording()
            with executing(reference), checking_reads():
                output = primary(qann(**prepared.inputs))
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
            _compare(tally, number, reference.seen, output, run)
            if watch is not None:
                watch(output, run)
            if progress is not None:
                progress(tally.samples)
    finally:
        qann.train(was_training)
    if not tally.samples:
        raise InputError("verify needs at least one batch")
    exact = not (tally.mismatches or tally.output_mismatches or tally.unsettled)
    return Certificate(
        exact=exact,
        sites=tally.sites,
        codes=tally.codes,
        samples=tally.samples,
        mismatches=tally.mismatches,
        output_mismatches=tally.output_mismatches,
        unsettled=tally.unsettled,
        first_mismatch=tally.first,
        t_eq=summarize_t_eq(tally.t_eq),
        settings={
            "engine": engine,
            "coding": coding,
            "max_spike": max_spike,
            "stagger": stagger,
            "quantization": snn.quant_config.to_json(),
            "model_class": type(snn).__name__,
            **_environment(snn),
        },
    )


def _compare(tally: _Tally, number: int, codes: dict[str, Tensor], output: Tensor, run: Run) -> None:
    if set(codes) != set(run.tracers):
        odd = sorted(set(codes) ^ set(run.tracers))
        raise ConfigError(f"the two networks do not have the same sites; only one has {odd[:3]}")
    tally.sites = len(codes)
    tally.samples += len(run.t_eq)
    tally.t_eq += [t for t in run.t_eq if t is not None]
    tally.unsettled += sum(t is None for t in run.t_eq)
    for site, expected in codes.items():
        found = run.tracers[site]
        tally.codes += expected.numel()
        if torch.equal(expected, found.to(expected)):
            continue
        different = expected != found.to(expected)
        tally.mismatches += int(different.sum())
        if tally.first is None:
            index = different.nonzero()[0].tolist()
            tally.first = {
                "site": site,
                "batch": number,
                "index": index,
                "qann": int(expected[tuple(index)]),
                "snn": int(found[tuple(index)]),
            }
    if not torch.equal(output, run.logits.to(output)):
        tally.output_mismatches += int((output != run.logits.to(output)).sum())


def _environment(snn: SpikingModel) -> dict[str, Any]:
    device = snn.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "device": f"{device.type} ({name})",
        "dtype": str(next(iter(snn.neurons.values())).scale.dtype).removeprefix("torch."),
        "backend": "torch eager" + (", triton neuron" if device.type == "cuda" and triton_is_here() else ""),
        "versions": {
            "spikezip": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
