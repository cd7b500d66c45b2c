"""How many levels each site gets, if their mean is given: more where an error costs more."""

import heapq
import math
from collections.abc import Mapping, Sequence

Curve = Sequence[tuple[int, float]]  # levels and the error with them, levels rising


def share_levels(curves: Mapping[str, Curve], mean: float, most: int = 256) -> dict[str, int]:
    """Levels for each site whose sum is at most `mean` times the number of sites, and whose errors add up to least.

    `curves` gives a few points of each site's error; between them it is a straight line in logarithms. Levels are even,
    from a quarter of the mean, but at least 4, to `most`: what a small sample tells is not to be trusted further.

    Example:
        >>> curves = {"dear": [(8, 16.0), (32, 1.0)], "cheap": [(8, 0.16), (32, 0.01)]}
        >>> share_levels(curves, mean=16)
        {'dear': 26, 'cheap': 6}
    """
    least = max(4, int(mean) // 8 * 2)
    found = dict.fromkeys(curves, least)
    left = int(mean * len(curves)) - sum(found.values())
    # The steps grow with the levels, so that each is an eighth of them.
    waiting = [_next(curves[name], name, least, most) for name in curves]
    heap = [each for each in waiting if each is not None]
    heapq.heapify(heap)
    while heap:
        _, name, step = heapq.heappop(heap)
        if step > left:
            continue
        found[name] += step
        left -= step
        following = _next(curves[name], name, found[name], most)
        if following is not None:
            heapq.heappush(heap, following)
    return found


def _next(curve: Curve, name: str, levels: int, most: int) -> tuple[float, str, int] | None:
    """What the next levels of a site gain, each, as a negative number; the site; how many they are."""
    step = min(max(2, levels // 16 * 2), most - levels)
    if step <= 0:
        return None
    # An error may fall only some levels further on: the steps up to there count together.
    ahead = [levels + step, *(n for n, _ in curve if n > levels + step)]
    gain = max((error_at(curve, levels) - error_at(curve, n)) / (n - levels) for n in ahead)
    return -max(gain, 0.0), name, step


def error_at(curve: Curve, levels: int) -> float:
    """The error with this many levels, by the points of a curve.

    Example:
        >>> error_at([(8, 16.0), (32, 1.0)], 16)
        4.0
    """
    points = [(math.log(n), math.log(max(error, 1e-300))) for n, error in curve]
    x = math.log(levels)
    below = max((i for i, (at, _) in enumerate(points) if at <= x), default=0)
    below = min(below, len(points) - 2)
    (x0, y0), (x1, y1) = points[below], points[below + 1]
    return math.exp(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
