"""Everything that is summed over a data set. A tally of two batches is the sum of their tallies."""

from dataclasses import dataclass, field
from typing import Any, TypeVar

from spikezip.measure.activity import SiteSums
from spikezip.measure.answers import AnswerSums
from spikezip.measure.comparison import Comparison
from spikezip.measure.latency import add_tallies
from spikezip.measure.plain import Plain
from spikezip.measure.rows import Operations

Sum = TypeVar("Sum", Operations, Comparison)


@dataclass(frozen=True)
class Tally(Plain):
    """Sums of whole numbers, of a size that does not grow with the data. It never changes: adding makes a new one.

    Attributes:
        labelled: batches that had labels.
        t_eq: T_eq → samples; `unsettled` have none.
        operations: None until there is a batch.
        complexity: of the first batch.
        comparison: with the codes of the QANN; None without one.

    Example:
        >>> tally = Tally(batches=1, samples=2, t_eq={"3": 2}, sites={"a": SiteSums(neurons=4, spikes=(1, 2))})
        >>> both = tally + tally
        >>> both.samples, both.t_eq, both.sites["a"].spikes
        (4, {'3': 4}, (2, 4))
        >>> Tally.from_json(both.to_json()) == both
        True
    """

    batches: int = 0
    samples: int = 0
    labelled: int = 0
    answers: AnswerSums = field(default_factory=AnswerSums)
    t_eq: dict[str, int] = field(default_factory=dict)
    unsettled: int = 0
    sites: dict[str, SiteSums] = field(default_factory=dict)
    operations: Operations | None = None
    complexity: tuple[Any, ...] = ()
    comparison: Comparison | None = None

    def __add__(self, other: "Tally") -> "Tally":
        nothing = SiteSums()
        names = dict.fromkeys((*self.sites, *other.sites))
        return Tally(
            batches=self.batches + other.batches,
            samples=self.samples + other.samples,
            labelled=self.labelled + other.labelled,
            answers=self.answers + other.answers,
            t_eq=add_tallies(self.t_eq, other.t_eq),
            unsettled=self.unsettled + other.unsettled,
            sites={name: self.sites.get(name, nothing) + other.sites.get(name, nothing) for name in names},
            operations=_sum(self.operations, other.operations),
            complexity=self.complexity or other.complexity,
            comparison=_sum(self.comparison, other.comparison),
        )

    @property
    def steps(self) -> int:
        return max(len(sums.spikes) for sums in self.sites.values())


def _sum(a: Sum | None, b: Sum | None) -> Sum | None:
    return b if a is None else a if b is None else a + b
