"""One table of all certificates: what was compared between SNN and QANN, and what was found."""

import re
from pathlib import Path

from spikezip.measure.certificate import Certificate
from spikezip.results.book import Book
from spikezip.results.groups import TITLES
from spikezip.results.markdown import Table, link
from spikezip.results.numbers import DASH, number

_HEAD = ("network", "data", "samples", "sites", "codes compared", "mismatches", "T_eq")


def certificates(book: Book) -> Table:
    """A row for each run and each measurement that has one, and their sum."""
    found = [
        (link(name, book.link(run.folder / "certificate.json")), TITLES[run.results["data"]["name"]], run.certificate)
        for name, run in book.results.runs.items()
    ]
    for name, one in book.results.measured.items():
        if one.certificate is not None:
            path = book.results.folder / "measured" / f"{name}.json"
            stagger = f", stagger {one.settings.stagger:g}" if one.settings.stagger else ""
            data = Path((one.data.name or DASH).partition(":")[0]).name
            certificate = Certificate(**one.certificate)
            found.append((f"{link(name, book.link(path))}, measured{stagger}", TITLES.get(data, data), certificate))
    rows = [_row(name, data, certificate) for name, data, certificate in found]
    codes, wrong = (sum(getattr(one, key) for _, _, one in found) for key in ("codes", "mismatches"))
    rows.append(("**together**", "", "", "", f"**{number(codes)}**", f"**{number(wrong)}**", "", ""))
    bad = [name for name, _, one in found if not one.exact]
    said = f"**Not exact**: {', '.join(bad)}." if bad else "All are exact: codes and outputs; every sample settled."
    notes = (f"{said} *T_eq*: median / 99 % / largest.",)
    return Table((*_HEAD, "device"), tuple(rows), left=("data", "device"), notes=notes)


def _row(name: str, data: str, one: Certificate) -> tuple[str, ...]:
    t_eq = " / ".join(DASH if one.t_eq[key] is None else str(one.t_eq[key]) for key in ("median", "p99", "max"))
    counts = (number(one.samples), number(one.sites), number(one.codes), number(one.mismatches))
    return (name, data, *counts, t_eq, _device(one))


def _device(one: Certificate) -> str:
    """`cuda (NVIDIA H200)` and `torch eager, triton neuron`, in fewer words."""
    device = re.sub(r"^\w+ \((.*)\)$", r"\1", one.settings["device"])
    neurons = one.settings["backend"].removeprefix("torch eager")
    return f"{device}{neurons}"
