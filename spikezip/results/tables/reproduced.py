"""A run beside a measurement of the same network, on another device or another day."""

from collections.abc import Sequence

from spikezip.errors import ConfigError
from spikezip.measure.certificate import Certificate
from spikezip.measure.document import Measurement
from spikezip.results.book import Book
from spikezip.results.folder import Run
from spikezip.results.markdown import Table, link
from spikezip.results.numbers import DASH, number, share
from spikezip.results.tables.certificates import device, t_eq

AT = (16, 32, 64)


def reproduced(book: Book, words: Sequence[str]) -> Table:
    """Two rows for each pair: what a run says, and what was measured from its checkpoint.

    Args:
        book: what it is made from.
        words: pairs, as `RUN=MEASUREMENT`.
    """
    head = ("network", "device", "samples", "QANN", *(f"T = {step}" for step in AT), "settled", "T_eq")
    rows, other = [], []
    for word in words:
        run, one, certificate = _pair(book, word)
        path = book.results.folder / "measured" / f"{one.name}.json"
        ours = (run.metrics["qann"]["accuracy"], run.metrics["snn"]["accuracy"])
        theirs = (one.qann.accuracy if one.qann else None, one.at("accuracy", one.steps))
        if _right(ours, certificate.samples) != _right(theirs, certificate.samples):
            other.append(run.name)
        steps = [run.at("accuracy", step) for step in AT], [one.at("accuracy", step) for step in AT]
        rows += [
            (link(run.name, book.link(run.folder / "results.json")), *_row(run.certificate, ours, steps[0])),
            (f"{link(one.name, book.link(path))}, measured", *_row(certificate, theirs, steps[1])),
        ]
    said = "The QANN and the settled SNN have the same accuracy in both rows of each network."
    if other:
        said = f"**Not the same** as QANN or settled: {', '.join(other)}."
    notes = (f"Accuracies in %. *T_eq*: median / 99 % / largest. {said}",)
    return Table(head, tuple(rows), left=("device",), notes=notes)


def _pair(book: Book, word: str) -> tuple[Run, Measurement, Certificate]:
    name, _, measured = word.partition("=")
    for kind, known, wanted in (
        ("runs", book.results.runs, name),
        ("measured", book.results.measured, measured),
    ):
        if wanted not in known:
            raise ConfigError(
                f"table reproduced, {word}: there is no {kind}/{wanted}; a pair is written RUN=MEASUREMENT"
            )
    run, one = book.results.runs[name], book.results.measured[measured]
    if one.certificate is None:
        raise ConfigError(
            f"table reproduced: measured/{measured} was not compared with the QANN: measure it with --qann"
        )
    certificate = Certificate(**one.certificate)
    if certificate.samples != run.certificate.samples:
        raise ConfigError(
            f"table reproduced: measured/{measured} has {certificate.samples:,} samples and runs/{name} "
            f"{run.certificate.samples:,}: measure all of them"
        )
    return run, one, certificate


def _row(
    certificate: Certificate, qann_and_settled: tuple[float | None, float | None], steps: Sequence[float | None]
) -> tuple[str, ...]:
    qann, settled = (_share(value) for value in qann_and_settled)
    return (
        *(device(certificate), number(certificate.samples), qann),
        *(_share(value) for value in steps),
        *(settled, t_eq(certificate)),
    )


def _right(shares: Sequence[float | None], samples: int) -> list[int | None]:
    """How many samples are right: whole numbers compare, shares may have been rounded."""
    return [None if share is None else round(share * samples) for share in shares]


def _share(value: float | None) -> str:
    return DASH if value is None else share(value)
