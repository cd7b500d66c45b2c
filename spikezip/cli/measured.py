"""A measurement as people read it: tables that fit a terminal of 80 columns."""

from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from spikezip.cli.screen import out, say
from spikezip.measure.activity import by_kind
from spikezip.measure.certificate import Certificate
from spikezip.measure.document import Measurement
from spikezip.measure.over_time import shown_steps

_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"))
_NETWORKS = {"snn": "SNN", "snn_integer": "SNN, integer", "qann": "QANN", "float_model": "float"}
_PARTS = {
    "linear": "linear products",
    "attention": "attention products",
    "neurons": "neurons, quantizers",
    "additions": "additions",
    "softmax": "softmax",
    "norms": "norms",
    "functions": "other functions",
    "input_layer": "input layer",
    "memory": "memory traffic",
    "total": "together",
}


def show(measurement: Measurement) -> None:
    """Over time, latency, activity by kind of site, operations and energy."""
    console = out()
    model, data = measurement.model, measurement.data
    say(
        f"{measurement.name}: {model.class_}, {model.parameters / 1e6:.2f} M parameters, {model.levels} levels, "
        f"{model.sites} sites, {model.neurons:,.0f} neurons"
    )
    say(f"{data.samples:,} samples{f' of {data.name}' if data.name else ''}, {_settings(measurement)}")
    _certificate(measurement)
    console.print(_over_time(measurement))
    _latency(measurement)
    console.print(_activity(measurement))
    say("net: the fewest spikes that lead to the final codes; silent: never fired; T_eq: the longest")
    console.print(_energy(measurement))
    _operations(measurement)


def _settings(m: Measurement) -> str:
    s = m.settings
    until = "until equilibrium" if s.steps == "equilibrium" else f"{s.steps} steps"
    more = [f"largest spike {s.max_spike}"] if s.max_spike != 1 else []
    more += [f"stagger {s.stagger:g}"] if s.stagger else []
    return ", ".join([until, f"{s.engine} engine", f"{s.coding} input", *more])


def _certificate(m: Measurement) -> None:
    """One line: whether the SNN is the QANN. Nothing, if there was no QANN and no certificate beside the network."""
    if m.certificate is not None:
        found = Certificate(**m.certificate)
        whence = "certificate" if m.qann is not None else "certificate in the network's folder"
        text, style = f"{whence}: {found}", "green" if found.exact else "red"
    elif m.qann is not None:
        text, style = "certificate: none, codes are final only at equilibrium: try --steps equilibrium", "yellow"
    else:
        return
    out().print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _over_time(m: Measurement) -> Table:
    curves, latency = m.over_time, m.latency
    others = {"qann": "the QANN", "equilibrium": "the end", "last step": "the last step"}
    columns = {
        "accuracy": ("accuracy", "{:.2%}"),
        "top5": ("top-5", "{:.2%}"),
        "agreement": (f"agrees with\n{others.get(curves.agreement_with or '', '')}", "{:.2%}"),
        "spikes_per_neuron": ("spikes per\nneuron so far", "{:.3f}"),
        "firing_rate": ("firing\nrate", "{:.3f}"),
    }
    known = [name for name in columns if getattr(curves, name) is not None]
    table = _table("over time", ["step", *(columns[name][0] for name in known)])
    marked = {latency.t_up, *latency.within.values(), latency.t_eq.median, latency.t_eq.max, *shown_steps(m.steps)}
    for step in sorted(step for step in marked if step is not None and 1 <= step <= m.steps):
        table.add_row(str(step), *(columns[name][1].format(getattr(curves, name)[step - 1]) for name in known))
    return table


def _latency(m: Measurement) -> None:
    for title, answers in (("float model", m.float_), ("QANN", m.qann)):
        if answers is not None and answers.accuracy is not None:
            five = "" if answers.top5 is None else f", top-5 {answers.top5:.2%}"
            say(f"{title}: accuracy {answers.accuracy:.2%}{five}")
    latency, t = m.latency, m.latency.t_eq
    if latency.t_up is not None:
        say(f"T_up: {latency.t_up}, half of the way from chance to the last accuracy")
    if any(latency.within.values()):
        reached = " · ".join(f"−{points} {_or_dash(step)}" for points, step in latency.within.items())
        say(f"T to the QANN's accuracy, minus points: {reached}")
    if t.max is not None:
        say(f"T_eq: min {t.min} · median {t.median} · 99 % {t.p99} · max {t.max}")
    if latency.unsettled:
        text = f"{latency.unsettled:,} samples had not settled by the last step: try --steps equilibrium"
        out().print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _activity(m: Measurement) -> Table:
    table = _table("activity, per neuron", ["sites", "neurons", "spikes", "up", "down", "net", "silent", "T_eq"])
    table.columns[0].justify = "left"
    table.columns[0].overflow = "fold"
    for name, site in by_kind(m.sites).items():
        each = [site.spikes, site.positive, site.negative, site.net]
        table.add_row(
            name,
            f"{site.neurons:,.0f}",
            *(f"{n / site.neurons:.2f}" for n in each),
            "–" if site.silent is None else f"{site.silent:.1%}",
            _or_dash(site.t_eq.max),
        )
    return table


def _energy(m: Measurement) -> Table:
    table = _table("energy per inference", ["", *_NETWORKS.values()])
    table.columns[0].justify = "left"
    for part, title in _PARTS.items():
        row = [m.energy.get(network, {}).get(part) for network in _NETWORKS]
        if any(row):
            if part == "total":
                table.add_section()
            table.add_row(title, *("–" if joules is None else quantity(joules, "J") for joules in row))
    return table


def _operations(m: Measurement) -> None:
    paper = m.energy.get("paper")
    if paper is not None:
        say(
            f"paper: N_pre {paper['n_pre']:,.0f}, N_post {paper['n_post']:,.0f} spikes per step, "
            f"power {quantity(paper['power_w'], 'W')} over {m.steps} steps of 1 ms"
        )
    counts: dict[str, Any] = m.energy.get("per_inference", {})
    if counts:
        products = sum(counts[f"{kind} accumulates"] for kind in ("linear", "attention"))
        say(f"operations: {products:,.0f} accumulates; without time {counts['MACs without time']:,.0f} MACs")


def quantity(value: float, unit: str) -> str:
    """A number with the prefix that suits it.

    Example:
        >>> quantity(0.00012345, "J"), quantity(0, "J"), quantity(20.17, "W")
        ('123.5 µJ', '0 J', '20.17 W')
    """
    if not value:
        return f"0 {unit}"
    factor, prefix = next((pair for pair in _PREFIXES if abs(value) >= pair[0]), _PREFIXES[-1])
    return f"{value / factor:.4g} {prefix}{unit}"


def _or_dash(step: int | None) -> str:
    return "–" if step is None else str(step)


def _table(title: str, headings: Iterable[str]) -> Table:
    table = Table(
        *headings,
        title=f"\n{title}",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for column in table.columns:
        column.justify = "right"
    return table
