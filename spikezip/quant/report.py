"""What calibration did to a network: where its error comes from, how far its outputs are from the float network's."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.walk import main_output
from spikezip.program.blocks import block_name
from spikezip.program.nodes import Program, Ref
from spikezip.quant.ranges import Range

# Outputs have drifted far if less than this share of answers stays, or more than this of their variance is error.
_AGREEMENT, _DRIFT = 0.85, 0.15
_FEW = 20  # with fewer answers, a share of them says little


@dataclass(frozen=True)
class CalibrationReport:
    """Where the error of a calibrated network comes from.

    Attributes:
        errors: site → its share of what quantization changes in the network's output, by the gradient there; 0 … 1.
        levels: site → its levels.
        drift: squared error of the outputs, as a part of their variance, on some of the calibration data.
        agreement: share of answers (the largest logit) that are the float network's; None without logits.
        answers: how many answers were compared.
    """

    errors: Mapping[str, float]
    levels: Mapping[str, int]
    drift: float
    agreement: float | None
    answers: int

    @property
    def blocks(self) -> dict[str, float]:
        """The shares of blocks: sites up to the number in their name, such as `layers.3`."""
        found: dict[str, float] = {}
        for name, error in self.errors.items():
            block = block_name(name)
            found[block] = found.get(block, 0.0) + error
        return found

    def worst(self, count: int = 3) -> list[str]:
        """The sites with the largest shares."""
        return sorted(self.errors, key=self.errors.__getitem__, reverse=True)[:count]

    @property
    def has_drifted(self) -> bool:
        if self.agreement is None or self.answers < _FEW:
            return self.drift > _DRIFT
        return self.agreement < _AGREEMENT

    def __str__(self) -> str:
        width = max(map(len, self.blocks))
        sites = {block: [n for n in self.errors if block_name(n) == block] for block in self.blocks}
        lines = [f"{'block':<{width}}  error  sites  levels  worst site"]
        for block, share in self.blocks.items():
            mean = sum(self.levels[n] for n in sites[block]) / len(sites[block])
            worst = max(sites[block], key=self.errors.__getitem__)
            lines.append(f"{block:<{width}}  {share:>5.1%}  {len(sites[block]):>5}  {mean:>6.1f}  {worst}")
        if self.agreement is not None:
            lines.append(f"answers as the float network's: {self.agreement:.1%} of {self.answers}")
        return "\n".join([*lines, f"error of the outputs: {self.drift:.2%} of their variance"])

    def warn(self) -> None:
        """Say so if outputs have drifted far from the float network's."""
        if not self.has_drifted:
            return
        part = f"{self.drift:.0%} of the variance of its outputs is error"
        if self.agreement is not None and self.answers >= _FEW:
            part = f"{self.agreement:.0%} of its answers are the float network's"
        worst = ", ".join(f"{name} ({self.errors[name]:.0%} of the error)" for name in self.worst())
        warnings.warn(
            f"the quantized network is far from the float one: on calibration data {part}. Most is lost at {worst}. "
            'Give more levels, there or everywhere, or more samples; placement="products" and effort="default", if not '
            "set; or train it. qann.calibration shows all sites, spikezip.coverage(model) what becomes of every node",
            stacklevel=3,
        )


def report_on(
    program: Program, compared: Iterable[tuple[Mapping[str, Any], Any]], ranges: Mapping[str, Range]
) -> CalibrationReport:
    """The report, given for some batches the float network's values and what the quantized one returns."""
    total = sum(each.error for each in ranges.values()) or 1.0
    places = main_output(program.output, Ref)
    has_answers = isinstance(program.output, Mapping) and program.output.get("logits") in places
    same = answers = 0
    error, variance = 0.0, 0.0
    for floats, output in compared:
        for ref, y in zip(places, main_output(output, Tensor), strict=True):
            x = floats[ref.name]
            if not y.is_floating_point():
                continue
            more = _error(y.double(), x.double())
            error, variance = error + more[0], variance + more[1]
            if has_answers and y.shape[-1] > 1:
                equal = y.argmax(-1) == x.argmax(-1)
                same, answers = same + int(equal.sum()), answers + equal.numel()
    return CalibrationReport(
        errors={name: each.error / total for name, each in ranges.items()},
        levels={name: site.levels for name, site in program.sites.items()},
        drift=error / variance if variance > 0 else 0.0,
        agreement=same / answers if answers else None,
        answers=answers,
    )


def _error(y: Tensor, x: Tensor) -> tuple[float, float]:
    """Squared error and variance, of what is finite in both (masked places are not)."""
    known = torch.isfinite(x) & torch.isfinite(y)
    return float((y[known] - x[known]).square().sum()), float((x[known] - x[known].mean()).square().sum())
