"""The result of a verification, as a record that is kept beside the checkpoint."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from spikezip.errors import CheckpointError, InputError
from spikezip.files import CERTIFICATE

VERSION = 2  # 1: without hashes


@dataclass(frozen=True)
class Certificate:
    """What was compared between a quantized network and its spiking network, and what was found.

    Attributes:
        exact: every code of every site is equal, the outputs are equal bit for bit, every sample settled.
        sites, codes, samples: how much was compared.
        mismatches: codes that differ; `output_mismatches`: elements of the output that differ.
        unsettled: samples that had not reached equilibrium when the run ended.
        first_mismatch: site (in the order of execution), batch, index and both codes, of the first difference.
        t_eq: minimum, median, 99th percentile and maximum over samples, and how many samples had which value.
        settings: engine, coding, largest spike, staggering, quantization, device, backend, versions of this run.
        program: hash of the spiking network, its program and its tensors.
        data: hash of the inputs, without labels and padding.
        hashes: site → hash of the quantized network's codes, in the order of execution; `outputs`: that of all it
            returns. See `spikezip.measure.hashes`.
        by_batch: sites, or "outputs" or "data", whose hash holds only for batches cut and padded as here;
            `batch_size`: samples of the largest batch.
        not_portable: what makes the codes depend on the machine, by name; empty for most networks.
        version: of this format. Certificates of version 1 have no hashes.
    """

    exact: bool
    sites: int
    codes: int
    samples: int
    mismatches: int
    output_mismatches: int
    unsettled: int
    first_mismatch: dict[str, Any] | None
    t_eq: dict[str, Any]
    settings: dict[str, Any]
    program: str | None = None
    data: str | None = None
    hashes: dict[str, str] = field(default_factory=dict)
    outputs: str | None = None
    by_batch: list[str] = field(default_factory=list)
    batch_size: int | None = None
    not_portable: list[str] = field(default_factory=list)
    version: int = VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Certificate":
        """Example:
        >>> none = summarize_t_eq([])
        >>> certificate = Certificate(True, 1, 2, 3, 0, 0, 0, None, none, {})
        >>> Certificate.from_json(certificate.to_json()) == certificate
        True
        """
        data = json.loads(text)
        known = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(cls)}
        if not isinstance(data, dict) or any(needed and name not in data for name, needed in known.items()):
            raise CheckpointError("this is not a spikezip certificate")
        version = data.get("version", 1)
        if version not in (1, VERSION):
            raise CheckpointError(f"this certificate has version {version}, this spikezip reads {VERSION}: upgrade it")
        if not data.keys() <= known.keys():
            raise CheckpointError("this is not a spikezip certificate")
        return cls(**{**data, "version": VERSION})

    def save(self, folder: str | Path) -> Path:
        """Write it next to a checkpoint."""
        path = Path(folder) / CERTIFICATE
        path.write_text(self.to_json() + "\n", encoding="utf-8")
        return path

    def against(self, other: "Certificate") -> "Difference | None":
        """What differs from a certificate of the same network and data, made elsewhere; None if nothing does.

        Engine, coding, device and versions of the two may be others. What cannot be compared is an `InputError`.

        Example:
            >>> none = summarize_t_eq([])
            >>> hashed = {"program": "01", "data": "02", "outputs": "03", "batch_size": 3}
            >>> here = Certificate(True, 2, 2, 3, 0, 0, 0, None, none, {}, hashes={"a": "04", "b": "05"}, **hashed)
            >>> there = Certificate(True, 2, 2, 3, 0, 0, 0, None, none, {}, hashes={"a": "04", "b": "06"}, **hashed)
            >>> print(here.against(there), here.against(here))
            first at b; 1 of 2 sites differs None
        """
        same_as(self)
        same_as(other, self.program, self.samples, self.data, self.batch_size)
        names = dict.fromkeys((*self.hashes, *other.hashes))
        sites = tuple(name for name in names if self.hashes.get(name) != other.hashes.get(name))
        outputs = self.outputs != other.outputs
        return Difference(sites, outputs, len(names)) if sites or outputs else None

    def __str__(self) -> str:
        if self.exact:
            verdict = "exact"
        elif self.first_mismatch is not None:
            verdict = f"NOT exact: {self.mismatches:,} codes differ, first at {self.first_mismatch['site']}"
        elif self.unsettled:
            verdict = f"NOT shown: {self.unsettled} samples had not settled"
        else:
            verdict = f"NOT exact: {self.output_mismatches:,} elements of the output differ"
        t = self.t_eq
        return (
            f"{verdict}. {self.samples:,} samples, {self.sites} sites, {self.codes:,} codes compared, "
            f"{self.mismatches:,} mismatches; T_eq median {t['median']}, 99 % {t['p99']}, maximum {t['max']}"
        )


@dataclass(frozen=True)
class Difference:
    """Where a network gave other answers than on another machine.

    Attributes:
        sites: those with other codes, in the order of execution: the first is where it begins.
        outputs: whether the outputs are others.
        of: how many sites there are.
    """

    sites: tuple[str, ...]
    outputs: bool
    of: int

    def __str__(self) -> str:
        if not self.sites:
            return f"the outputs differ, the codes of all {self.of} sites are equal"
        differ = "differs" if len(self.sites) == 1 else "differ"
        outputs = ", and so do the outputs" if self.outputs else ""
        return f"first at {self.sites[0]}; {len(self.sites)} of {self.of} sites {differ}{outputs}"


def same_as(
    other: Certificate,
    program: str | None = None,
    samples: int | None = None,
    data: str | None = None,
    batch_size: int | None = None,
) -> None:
    """Refuse a certificate that is no measure for this network and data. What is None is not looked at.

    Example:
        >>> old = Certificate(True, 1, 2, 3, 0, 0, 0, None, summarize_t_eq([]), {})
        >>> same_as(old)
        Traceback (most recent call last):
        spikezip.errors.InputError: the certificate has no hashes: make it again with `verify` of this spikezip
    """
    if not other.hashes:
        raise InputError("the certificate has no hashes: make it again with `verify` of this spikezip")
    if not other.exact:
        raise InputError("the certificate says NOT exact: compare with one that says exact")
    if program not in (None, other.program):
        raise InputError(
            f"the certificate is of another network, {str(other.program)[:12]}…; this one is {str(program)[:12]}…: "
            "take the network that it was made of, in the same dtype"
        )
    if samples not in (None, other.samples):
        raise InputError(
            f"the certificate is of {other.samples:,} samples, here are {samples:,}: take as many (--samples)"
        )
    if other.by_batch and batch_size not in (None, other.batch_size):
        raise InputError(
            f"the certificate holds for batches of {other.batch_size} samples only, by {other.by_batch[0]!r}; "
            f"here they have {batch_size}: make them as large (--batch-size)"
        )
    if data not in (None, other.data):
        raise InputError(
            "the certificate is of other data: take the same samples, and the same tokenizer or image processor "
            "(and padded alike, if no attention mask marks the padding)"
        )


def summarize_t_eq(values: Iterable[int]) -> dict[str, Any]:
    """Minimum, median, 99th percentile, maximum and counts of T_eq (each value one that occurred).

    Example:
        >>> summarize_t_eq([3, 5, 4, 5])
        {'min': 3, 'median': 4, 'p99': 5, 'max': 5, 'counts': {'3': 1, '4': 1, '5': 2}}
    """
    ordered = sorted(values)
    counts = {str(k): n for k, n in sorted(Counter(ordered).items())}
    if not ordered:
        return {"min": None, "median": None, "p99": None, "max": None, "counts": counts}

    def rank(percent: int) -> int:
        return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]  # the nearest rank

    return {"min": ordered[0], "median": rank(50), "p99": rank(99), "max": ordered[-1], "counts": counts}
