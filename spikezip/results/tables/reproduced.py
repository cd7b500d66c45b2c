"""What a run had, on its device, beside what was measured from its checkpoint."""

from collections.abc import Sequence
from dataclasses import replace

from spikezip.errors import ConfigError
from spikezip.measure.certificate import Certificate
from spikezip.results.book import Book
from spikezip.results.checkpoints import AT, certificate_of
from spikezip.results.markdown import Table, link
from spikezip.results.numbers import DASH, number, share
from spikezip.results.tables.certificates import device, t_eq


def reproduced(book: Book) -> Table:
    """Two rows for each run in `checkpoints.yaml`. The second is what its row in the other tables says."""
    head = ("network", "device", "samples", "QANN", *(f"T = {step}" for step in AT), "settled", "T_eq")
    rows, other = [], []
    for run in book.results.runs.values():
        if run.checkpoint is None:
            continue
        one, certificate = run.checkpoint, certificate_of(run.checkpoint, run.certificate, run.name)
        path = book.results.folder / "measured" / f"{one.name}.json"
        there, here = ([m["qann"]["accuracy"], m["snn"]["accuracy"]] for m in (run.own, run.metrics))
        if _right(there, certificate.samples) != _right(here, certificate.samples):
            other.append(run.name)
        before = [replace(run, checkpoint=None).at("accuracy", step) for step in AT]
        rows += [
            (link(run.name, book.link(run.folder / "results.json")), *_row(run.certificate, there, before)),
            (
                f"{link(one.name, book.link(path))}, measured",
                *_row(certificate, here, [run.at("accuracy", step) for step in AT]),
            ),
        ]
    if not rows:
        raise ConfigError("table reproduced shows the runs in checkpoints.yaml: there are none")
    said = "The QANN and the settled SNN have the same accuracy in both rows of each network."
    if other:
        said = f"**Not the same** as QANN or settled: {', '.join(other)}."
    notes = (f"Accuracies in %. *T_eq*: median / 99 % / largest. {said}",)
    return Table(head, tuple(rows), left=("device",), notes=notes)


def _row(certificate: Certificate, qann_and_settled: Sequence[float], steps: Sequence[float | None]) -> tuple[str, ...]:
    qann, settled = (share(value) for value in qann_and_settled)
    return (
        *(device(certificate), number(certificate.samples), qann),
        *(DASH if value is None else share(value) for value in steps),
        *(settled, t_eq(certificate)),
    )


def _right(shares: Sequence[float], samples: int) -> list[int]:
    """How many samples are right: whole numbers compare, shares may have been rounded."""
    return [round(share * samples) for share in shares]
