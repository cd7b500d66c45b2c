"""The page: prose with directives in, Markdown and pictures out. No figure is typed by hand.

{{ value KEY FORMAT }}             one figure: `runs/NAME/metrics.qann.accuracy`, `runs/NAME/accuracy@16`; see `values`
{{ difference KEY KEY FORMAT }}    the first minus the second
{{ sum KEY KEY … FORMAT }}         of several
{{ table NAME … }}                 a table, alone on its line; see `tables`
{{ figure NAME runs/sst2-* … }}    the address of a picture, to stand in ![what it shows](…)
{{ panel NAME runs/sst2-* … }}     the same, but the line is left out while there are not two curves to compare
{{ attention NAME SAMPLE … }}      the address of a picture of where a network looks, of attention/NAME.json, or of some
                                   of its samples; a NAME with a star that finds nothing leaves the line out

Formats are those of `numbers`. A key with a space in it stands in quotes.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches, unified_diff
from pathlib import Path

from spikezip.errors import ConfigError, SpikezipError
from spikezip.results import figures
from spikezip.results.book import Book
from spikezip.results.folder import PAGE, Results
from spikezip.results.tables import table
from spikezip.results.tables.tasks import check_reasons
from spikezip.results.values import difference, shown, total

PICTURES = Path("img", "results")  # beside the page
HEADER = "<!-- Made by `spikezip results build` from the files in {folder}/: edit {folder}/{page}, not this. -->\n"
_DIRECTIVE = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_FENCE = re.compile(r"^\s*```")
# Not prose: directives, code, the addresses of links.
_NO_PROSE = re.compile(r"\{\{.*?\}\}|`[^`]*`|\]\([^)]*\)|<[^>]*>")
_FIGURE = re.compile(r"\d+\.\d+|\d{1,3}(?:,\d{3})+|\d{5,}|\d+\s?%")


@dataclass(frozen=True)
class Page:
    """What the files give: the text, and the pictures by their place."""

    path: Path
    text: str
    pictures: dict[Path, figures.Drawn]

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.text, encoding="utf-8")
        for path, drawn in self.pictures.items():
            if not figures.is_drawn(drawn, path):
                figures.draw(drawn, path)
        for path in self.left_over():
            path.unlink()

    def left_over(self) -> list[Path]:
        """Pictures of former pages."""
        there = set((self.path.parent / PICTURES).glob("*.svg")) - set(self.pictures)
        return sorted(path for path in there if figures.is_ours(path))

    def differences(self) -> list[str]:
        """In what the page that is there is not this one: a line for each thing. None: it is up to date."""
        if not self.path.is_file():
            return [f"{self.path} is not there"]
        found = []
        text = self.path.read_text(encoding="utf-8")
        if text != self.text:
            lines = unified_diff(text.splitlines(), self.text.splitlines(), "the page", "the files", n=0, lineterm="")
            found.append(f"{self.path} is not what the files give:\n" + "\n".join([*lines][:12]))
        old = [path for path, drawn in self.pictures.items() if not figures.is_drawn(drawn, path)]
        found += [f"{path} does not show what the files give" for path in old]
        return found + [f"{path} is on no page any more" for path in self.left_over()]


def make(results: str | Path, page: str | Path, recipes: str | Path) -> Page:
    """Read the folder of results and make the page; nothing is written.

    Args:
        results: the folder: see `spikezip.results.folder`.
        page: where it will lie; links and pictures are seen from there.
        recipes: the folder of recipes: those without a run have a row, too.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "other").mkdir()
        >>> _ = (folder / "other" / "vit.json").write_text('{"accuracy": 0.9023}')
        >>> _ = (folder / "page.md").write_text("It has {{ value other/vit/accuracy percent }}.")
        >>> make(folder, "docs/results.md", "recipes").text.splitlines()[-1]
        'It has 90.23 %.'
    """
    folder, path = Path(results), Path(page)
    book = Book(Results.read(folder), Path(recipes), path)
    template = folder / PAGE
    pictures: dict[Path, figures.Drawn] = {}
    lines, code = [], False
    for count, line in enumerate(template.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            if _FENCE.match(line):
                code = not code
            if not code:
                _check_typed(line)
            lines.append(_line(book, line, pictures))
        except _LeaveOutError:
            continue
        except SpikezipError as error:
            raise ConfigError(f"{template}, line {count}: {error}") from None
    check_reasons(book)
    header = HEADER.format(folder=folder.name, page=PAGE)
    return Page(path, header + "\n" + "\n".join(lines) + "\n", pictures)


class _LeaveOutError(Exception):
    """This line has nothing to show yet."""


def _check_typed(line: str) -> None:
    typed = _FIGURE.search(_NO_PROSE.sub(" ", line))
    if typed is not None:
        raise ConfigError(
            f"{typed[0]!r} is typed by hand; take it from a metrics file, as in "
            "{{ value runs/NAME/metrics.qann.accuracy percent }}"
        )


def _line(book: Book, line: str, pictures: dict[Path, figures.Drawn]) -> str:
    def replaced(match: re.Match[str]) -> str:
        verb, *words = _words(match[1])
        known: dict[str, Callable[[], str]] = {
            "value": lambda: shown(book.results, *_exactly(words, "value", "KEY", "FORMAT")),
            "difference": lambda: difference(book.results, *_exactly(words, "difference", "KEY", "KEY", "FORMAT")),
            "sum": lambda: _sum(book, words),
            "table": lambda: _table(book, line, words),
            "figure": lambda: _figure(book, words, pictures),
            "panel": lambda: _figure(book, words, pictures, least=2),
            "attention": lambda: _attention(book, words, pictures),
        }
        if verb not in known:
            close = get_close_matches(verb, known, n=1)
            question = f"did you mean {close[0]}? " if close else ""
            raise ConfigError(f"there is no directive {verb!r}: {question}choose among {', '.join(known)}")
        return known[verb]()

    text = _DIRECTIVE.sub(replaced, line)
    if "{{" in text or "}}" in text:
        raise ConfigError("a directive stands on one line, between {{ and }}")
    return text


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text) or [""]
    except ValueError as error:
        raise ConfigError(f"{text}: {error}") from None


def _sum(book: Book, words: list[str]) -> str:
    if len(words) < 3:
        raise ConfigError(f"sum is written {{{{ sum KEY KEY … FORMAT }}}}, not {' '.join(['sum', *words])!r}")
    return total(book.results, words[:-1], words[-1])


def _exactly(words: list[str], verb: str, *names: str) -> list[str]:
    if len(words) != len(names):
        raise ConfigError(f"{verb} is written {{{{ {verb} {' '.join(names)} }}}}, not {' '.join([verb, *words])!r}")
    return words


def _table(book: Book, line: str, words: list[str]) -> str:
    if not _DIRECTIVE.fullmatch(line.strip()):
        raise ConfigError("a table stands alone on its line")
    if not words:
        raise ConfigError("which table? As in {{ table certificates }}")
    return table(book, words[0], words[1:]).markdown()


def _figure(book: Book, words: list[str], pictures: dict[Path, figures.Drawn], least: int = 1) -> str:
    if not words or not re.fullmatch(r"[\w-]+", words[0]):
        raise ConfigError("a picture needs a name of letters, digits and '-', as in {{ figure levels runs/cifar10-* }}")
    path = _place(book, words[0], pictures)
    chart = figures.chart(book, words[0], words[1:])
    if not chart.series and least == 1:
        raise ConfigError(f"{' '.join(words[1:])}: there is no such run: add one, or make it a panel")
    if len(chart.series) < least:
        raise _LeaveOutError
    pictures[path] = chart
    return book.link(path)


def _attention(book: Book, words: list[str], pictures: dict[Path, figures.Drawn]) -> str:
    if not words:
        raise ConfigError("whose attention? As in {{ attention cifar10-vit }}")
    found = figures.attention(book, words[0], words[1:])
    if found is None:
        raise _LeaveOutError
    name, document = found
    path = _place(book, f"attention-{name}", pictures)
    pictures[path] = document
    return book.link(path)


def _place(book: Book, name: str, pictures: dict[Path, figures.Drawn]) -> Path:
    """Where a picture of this name will lie, if there is none yet."""
    path = book.page.parent / PICTURES / f"{name}.svg"
    if path in pictures:
        raise ConfigError(f"there are two figures {name!r}: give one another name, or leave it out")
    return path
