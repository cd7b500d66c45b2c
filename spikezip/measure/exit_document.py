"""Confidence rules in a file: what they are, of which network, and what they do."""

from dataclasses import dataclass, field
from typing import Any

from spikezip.errors import CheckpointError, InputError
from spikezip.measure.exit_report import ExitReport
from spikezip.measure.exit_rule import ExitRule
from spikezip.measure.plain import Document, Plain, body_of

FORMAT, VERSION = "spikezip-exits", 1


@dataclass(frozen=True)
class ExitData(Plain):
    """Data that was used: the name given for it, which of its samples, how many."""

    name: str
    part: str
    samples: int


@dataclass(frozen=True)
class ExitDocument(Document):
    """Rules, and a report on each.

    Attributes:
        snn, qann: where the networks came from. A file that holds nothing but a rule has no `snn`.
        fingerprint: of the spiking network's class, weights and scales; None where it is not known.
        steps: how long a sample may stay: a number, or `"equilibrium"`; None where it is not known.
        calibration: what the rules were found on; None if they were set by hand.
        reported: what the reports are about.

    Example:
        >>> document = ExitDocument(rules=(ExitRule("margin", 2.0),))
        >>> ExitDocument.from_json(document.to_json()) == document
        True
        >>> ExitDocument.from_json(ExitRule("margin", 2.0).to_json()).rules  # a rule alone will do
        (ExitRule(kind='margin', threshold=2.0, patience=1, min_steps=1, coding='analog', max_spike=1, ...),)
    """

    rules: tuple[ExitRule, ...]
    snn: str | None = None
    qann: str | None = None
    fingerprint: str | None = None
    steps: int | str | None = None
    engine: str = "folded"
    calibration: ExitData | None = None
    reported: ExitData | None = None
    reports: tuple[ExitReport, ...] = ()
    command: str | None = None
    versions: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        if not self.rules:
            raise InputError("rules: there is none")
        if self.reports and len(self.reports) != len(self.rules):
            raise InputError(f"there are {len(self.rules)} rules, but {len(self.reports)} reports")
        whole = isinstance(self.steps, int) and self.steps > 0
        if not whole and self.steps not in ("equilibrium", None):
            raise InputError(f"steps: a whole number from 1, or 'equilibrium', not {self.steps!r}")
        drives = {(rule.kind, rule.patience, rule.coding, rule.max_spike, rule.stagger) for rule in self.rules}
        if len(drives) > 1:
            raise InputError("rules: they differ in more than their threshold")

    def check_network(self, fingerprint: str, where: str) -> None:
        """Refuse rules of another network; a threshold is in units of one network's outputs."""
        if self.fingerprint is not None and self.fingerprint != fingerprint:
            raise CheckpointError(f"{where} is a rule of another network, {self.snn}: calibrate one for this network")

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **super().to_json()}

    @classmethod
    def from_json(cls, data: Any, where: str = "") -> "ExitDocument":
        if isinstance(data, dict) and "format" not in data and {"kind", "threshold"} <= data.keys():
            return cls(rules=(ExitRule.from_json(data, where),))
        rest = body_of(data, FORMAT, VERSION, "confidence rule", "spikezip exits", "calibrate again")
        return super().from_json(rest, where)
