"""The tables of a report: plain rows, which a page shows and a spreadsheet takes."""

from dataclasses import dataclass
from html import escape

from spikezip.measure.document import Measurement, Steps
from spikezip.show.names import agreement_name, percent


@dataclass(frozen=True)
class Table:
    """A title, a head and rows of text. The first column names the row."""

    name: str  # short, fit for an id
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def to_html(self, opened: bool = False) -> str:
        """A box that opens, with a button that copies the table.

        Example:
            >>> "<td>1 &lt; 2</td>" in Table("t", "T", ("what",), (("1 < 2",),)).to_html()
            True
        """
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in self.head)
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        return (
            f'<details class="card"{" open" if opened else ""}><summary>{escape(self.title)}</summary>{note}'
            f'<div class="scroll" tabindex="0"><table id="table-{self.name}"><thead><tr>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>"
            f'<p class="note"><button type="button" data-copy="table-{self.name}">copy table</button></p></details>'
        )


def tables(measurement: Measurement) -> list[Table]:
    """Answers over time, latency and sites; `energies` has the tables of costs."""
    return [_over_time(measurement), _latency(measurement), _sites(measurement)]


def _over_time(one: Measurement) -> Table:
    curves = one.over_time
    columns = {
        "accuracy": (curves.accuracy, percent),
        "top-5": (curves.top5, percent),
        agreement_name(one): (curves.agreement, percent),
        "spikes per neuron, this step": (curves.firing_rate, "{:.4f}".format),
        "spikes per neuron, so far": (curves.spikes_per_neuron, "{:.4f}".format),
    }
    known = {name: (values, how) for name, (values, how) in columns.items() if values is not None}
    rows = tuple(
        (str(step), *(how(values[place]) for values, how in known.values())) for place, step in enumerate(curves.step)
    )
    return Table("over-time", "Over time", ("step", *known), rows)


def _latency(one: Measurement) -> Table:
    latency = one.latency

    def said(step: int | None) -> str:
        return "not reached" if step is None else str(step)

    rows = [("T_up, half of the way from chance to the last accuracy", said(latency.t_up))]
    rows += [
        (f"accuracy stays within {points} points of the QANN", said(step)) for points, step in latency.within.items()
    ]
    t_eq = latency.t_eq
    named = (("minimum", t_eq.min), ("median", t_eq.median), ("99 %", t_eq.p99), ("maximum", t_eq.max))
    rows += [(f"T_eq, {name}", said(step)) for name, step in named]
    rows.append(("samples that had not settled", f"{latency.unsettled:,}"))
    return Table("latency", "Latency", ("what", "step"), tuple(rows))


def _sites(one: Measurement) -> Table:
    head = (
        *("site", "neurons", "spikes per neuron", "positive", "negative", "needed |S|", "waste"),
        *("silent", "T_eq median", "T_eq maximum"),
    )

    def at(steps: Steps, which: str) -> str:
        value = getattr(steps, which)
        return "–" if value is None else str(value)

    rows = tuple(
        (
            site.name,
            f"{site.neurons:,.0f}",
            f"{site.spikes_per_neuron:.3f}",
            f"{site.positive / site.neurons:.3f}",
            f"{site.negative / site.neurons:.3f}",
            f"{site.net / site.neurons:.3f}",
            percent(site.waste, 0),
            "–" if site.silent is None else percent(site.silent, 1),
            at(site.t_eq, "median"),
            at(site.t_eq, "max"),
        )
        for site in one.sites
    )
    note = (
        "Positive, negative and needed are spikes per neuron. Waste: spikes fired beyond those needed, against those."
    )
    return Table("sites", "Sites", head, rows, note)
