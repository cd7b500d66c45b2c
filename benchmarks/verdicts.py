"""Whether the spikes of a run are those of the reference."""

import torch

from spikezip.engines.engine import Run
from spikezip.measure.exits import Exits

Counts = dict[str, list[list[int]]]  # site → [T, B]


def verdict(expected: Run, got: Run | Exits) -> str:
    """`equal`, or WRONG and where it begins: all sites, all steps, and the logits bit by bit."""
    words = counts_verdict(cut_off(counts_of(expected), got), counts_of(got))
    if isinstance(got, Exits):
        logits = torch.stack([expected.logits_per_step[t - 1, i] for i, t in enumerate(got.steps.tolist())])
        same = torch.equal(logits, got.logits)
    else:
        same = torch.equal(expected.logits_per_step, got.logits_per_step)
    if words == "equal" and not same:
        return "WRONG: other logits"
    return words


def counts_verdict(expected: Counts, got: Counts) -> str:
    if expected.keys() != got.keys():
        return f"WRONG: other sites, such as {min(expected.keys() ^ got.keys())}"
    wrong = [(t, site) for site in expected for t in _unequal_steps(expected[site], got[site])]
    if not wrong:
        return "equal"
    step, site = min(wrong, key=lambda place: place[0])  # the first in time; of these, the first in the network
    return f"WRONG: other spikes from step {step} on, at {site}"


def _unequal_steps(expected: list[list[int]], got: list[list[int]]) -> list[int]:
    if len(expected) != len(got):
        return [min(len(expected), len(got)) + 1]
    return [t for t, pair in enumerate(zip(expected, got, strict=True), 1) if pair[0] != pair[1]]


def cut_off(expected: Counts, got: Run | Exits) -> Counts:
    """What is expected of samples that leave: their spikes up to then, and none after."""
    if isinstance(got, Run):
        return expected
    steps = got.steps.tolist()
    last = max(steps)
    return {
        site: [[n if t <= at else 0 for n, at in zip(row, steps, strict=False)] for t, row in enumerate(rows[:last], 1)]
        for site, rows in expected.items()
    }


def counts_of(run: Run | Exits, samples: int | None = None) -> Counts:
    return {site: counts[:, :samples].tolist() for site, counts in run.spike_counts.items()}
