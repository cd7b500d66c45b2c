"""Which codes a site has, and their scale: the choice that changes the network's output least on a sample.

An error e in a row of a site's input changes the loss by `g·e`, with g the gradient there. The gradient is that of a
label drawn by the network itself, so the mean of `(g·e)²` is what the error changes in the output (its Fisher
information). A sum over the row is taken before the square: small probabilities that all become zero are an error that
adds up, as no sum of squares would tell. As few rows have such a sum by chance, the sum of squares is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikezip.quant.samples import Sample

# Of the levels of a site, how many are for negative codes. GELU and SiLU need few.
_NEGATIVE = (0.5, 0.375, 0.25, 0.1875, 0.125, 0.0625, 0.03, 0.0)
_ONE_FOR_ALL = torch.logspace(-2.3, 0, 30)  # scales, as a part of the one that covers everything
_COMMON = torch.logspace(-0.6, 0.4, 14)  # factors for scales per channel
_EACH = torch.linspace(0.15, 1, 12)  # scales of a channel, as a part of the one that covers it


@dataclass(frozen=True)
class Range:
    """The codes `lo … hi` of a site and their scale, one number or one per channel, and the error that they make."""

    lo: int
    hi: int
    scale: Tensor
    error: float


def splits(levels: int, negative: bool) -> list[tuple[int, int]]:
    """The ways to divide levels into negative and positive codes, zero included.

    Example:
        >>> splits(16, negative=True)
        [(-8, 7), (-6, 9), (-4, 11), (-3, 12), (-2, 13), (-1, 14), (0, 15)]
        >>> splits(16, negative=False)
        [(0, 15)]
    """
    parts = _NEGATIVE if negative else (0.0,)
    lows = dict.fromkeys(min(-round(levels * part), -1 if part else 0) for part in parts)
    return [(lo, levels - 1 + lo) for lo in lows if levels - 1 + lo > 0]


def best_range(sample: Sample, choices: Sequence[tuple[int, int]], by_channel: bool, quickly: bool = False) -> Range:
    """The range of least error among `choices` of lowest and highest code.

    Example:
        >>> u = torch.linspace(-0.2, 3, 100).view(-1, 1)
        >>> found = best_range(Sample(u, torch.ones_like(u), torch.ones(100)), splits(16, True), by_channel=False)
        >>> found.lo, found.hi, 0.15 < float(found.scale) < 0.25
        (-1, 14, True)
    """
    found = [_best_scale(sample, lo, hi, by_channel, 2 if quickly else 1) for lo, hi in choices]
    return min(found, key=lambda each: each.error)


def _best_scale(sample: Sample, lo: int, hi: int, by_channel: bool, stride: int) -> Range:
    cover = _cover(sample.u, lo, hi)
    if not bool(cover.max() > 0):
        scale = torch.full_like(cover, 1 / hi)
        return Range(lo, hi, scale if by_channel else scale[0], 0.0)
    if by_channel:
        candidates, judge = _scales_per_channel(sample, lo, hi, stride)
    else:
        candidates, judge = [cover.max() * f for f in _ONE_FOR_ALL[::stride].tolist()], sample
    errors = [error_of(judge, scale, lo, hi) for scale in candidates]
    best = min(range(len(errors)), key=errors.__getitem__)
    if judge is sample:
        return Range(lo, hi, candidates[best], errors[best])
    scale = _scales_per_channel(sample, lo, hi, stride, whole=True)[0][best]
    return Range(lo, hi, scale, error_of(sample, scale, lo, hi))


def _scales_per_channel(
    sample: Sample, lo: int, hi: int, stride: int, whole: bool = False
) -> tuple[list[Tensor], Sample]:
    """Candidates from every other row, and the rows that judge them.

    The largest value of a channel in some rows is not the largest of all. Other rows tell by how much scales have to be
    larger than what suits the rows that they come from. With `whole`, candidates are from all rows.
    """
    found_on, judge = sample, sample
    if not whole and len(sample.u) > 1:
        found_on, judge = sample.part(0), sample.part(1)
    cover = _cover(found_on.u, lo, hi)
    if bool(cover.max() > 0):
        # A channel that is zero throughout gets the scale of the others: it is no reason for a coarse weight.
        cover = torch.where(cover > 0, cover, cover[cover > 0].log().mean().exp())
    else:
        cover = torch.full_like(cover, float(_cover(sample.u, lo, hi).max()))
    plain, costly = _scale_of_each(found_on, cover, lo, hi)
    factors = _COMMON[::stride].tolist()
    return [base * f for base in (plain, (plain * costly).sqrt()) for f in factors], judge


def _cover(u: Tensor, lo: int, hi: int) -> Tensor:
    """For each channel, the least scale with which nothing is cut off; what no code can reach is left out."""
    top = u.amax(0).clamp(min=0) / hi
    return torch.maximum(top, -u.amin(0) / -lo) if lo < 0 else top


def _scale_of_each(sample: Sample, cover: Tensor, lo: int, hi: int) -> tuple[Tensor, Tensor]:
    """For each channel, the scale of the least squared error, and of the least that is weighted by gradients."""
    weights = sample.weight[:, None], sample.weight[:, None] * sample.gradient.square()
    best = [cover.clone(), cover.clone()]
    least = [torch.full_like(cover, float("inf")) for _ in weights]
    for part in _EACH.tolist():
        squares = _error(sample.u, cover * part, lo, hi).square_()
        for i, weight in enumerate(weights):
            error = (squares * weight).sum(0)
            best[i] = torch.where(error < least[i], cover * part, best[i])
            least[i] = torch.minimum(error, least[i])
    return best[0], best[1]


def error_of(sample: Sample, scale: Tensor, lo: int, hi: int) -> float:
    """What these codes change in the network's output, as far as the sample tells; squared errors, without gradients.

    Example:
        >>> u = torch.tensor([[0.2, 0.2, 0.2]])
        >>> ones = torch.ones(1)
        >>> together = Sample(u, torch.ones(1, 3), ones), Sample(u, torch.tensor([[1.0, -1.0, 1.0]]), ones)
        >>> [round(error_of(each, torch.tensor(1.0), 0, 3), 2) for each in together]
        [0.48, 0.16]
    """
    error = _error(sample.u, scale, lo, hi)
    if not bool((sample.gradient != 0).any()):
        return float((error.square_().sum(1) * sample.weight).sum())
    error.mul_(sample.gradient)
    together = error.sum(1).square_() + error.square_().sum(1)
    return float((together * sample.weight).sum())


def _error(u: Tensor, scale: Any, lo: int, hi: int) -> Tensor:
    """What quantization changes; without the care for ties that `ops.rounding` takes."""
    return (u / scale).add_(0.5).floor_().clamp_(lo, hi).mul_(scale).sub_(u)
