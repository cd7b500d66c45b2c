"""Files of labelled sentences: `label text` per line, and tables with a header."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from spikezip.errors import InputError

TEXT_COLUMNS = ("sentence", "text", "content", "review")
Labelled = tuple[list[str], list[int]]  # texts, and their class numbers


def read_lines(path: Path, classes: int, encoding: str) -> Labelled:
    """A file with a class number, a space and a sentence on each line.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".all") as file:
        ...     _ = file.write("1 so good\\n0 so bad\\n")
        ...     file.flush()
        ...     read_lines(Path(file.name), 2, "latin-1")
        (['so good', 'so bad'], [1, 0])
    """
    # Only "\n" ends a line: in latin-1 some byte of a sentence may read as one of Unicode's other line ends.
    lines = _decoded(path, encoding).split("\n")
    if lines[-1] == "":
        lines.pop()
    texts, labels = [], []
    for number, line in enumerate(lines, start=1):
        label, _, text = line.partition(" ")
        if not text.strip():
            raise InputError(f"{path}, line {number}: expected a label, a space and a sentence, not {line.strip()!r}")
        texts.append(text.strip())
        labels.append(_class_number(label, classes, path, number))
    return _not_empty(path, texts, labels)


def read_table(path: Path, classes: int) -> Labelled:
    """A .tsv or .csv file whose header names a column `label` and one of `TEXT_COLUMNS`, in any order.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        ...     _ = file.write("sentence\\tlabel\\nso good\\t1\\n")
        ...     file.flush()
        ...     read_table(Path(file.name), 2)
        (['so good'], [1])
    """
    texts, labels = [], []
    rows = _rows(path)
    _, header = next(rows, (1, []))
    column = next((name for name in TEXT_COLUMNS if name in header), None)
    if column is None or "label" not in header:
        raise InputError(
            f"{path}, line 1: the header needs 'label' and one of {', '.join(TEXT_COLUMNS)}; "
            f"it names {', '.join(header) or 'nothing'}"
        )
    text_at, label_at = header.index(column), header.index("label")
    for number, row in rows:
        if len(row) != len(header):
            raise InputError(f"{path}, line {number}: expected {len(header)} columns, found {len(row)}")
        texts.append(row[text_at].strip())
        labels.append(_class_number(row[label_at], classes, path, number))
    return _not_empty(path, texts, labels)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table, each with the number of the line on which it ends."""
    tabs = path.suffix.lower() == ".tsv"
    # Sentences in .tsv files hold quotation marks that quote nothing.
    text = io.StringIO(_decoded(path, "utf-8-sig"), newline="")
    reader = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(text, strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from None


def _decoded(path: Path, encoding: str) -> str:
    raw = path.read_bytes()
    if b"\0" in raw:
        line = raw[: raw.index(b"\0")].count(b"\n") + 1
        raise InputError(f"{path}, line {line}: a zero byte; the file is not {encoding} (UTF-16 perhaps): save it so")
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(f"{path}, line {line}: not {encoding}: {error.reason} {raw[error.start]:#04x}") from None


def _class_number(label: str, classes: int, path: Path, line: int) -> int:
    if label not in (known := [str(number) for number in range(classes)]):
        raise InputError(f"{path}, line {line}: the label {label!r} is not one of {', '.join(known)}")
    return int(label)


def _not_empty(path: Path, texts: list[str], labels: list[int]) -> Labelled:
    if not texts:
        raise InputError(f"{path} holds no sentences")
    return texts, labels
