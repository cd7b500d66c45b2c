"""Tables of certificates: what was compared between SNN and QANN, and what was found; and the same in floats."""

import re
from pathlib import Path

from spikezip.errors import ConfigError
from spikezip.measure.certificate import Certificate
from spikezip.measure.document import Measurement
from spikezip.results.book import Book
from spikezip.results.groups import TITLES
from spikezip.results.markdown import Table, link
from spikezip.results.numbers import DASH, number

_HEAD = ("network", "data", "samples", "sites", "codes compared", "mismatches", "T_eq")


def certificates(book: Book) -> Table:
    """A row for each run and each measurement that has one, and their sum."""
    found = []
    for runs, again in ((book.results.runs, ""), (book.results.again, ", once more")):
        for name, run in runs.items():
            linked = link(name, book.link(run.folder / "certificate.json"))
            found.append((f"{linked}{again}", TITLES[run.results["data"]["name"]], run.certificate))
    for name, one in book.results.measured_with(integers=True).items():
        if one.certificate is not None:
            stagger = f", stagger {one.settings.stagger:g}" if one.settings.stagger else ""
            found.append((f"{_linked(book, name)}, measured{stagger}", _data(one), Certificate(**one.certificate)))
    rows = [_row(name, data, certificate) for name, data, certificate in found]
    codes, wrong = (sum(getattr(one, key) for _, _, one in found) for key in ("codes", "mismatches"))
    rows.append(("**together**", "", "", "", f"**{number(codes)}**", f"**{number(wrong)}**", "", ""))
    bad = [name for name, _, one in found if not one.exact]
    said = f"**Not exact**: {', '.join(bad)}." if bad else "All are exact: codes and outputs; every sample settled."
    notes = (f"{said} *T_eq*: median / 99 % / largest.",)
    return Table((*_HEAD, "device"), tuple(rows), left=("data", "device"), notes=notes)


def floats(book: Book) -> Table:
    """A row for each measurement of a network with float weights: how far it is from the QANN."""
    head = ("network", "data", "samples", "codes compared", "codes that differ", "in %", "answers that differ", "T_eq")
    rows = []
    for name, one in book.results.measured_with(integers=False).items():
        if one.certificate is None or one.over_time.agreement is None or one.over_time.agreement_with != "qann":
            raise ConfigError(f"measured/{name}.json has float weights and was not compared: measure it with --qann")
        found = Certificate(**one.certificate)
        other = round((1 - one.over_time.agreement[-1]) * found.samples)
        share = f"{100 * found.mismatches / found.codes:.2f}"
        counts = (number(found.samples), number(found.codes), number(found.mismatches), share, number(other))
        rows.append((_linked(book, name), _data(one), *counts, t_eq(found)))
    return Table(head, tuple(rows), left=("data",), notes=("*T_eq*: median / 99 % / largest.",))


def _linked(book: Book, name: str) -> str:
    return link(name, book.link(book.results.folder / "measured" / f"{name}.json"))


def _data(one: Measurement) -> str:
    data = Path((one.data.name or DASH).partition(":")[0]).name
    return TITLES.get(data, data)


def t_eq(one: Certificate) -> str:
    """Median / 99 % / largest."""
    return " / ".join(DASH if one.t_eq[key] is None else str(one.t_eq[key]) for key in ("median", "p99", "max"))


def _row(name: str, data: str, one: Certificate) -> tuple[str, ...]:
    counts = (number(one.samples), number(one.sites), number(one.codes), number(one.mismatches))
    return (name, data, *counts, t_eq(one), device(one))


def device(one: Certificate) -> str:
    """`cuda (NVIDIA H200)` and `torch eager, triton neuron`, in fewer words."""
    name = re.sub(r"^\w+ \((.*)\)$", r"\1", one.settings["device"])
    neurons = one.settings["backend"].removeprefix("torch eager")
    return f"{name}{neurons}"
