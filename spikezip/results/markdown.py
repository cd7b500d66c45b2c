"""Tables as Markdown."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

NO_BREAK = "\u00a0"


@dataclass(frozen=True)
class Table:
    """A head, rows of text, and lines that stand below. Columns of the names in `left` stand to the left.

    Example:
        >>> print(Table(("what", "T"), (("a|b", "16"),), notes=("Measured.",)).markdown())
        | what | T |
        |---|---:|
        | a\\|b | 16 |
        <BLANKLINE>
        Measured.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        left = [i == 0 or name in self.left for i, name in enumerate(self.head)]
        rule = "|".join("---" if is_left else "---:" for is_left in left)
        rows = (
            [cell if is_left else _together(cell) for cell, is_left in zip(row, left, strict=True)] for row in self.rows
        )
        lines = [_line(self.head), f"|{rule}|", *map(_line, rows)]
        return "\n".join(lines) + "".join(f"\n\n{note}" for note in self.notes)


def _together(cell: str) -> str:
    """A number stays on one line; only the number of seeds may go to the next.

    Example:
        >>> _together("90.14 ± 0.21 (3)").split(" ")
        ['90.14\\xa0±\\xa00.21', '(3)']
    """
    number, seeds, rest = cell.partition(" (") if "±" in cell else (cell, "", "")
    return number.replace(" ", NO_BREAK) + seeds + rest


def _line(cells: Sequence[str]) -> str:
    texts = (re.sub(r"[ \n]+", " ", cell).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |".replace("|  |", "| |").replace("|  |", "| |")


def link(text: str, target: str) -> str:
    """Example:
    >>> link("`a`", "a.yaml")
    '[`a`](a.yaml)'
    """
    return f"[{text}]({target})"
