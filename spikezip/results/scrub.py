"""Metrics without the folders of the machine that they were made on."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# A path from the root, from a home folder or from a drive, where a word begins. `https://…` and `3/4` are none.
_PATH = re.compile(r"""(?<![^\s"'=:,(\[])(?:~[\w-]*|[A-Za-z]:)?[/\\](?=[\w.@+-])[\w.@+~/\\-]*""")


def scrub(value: Any, here: Path | None = None) -> Any:
    """A copy in which no text names a folder of the machine: of a path its last part stays.

    Args:
        here: the folder that is worked in; a path inside stays, as seen from there.

    Example:
        >>> scrub({"data": "sst2:/data/me/sst2", "command": "measure /data/snn --qann /repo/zoo/a"}, Path("/repo"))
        {'data': 'sst2:sst2', 'command': 'measure snn --qann zoo/a'}
        >>> scrub(["https://arxiv.org/abs/2406.03470", "67,349/872 sentences", r"C:\\runs\\a", 3])
        ['https://arxiv.org/abs/2406.03470', '67,349/872 sentences', 'a', 3]
    """
    if isinstance(value, str):
        return _PATH.sub(lambda match: _short(match[0], here), value)
    if isinstance(value, Mapping):
        return {key: scrub(item, here) for key, item in value.items()}
    return [scrub(item, here) for item in value] if isinstance(value, (list, tuple)) else value


def _short(path: str, here: Path | None) -> str:
    if here is not None and Path(path).is_relative_to(here):
        return Path(path).relative_to(here).as_posix()
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
