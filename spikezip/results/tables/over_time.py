"""Measurements over time: answers, latency, activity."""

from collections.abc import Callable, Sequence

from spikezip.errors import ConfigError
from spikezip.measure.activity import by_kind
from spikezip.measure.document import Measurement
from spikezip.results.markdown import Table
from spikezip.results.numbers import DASH, decimal, number, share


def over_time(measured: Sequence[Measurement], at: Sequence[int]) -> Table:
    """Steps as rows; accuracy, agreement and spikes of each measurement as columns; the QANN at the end."""
    if not at:
        raise ConfigError("name the steps to show, as in at=1,4,8")
    head, rows = ["T"], [[str(step)] for step in at]
    last = ["QANN"]
    for one in measured:
        name = f"{one.name}: " if len(measured) > 1 else ""
        head += [f"{name}accuracy, %", "agrees with the QANN, %", "spikes per neuron"]
        for row, step in zip(rows, at, strict=True):
            row += [_or_dash(one.at(curve, step), share) for curve in ("accuracy", "agreement")]
            row.append(_or_dash(one.at("spikes_per_neuron", step), decimal))
        last += [_or_dash(one.qann.accuracy if one.qann else None, share), "", ""]
    return Table(tuple(head), (*map(tuple, rows), tuple(last)))


def latency(measured: Sequence[Measurement]) -> Table:
    """When the answer is there, and with how many spikes: a column for each measurement."""

    def within(one: Measurement) -> str:
        return " / ".join(_or_dash(step, number) for step in one.latency.within.values())

    def t_eq(one: Measurement) -> str:
        t = one.latency.t_eq
        return " / ".join(_or_dash(step, number) for step in (t.median, t.p99, t.max))

    def fewest(one: Measurement) -> str:
        return decimal(sum(site.net for site in one.sites) / sum(site.neurons for site in one.sites))

    points = " / ".join(f"− {name}" for name in measured[0].latency.within)
    lines: dict[str, Callable[[Measurement], str]] = {
        "samples": lambda one: number(one.data.samples),
        "T_up (half of the way from chance)": lambda one: _or_dash(one.latency.t_up, number),
        f"T to the QANN's accuracy {points} points": within,
        "T_eq: median / 99 % / largest": t_eq,
        "spikes per neuron": lambda one: decimal(one.spikes_per_neuron),
        "fewest that lead to the same codes": fewest,
    }
    rows = tuple((title, *(read(one) for one in measured)) for title, read in lines.items())
    return Table(("", *(one.name for one in measured)), rows)


def activity(one: Measurement) -> Table:
    """Sites of one kind as rows."""
    head = ("sites of one kind", "neurons", "spikes per neuron", "up", "down", "net", "silent, %", "largest T_eq")
    rows = tuple(
        (
            f"`{name}`",
            number(round(site.neurons)),
            *(decimal(n / site.neurons) for n in (site.spikes, site.positive, site.negative, site.net)),
            _or_dash(site.silent, share),
            _or_dash(site.t_eq.max, number),
        )
        for name, site in by_kind(one.sites).items()
    )
    return Table(head, rows)


def _or_dash(value: float | None, shown: Callable[[float], str]) -> str:
    return DASH if value is None else shown(value)
