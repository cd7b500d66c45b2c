"""Codes and scales from data, without training and without labels, for a network that is a program."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.quantized import quantized
from spikezip.errors import ConfigError, InputError
from spikezip.program.batch import Batch, as_batches, sizes_of
from spikezip.program.nodes import Product, Site
from spikezip.program.ranges import Codes, can_fold
from spikezip.program.rotate import (
    HADAMARD,
    Rotation,
    apart,
    can_part,
    can_rotate,
    can_rotate_together,
    is_rotated,
    symmetric,
)
from spikezip.program.sizes import Bindings
from spikezip.quant.levels import share_levels
from spikezip.quant.network import QuantizedNetwork
from spikezip.quant.plain import evaluate_plain
from spikezip.quant.ranges import Range, best_range, splits
from spikezip.quant.reconstruct import reconstruct, steps_of
from spikezip.quant.report import report_on
from spikezip.quant.rounding import round_weights
from spikezip.quant.samples import Sample, see

EFFORTS = ("quick", "default", "thorough")
Progress = Callable[[int, int], None]

_COMPARED = 64  # samples on which outputs are compared with the float network's
_WORTH = 0.7  # a rotation has to leave less of the error than this: it costs additions, and spikes
_APART = (0, 4, 16)  # channels that may stay outside of a rotation
_FEWER = 4  # of so many rows of a sample, one decides on rotations
_FACTORS = (0.25, 0.5, 1, 2, 4)  # levels at which the error of a site is measured, as parts of the mean


def calibrate(
    qann: QuantizedNetwork,
    batches: Iterable[Batch] | Batch,
    effort: str = "default",
    *,
    equal_levels: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
) -> QuantizedNetwork:
    """Set codes and scales of every site from what float activations look like on `batches`; returns the same network.

    Some hundred samples are enough; they need no labels. Codes are chosen so that the network's output changes least:
    how many of them are negative, and their scale. What a `SiteConfig` sets stays as it is set. `qann.calibration` says
    where the error lies, and a warning if outputs are far from the float network's.

    Args:
        effort: `"quick"` gives every site one scale and the levels that it has. `"default"` also gives a scale to each
            channel where that costs nothing, and more levels to sites where an error costs more: the levels of the
            config are then the mean of all sites for which it sets none. `"thorough"` also fits weights and scales,
            block by block, to what the float network computes (`quant/reconstruct.py`): some ten times as long.
        equal_levels: leave every site the levels that it has; not with `"quick"`.
        seed: of the sample.
        progress: called with how many steps are done, and how many there are: batches, and what is decided of sites.
        checkpoint: a file in which a thorough calibration keeps the blocks that are fitted. The same call goes on from
            there if it was interrupted; the file is removed at the end.

    Example:
        >>> from spikezip.quant.network import quantize
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
        >>> x = torch.randn(64, 4)
        >>> qann = calibrate(quantize(model, example=x), x)
        >>> qann.sites["2.in"].lo > -16, qann.scale("2.in").shape
        (True, torch.Size([8]))
    """
    if effort not in EFFORTS:
        raise ConfigError(f"effort={effort!r}: choose one of {', '.join(map(repr, EFFORTS))}")
    given = [qann.prepare(batch) for batch in as_batches(batches)]
    if not given:
        raise InputError("calibrate needs at least one batch")
    sharing = effort != "quick" and not equal_levels
    rotating = effort != "quick" and qann.quant_config.rotates and not is_rotated(qann.program)
    # Sites of channels that stay apart are not known yet: they take no steps of their own.
    done, total = 0, len(given) + len(qann.sites) * (1 + sharing + rotating)
    if effort == "thorough":
        total += steps_of(qann.program, len(given))

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    with torch.autocast(qann.device.type, enabled=False), torch.no_grad():
        samples = see(qann.program, qann.tensors(), given, seed, step)
        calibration = _Calibration(qann, samples, can_fold(qann.program) if effort != "quick" else frozenset(), step)
        if rotating:
            calibration.rotate(sizes_of(qann.program, given[0]))
        levels = calibration.shared_levels() if sharing else calibration.own_levels()
        ranges = calibration.set_ranges(levels)
        floats = {key: tensor.detach().clone() for key, tensor in qann.tensors().items()}
        if effort == "thorough":
            reconstruct(qann, given, seed, step, None if checkpoint is None else Path(checkpoint))
        elif effort == "default" and qann.quant_config.weight_bits is not None:
            round_weights(qann, calibration.samples)
        qann.calibration = report_on(qann.program, _compared(qann, floats, given), ranges)
    qann.calibration.warn()
    return qann


def _compared(
    qann: QuantizedNetwork, floats: Mapping[str, Tensor], batches: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """The float network's values and the quantized one's output, for the first samples."""
    frozen, seen = qann.frozen(), 0
    for batch in batches:
        if seen >= _COMPARED:
            return
        yield evaluate_plain(qann.program, floats, batch), quantized(frozen, batch)[0]
        seen += max((x.shape[0] for x in batch.values() if isinstance(x, Tensor) and x.ndim), default=1)


class _Calibration:
    def __init__(
        self,
        qann: QuantizedNetwork,
        samples: Mapping[str, Sample],
        folding: Collection[str],
        step: Callable[[], None],
    ) -> None:
        self.qann, self.samples, self.step = qann, dict(samples), step
        self.counted = frozenset(qann.sites)
        self.by_channel = {name: self._has_channels(site, name in folding) for name, site in qann.sites.items()}

    def rotate(self, sizes: Bindings) -> None:
        """Rotate the channels of sites where that makes a much smaller error, with the same levels."""
        program, found = self.qann.program, dict[str, Rotation]()
        folding = can_rotate(program)
        for one, other, block in can_rotate_together(program, sizes):
            if self._is_free(one) and self._is_free(other) and other not in found:
                first, second = Rotation(block), Rotation(block, arrives=other in folding)
                before = self._roughly(one) + self._roughly(other)
                if self._roughly(one, first) + self._roughly(other, second) < _WORTH * before:
                    found |= {one: first, other: second}
        for name in self.qann.sites:
            if name in folding and name not in found and self._is_free(name):
                rotation = self._rotation(name, folding[name])
                if rotation is not None:
                    found[name] = rotation
            self.step()
        self.qann.rotate(found)
        for name, rotation in found.items():
            if rotation.apart:
                self.samples[apart(name)] = self.samples[name].channels(rotation.apart)
                self.by_channel[apart(name)] = True
            self.samples[name] = self.samples[name].rotated(rotation)
            self.by_channel[name] = rotation.arrives and self.by_channel[name]

    def _is_free(self, name: str) -> bool:
        """Whether the config leaves codes and scales of a site to calibration."""
        config = self.qann.quant_config.site(name)
        return (config.signed, config.lo, config.per_channel) == (None, None, None)

    def _roughly(self, name: str, rotation: Rotation | None = None) -> float:
        """The error of a site, rotated or not, by some rows."""
        site, sample = self.qann.sites[name], self.samples[name].some(_FEWER)
        if rotation is None:
            return self._error(site, site.levels, sample)
        by_channel = rotation.arrives and self.by_channel[name]
        error = best_range(sample.rotated(rotation), [symmetric(site.levels)], by_channel, quickly=True).error
        if rotation.apart:
            few = sample.channels(rotation.apart)
            error += best_range(few, [symmetric(site.levels)], by_channel=True, quickly=True).error
        return error

    def _rotation(self, name: str, block: int) -> Rotation | None:
        """How a site that weights read is rotated; None if it is better as it is."""
        least, best = _WORTH * self._roughly(name), None
        largest = self.samples[name].u.abs().amax(0).argsort(descending=True).tolist()
        for count in _APART if can_part(self.qann.program, name) else _APART[:1]:
            rotation = Rotation(block, tuple(sorted(largest[:count])))
            error = self._roughly(name, rotation)
            if error < least and count <= block // 2:
                best, least = rotation, error * _WORTH  # channels that stay apart are to be worth it as well
        return best

    def own_levels(self) -> dict[str, int]:
        return {name: site.levels for name, site in self.qann.sites.items()}

    def shared_levels(self) -> dict[str, int]:
        """Levels by what an error at a site costs. Where the config sets none, its levels are their mean."""
        config = self.qann.quant_config
        at = sorted({min(256, max(4, round(config.levels * f / 2) * 2)) for f in _FACTORS})
        curves = {}
        for name, site in self.qann.sites.items():
            settings = config.site(name)
            if settings.levels is None and settings.lo is None:
                curves[name] = [(n, self._error(site, n)) for n in at]
            self._count(name)
        return self.own_levels() | share_levels(curves, config.levels)

    def set_ranges(self, levels: Mapping[str, int]) -> dict[str, Range]:
        found: dict[str, Range] = {}
        for name, site in self.qann.sites.items():
            found[name] = best_range(self.samples[name], self._splits(site, levels[name]), self.by_channel[name])
            self._count(name)
        self.qann.set_ranges(
            {name: Codes(each.lo, each.hi, self.by_channel[name]) for name, each in found.items()},
            {name: each.scale for name, each in found.items()},
        )
        return found

    def _count(self, name: str) -> None:
        if name in self.counted:
            self.step()

    def _has_channels(self, site: Site, folds: bool) -> bool:
        wanted = self.qann.quant_config.site(site.name).per_channel
        return site.by_channel if wanted is not None else folds

    def _splits(self, site: Site, levels: int) -> list[tuple[int, int]]:
        """The ranges that a site may have."""
        config = self.qann.quant_config.site(site.name)
        if config.lo is not None:
            return [(site.lo, site.hi)]
        if config.signed is not None:
            return [(-levels // 2, levels // 2 - 1) if config.signed else (0, levels - 1)]
        negative = site.signed and bool((self.samples[site.name].u < 0).any())
        # What a product gives is about symmetric, and q, k and v with equal codes share a kernel.
        before = self.qann.program[site.u]
        behind_product = isinstance(before, Product) or getattr(before, "op", "") == HADAMARD
        return splits(levels, negative)[:1] if negative and behind_product else splits(levels, negative)

    def _error(self, site: Site, levels: int, sample: Sample | None = None) -> float:
        sample = self.samples[site.name] if sample is None else sample
        choices = self._splits(site, levels)
        return best_range(sample, choices[:: 2 if len(choices) > 2 else 1], self.by_channel[site.name], True).error
