"""Single figures: the value at a dotted key, or an error that says what there is."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from spikezip.errors import ConfigError


def find(document: Any, key: str, name: str) -> Any:
    """The value at a dotted key. A number is a place in a list; a key may itself hold dots.

    Args:
        document: groups, lists and values.
        key: such as `metrics.qann.accuracy`.
        name: what errors call the document.

    Example:
        >>> find({"within": {"0.1": 14}, "t": [5, 6]}, "within.0.1", "m"), find({"t": [5, 6]}, "t.1", "m")
        (14, 6)
        >>> find({"metrics": {"qann": 1}}, "metrics.qan", "runs/a")
        Traceback (most recent call last):
        spikezip.errors.ConfigError: runs/a has no key 'metrics.qan': did you mean 'qann'? There is: qann
    """
    parts = key.split(".")
    at: list[str] = []
    while parts:
        step = next((n for n in range(len(parts), 0, -1) if _has(document, ".".join(parts[:n]))), 0)
        if not step:
            raise ConfigError(f"{name} has no key {key!r}{_hint(document, '.'.join(at), parts[0])}")
        word = ".".join(parts[:step])
        document = document[word] if isinstance(document, Mapping) else document[int(word)]
        at.append(word)
        parts = parts[step:]
    return document


def _has(group: Any, word: str) -> bool:
    if isinstance(group, Mapping):
        return word in group
    return _is_list(group) and re.fullmatch(r"\d+", word) is not None and int(word) < len(group)


def _is_list(group: Any) -> bool:
    return isinstance(group, Sequence) and not isinstance(group, str)


def _hint(group: Any, at: str, word: str) -> str:
    if isinstance(group, Mapping):
        close = get_close_matches(word, map(str, group), n=1)
        question = f": did you mean {close[0]!r}?" if close else ";"
        return f"{question} There is: {', '.join(map(str, group))}"
    return f"; {at} is a list of {len(group)}" if _is_list(group) else f"; {at} is a single value"
