"""The result of a verification, as a record that is kept beside the checkpoint."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from spikezip.errors import CheckpointError
from spikezip.files import CERTIFICATE


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
        settings: engine, coding, largest spike, staggering, quantization, device, backend, versions: a certificate
            holds for these.
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
        if not isinstance(data, dict) or set(data) != {f.name for f in fields(cls)}:
            raise CheckpointError("this is not a spikezip certificate")
        return cls(**data)

    def save(self, folder: str | Path) -> Path:
        """Write it next to a checkpoint."""
        path = Path(folder) / CERTIFICATE
        path.write_text(self.to_json() + "\n", encoding="utf-8")
        return path

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
