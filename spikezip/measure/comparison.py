"""Codes of every site in both networks, compared with equality: what `verify` and `measure` share."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from spikezip.engines import Drive, Run, SpikingNetwork
from spikezip.errors import ConfigError
from spikezip.measure.certificate import Certificate
from spikezip.measure.devices import device_name
from spikezip.measure.hashes import Hashes, hash_network, hashed_by_batch
from spikezip.measure.latency import add_tallies, distribution
from spikezip.measure.latency import tally as count_steps
from spikezip.measure.plain import Plain
from spikezip.ops import rounding
from spikezip.ops.compiled import numba_is_here
from spikezip.ops.kernels import triton_is_here
from spikezip.program.analysis import not_portable
from spikezip.quant.network import QuantizedNetwork
from spikezip.version import versions


@dataclass(frozen=True)
class Comparison(Plain):
    """What was compared so far. That of two batches is the sum of theirs, in whatever order they come.

    Attributes:
        first: the first difference: of the batch with the lowest number.
        t_eq: T_eq → samples; `unsettled` have none.
        hashes: of the quantized network's codes; of fewer samples where some were compared without.

    Example:
        >>> one = Comparison(sites=3, samples=2, codes=8, t_eq={"5": 2})
        >>> two = Comparison(sites=3, samples=1, codes=4, t_eq={"4": 1}, mismatches=1, first={"site": "a", "batch": 1})
        >>> (one + two).codes, (one + two).t_eq, (one + two).exact, one + two == two + one
        (12, {'4': 1, '5': 2}, False, True)
        >>> Comparison.from_json(two.to_json()) == two
        True
    """

    sites: int = 0
    codes: int = 0
    samples: int = 0
    mismatches: int = 0
    output_mismatches: int = 0
    unsettled: int = 0
    first: dict[str, Any] | None = None
    t_eq: dict[str, int] = field(default_factory=dict)
    hashes: Hashes = field(default_factory=Hashes)

    def __add__(self, other: "Comparison") -> "Comparison":
        firsts = [first for first in (self.first, other.first) if first is not None]
        return Comparison(
            sites=max(self.sites, other.sites),
            codes=self.codes + other.codes,
            samples=self.samples + other.samples,
            mismatches=self.mismatches + other.mismatches,
            output_mismatches=self.output_mismatches + other.output_mismatches,
            unsettled=self.unsettled + other.unsettled,
            first=min(firsts, key=lambda first: int(first["batch"]), default=None),
            t_eq=add_tallies(self.t_eq, other.t_eq),
            hashes=self.hashes + other.hashes,
        )

    @property
    def exact(self) -> bool:
        return not (self.mismatches or self.output_mismatches or self.unsettled)

    def certificate(self, snn: SpikingNetwork, drive: Drive) -> Certificate:
        """The result, for the network and the settings that it holds for; `drive` names the engine that was used."""
        hashes = self.hashes if self.hashes.samples == self.samples else Hashes()
        return Certificate(
            exact=self.exact,
            sites=self.sites,
            codes=self.codes,
            samples=self.samples,
            mismatches=self.mismatches,
            output_mismatches=self.output_mismatches,
            unsettled=self.unsettled,
            first_mismatch=self.first,
            t_eq=asdict(distribution(self.t_eq)),
            settings={
                "engine": drive.engine,
                "coding": drive.coding,
                "max_spike": drive.max_spike,
                "stagger": drive.stagger,
                "quantization": snn.quant_config.to_json(),
                "model_class": type(snn).__name__,
                **_environment(snn),
            },
            program=hash_network(snn.frozen()),
            data=hashes.data or None,
            hashes=hashes.sites,
            outputs=hashes.outputs or None,
            by_batch=hashed_by_batch(snn.program) if hashes.samples else [],
            batch_size=hashes.batch_size or None,
            not_portable=list(not_portable(snn.program)),
        )


def check_counterpart(snn: SpikingNetwork, qann: Any) -> None:
    """Refuse what cannot be the network that `snn` was converted from."""
    if not isinstance(qann, QuantizedNetwork):
        raise ConfigError(f"qann is what spikezip.quantize returns, not {type(qann).__name__}")
    sites, neurons, frozen = qann.program.sites, snn.program.sites, snn.frozen()
    if sites.keys() != neurons.keys():
        raise ConfigError("the QANN is another network than the one that was converted: it has other sites")
    for name, site in neurons.items():
        scale = rounding.representable(qann.scale(name).detach()).cpu().flatten()
        same = torch.equal(scale, frozen.step_size(name).cpu().flatten())
        if (sites[name].lo, sites[name].hi) != (site.lo, site.hi) or not same:
            raise ConfigError(f"the QANN is another network than the one that was converted: {name!r} differs")


def compare_batch(
    number: int, output: Tensor, codes: Mapping[str, Tensor], run: Run, hashes: Hashes | None = None
) -> Comparison:
    """Output and codes of the quantized network with those at the end of a run; `number` is that of the batch.

    `hashes` are those of the batch; without them the certificate will have none.
    """
    if set(codes) != set(run.tracers):
        odd = sorted(set(codes) ^ set(run.tracers))
        raise ConfigError(f"the two networks do not have the same sites; only one has {odd[:3]}")
    mismatches = output_mismatches = 0
    first: dict[str, Any] | None = None
    for site, expected in codes.items():
        found = run.tracers[site].to(expected)
        if torch.equal(expected, found):
            continue
        different = expected != found
        mismatches += int(different.sum())
        if first is None:
            index = different.nonzero()[0].tolist()
            first = {
                "site": site,
                "batch": number,
                "index": index,
                "qann": int(expected[tuple(index)]),
                "snn": int(found[tuple(index)]),
            }
    last = run.logits.to(output)
    if not torch.equal(output, last):
        output_mismatches = int((output != last).sum())
    return Comparison(
        sites=len(codes),
        codes=sum(expected.numel() for expected in codes.values()),
        samples=len(run.t_eq),
        mismatches=mismatches,
        output_mismatches=output_mismatches,
        unsettled=sum(t is None for t in run.t_eq),
        first=first,
        t_eq=count_steps(t for t in run.t_eq if t is not None),
        hashes=hashes or Hashes(),
    )


def _environment(snn: SpikingNetwork) -> dict[str, Any]:
    device = snn.device
    return {
        "device": device_name(device),
        "dtype": str(snn.frozen().dtype).removeprefix("torch."),
        "backend": "torch eager" + _neurons(device),
        "versions": versions(),
    }


def _neurons(device: torch.device) -> str:
    """What runs the neurons of the folded and the event engine there."""
    if device.type == "cuda":
        return ", triton neuron" if triton_is_here() else ""
    return ", numba neuron" if numba_is_here() else ""
