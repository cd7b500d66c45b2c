"""The tables that the page can have, by the words that ask for them."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches

from spikezip.errors import ConfigError
from spikezip.measure.document import Measurement
from spikezip.results.book import Book
from spikezip.results.markdown import Table
from spikezip.results.tables import costs, over_time, quoted, tasks
from spikezip.results.tables.certificates import certificates, floats
from spikezip.results.tables.reproduced import reproduced

WHOLE: dict[str, Callable[[Book], Table]] = {
    "language": tasks.language,
    "vision": tasks.vision,
    "language-beside": quoted.language,
    "vision-beside": quoted.vision,
    "certificates": certificates,
    "reproduced": reproduced,
    "floats": floats,
    "power": costs.power,
    "power-quoted": quoted.power,
    "training": costs.training,
    "training-quoted": quoted.training,
}
OF_MEASUREMENTS = ("over-time", "latency", "activity")


def table(book: Book, name: str, words: Sequence[str]) -> Table:
    """Make a table.

    Args:
        book: what it is made from.
        name: one of `WHOLE`, which take no more words, or of `OF_MEASUREMENTS`.
        words: names of measurements; for `over-time` also the steps, as `at=1,4,8`.
    """
    if name in WHOLE:
        if words:
            raise ConfigError(f"table {name} takes no more words, not {' '.join(words)}")
        return WHOLE[name](book)
    if name not in OF_MEASUREMENTS:
        known = [*WHOLE, *OF_MEASUREMENTS]
        close = get_close_matches(name, known, n=1)
        question = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"there is no table {name!r}: {question}choose among {', '.join(known)}")
    steps = [word for word in words if word.startswith("at=")]
    measured = [_measured(book, word) for word in words if word not in steps]
    if not measured or (name == "activity" and len(measured) > 1):
        raise ConfigError(f"table {name} needs the name of {'a' if name == 'activity' else 'at least one'} measurement")
    if steps and name != "over-time":
        raise ConfigError(f"table {name} takes no steps, not {steps[0]}")
    if name == "over-time":
        return over_time.over_time(measured, [_step(text) for word in steps for text in word[3:].split(",")])
    return over_time.latency(measured) if name == "latency" else over_time.activity(measured[0])


def _measured(book: Book, name: str) -> Measurement:
    known = book.results.measured
    if name not in known:
        raise ConfigError(f"there is no measured/{name}.json; there is {', '.join(known) or 'nothing'}")
    return known[name]


def _step(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"at={text}: steps are whole numbers from 1")
    return int(text)
