"""Confidence rules as people read them: what they are, what they do, within 80 columns."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from spikezip.cli.measured import quantity
from spikezip.cli.screen import out, say
from spikezip.measure.exit_document import ExitDocument
from spikezip.measure.exit_report import ExitReport
from spikezip.measure.exit_rule import ExitRule

ALL, ODD, EVEN = "all samples", "samples 1, 3, 5, …", "samples 2, 4, 6, …"


def show(document: ExitDocument) -> None:
    """The rule, what it was found on, and a table: of one rule its numbers, of several a row each."""
    rules, reports = document.rules, document.reports
    _say_rule(document)
    _say_data(document)
    out().print(_one(reports[0]) if len(rules) == 1 else _curve(rules, reports))
    say("beside the exit steps: T_eq. Energy is counted from the spikes up to each")
    say("sample's own exit; memory traffic is left out.")
    if reports[0].unsettled:
        _warn(f"{reports[0].unsettled:,} samples had not settled by the last step: try --steps equilibrium")


def _say_rule(document: ExitDocument) -> None:
    first, several = document.rules[0], len(document.rules) > 1
    sign, meaning = ("≥", "the lead of the largest output")
    if first.kind == "entropy":
        sign, meaning = ("≤", "of the softmax, in nats")
    value = "threshold" if several else f"{first.threshold:.4g}"
    say(f"rule: {first.kind} {sign} {value} ({meaning}), patience {first.patience}")
    if first.found is None:
        say("calibrated: no, set by hand")
    elif not several:
        leave = f"{_percent(first.found.agreement)} of {first.found.samples:,} samples leave with their final answer"
        say(f"calibrated: {leave}, {first.found.wanted:.6g} asked for")


def _say_data(document: ExitDocument) -> None:
    source, shown = document.calibration, document.reported
    if source is not None:
        say(f"calibrated on: {source.name}, {source.part} ({source.samples:,})")
    if shown is None:
        return
    say(f"reported on: {shown.name}, {shown.part} ({shown.samples:,})")
    if source is not None and source.name == shown.name:
        if (source.part, shown.part) == (ODD, EVEN):
            say("(there is no --test: the samples of --data are split in two fixed halves)")
        else:
            _warn("the rule was calibrated on samples of this data: on others it may agree less")


def _one(report: ExitReport) -> Table:
    """A rule: a row for each number."""
    table = _table(["", "with exit", "to equilibrium"])
    table.add_row("final answers", _percent(report.agreement), _percent(report.agreement_without))
    if report.accuracy is not None:
        table.add_row("accuracy", _percent(report.accuracy), _percent(report.accuracy_without))
    table.add_row("leave before they settle", _percent(report.confident), "–")
    for name, title in (("mean", "step, mean"), ("median", "step, median"), ("p99", "step, 99 %")):
        table.add_row(title, _step(report.steps[name]), _step(report.t_eq[name]))
    spikes = report.spikes_per_neuron, report.spikes_per_neuron_without
    table.add_row("spikes per neuron", *(f"{number:.3f}" for number in spikes))
    table.add_row("energy per inference", *(quantity(j, "J") for j in (report.energy_j, report.energy_j_without)))
    return table


def _curve(rules: Sequence[ExitRule], reports: Sequence[ExitReport]) -> Table:
    """Rules: a row for each, and one without."""
    labelled = reports[0].accuracy is not None
    wanted = ["asked\nfor"] if rules[0].found is not None else []
    accuracy = ["accuracy"] if labelled else []
    steps = ["mean\nstep", "median\nstep", "99 %\nstep"]
    table = _table([*wanted, "threshold", "final\nanswers", *accuracy, *steps, "spikes/\nneuron", "energy/\ninference"])
    for rule, report in zip(rules, reports, strict=True):
        table.add_row(
            *([f"{rule.found.wanted:.6g}"] if rule.found is not None else []),
            f"{rule.threshold:.4g}",
            _percent(report.agreement),
            *([_percent(report.accuracy)] if labelled else []),
            *(_step(report.steps[name]) for name in ("mean", "median", "p99")),
            f"{report.spikes_per_neuron:.3f}",
            quantity(report.energy_j, "J"),
        )
    table.add_section()
    end = reports[0]
    table.add_row(
        *(["–"] if wanted else []),
        "T_eq",
        _percent(end.agreement_without),
        *([_percent(end.accuracy_without)] if labelled else []),
        *(_step(end.t_eq[name]) for name in ("mean", "median", "p99")),
        f"{end.spikes_per_neuron_without:.3f}",
        quantity(end.energy_j_without, "J"),
    )
    return table


def _table(headings: Sequence[str]) -> Table:
    table = Table(*headings, box=SIMPLE_HEAD, padding=0)  # the box has gaps of its own
    for column in table.columns:
        column.justify = "right"
    if not headings[0]:
        table.columns[0].justify = "left"
    return table


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.2%}"


def _step(step: float | None) -> str:
    return "–" if step is None else f"{step:.1f}" if isinstance(step, float) else str(step)


def _warn(text: str) -> None:
    out().print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
