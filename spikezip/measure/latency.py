"""When the answer is there: T_up, the steps to the QANN's accuracy, and the distribution of T_eq."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate

from spikezip.measure.document import Steps

# Points (hundredths) below the accuracy of the QANN.
POINTS = {"1.0": Fraction(1), "0.1": Fraction(1, 10), "0": Fraction(0)}


def take_off(correct: Sequence[int], labelled: int, classes: int) -> int | None:
    """T_up: the first step at which accuracy has gone half of the way from chance to its last value.

    The paper calls T_up the step "beyond which the model's accuracy increases drastically" and reads it off a curve.
    Half of the way is where the rise is steepest, and needs no eye. None if the last value is not above chance.

    Example:
        >>> take_off([10, 10, 30, 80, 90], labelled=100, classes=10)
        4
    """
    if not labelled or not correct:
        return None
    chance = Fraction(labelled, classes)
    if correct[-1] <= chance:
        return None
    half = (chance + correct[-1]) / 2
    return next(step for step, n in enumerate(correct, start=1) if n >= half)


def within(correct: Sequence[int], labelled: int, reference: int) -> dict[str, int | None]:
    """Points → the first step from which accuracy stays at or above the reference minus so many points.

    Counted in samples, so that no rounding decides.

    Example:
        >>> within([100, 905, 890, 899, 900], labelled=1000, reference=900)
        {'1.0': 2, '0.1': 4, '0': 5}
    """
    return {key: _stays(correct, reference - points * labelled / 100) for key, points in POINTS.items()}


def _stays(correct: Sequence[int], least: Fraction) -> int | None:
    below = [step for step, n in enumerate(correct, start=1) if n < least]
    first = below[-1] + 1 if below else 1
    return first if first <= len(correct) else None


def tally(steps: Iterable[int]) -> dict[str, int]:
    """How often each step number occurred, with keys as JSON has them.

    Example:
        >>> tally([5, 3, 5])
        {'3': 1, '5': 2}
    """
    return {str(step): n for step, n in sorted(Counter(steps).items())}


def add_tallies(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    """Both together, in the order of the steps.

    Example:
        >>> add_tallies({"9": 1}, {"9": 2, "10": 1})
        {'9': 3, '10': 1}
    """
    return {key: a.get(key, 0) + b.get(key, 0) for key in sorted(a.keys() | b.keys(), key=int)}


def distribution(counts: Mapping[str, int]) -> Steps:
    """Minimum, median, 99th percentile and maximum (nearest rank: each is a value that occurred).

    Example:
        >>> distribution({"3": 1, "4": 1, "5": 2})
        Steps(min=3, median=4, p99=5, max=5, counts={'3': 1, '4': 1, '5': 2})
    """
    steps = sorted(int(step) for step in counts)
    if not steps:
        return Steps(None, None, None, None)
    up_to = list(accumulate(counts[str(step)] for step in steps))

    def rank(percent: int) -> int:
        wanted = -(-up_to[-1] * percent // 100)
        return next(step for step, n in zip(steps, up_to, strict=True) if n >= wanted)

    return Steps(steps[0], rank(50), rank(99), steps[-1], {str(step): counts[str(step)] for step in steps})
