"""Memory that is not needed any more, but kept: after many runs on a CPU that is several times what one of them takes.

Python looks for objects that hold one another once there are many of them, however large their tensors are. And of
what threads have freed, the GNU C library returns only what lies at the end of its heaps.
"""

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from mmap import PAGESIZE
from pathlib import Path

SLACK = 1 << 30  # bytes by which a process may grow before it is looked through: pages that come back must be cleared
_least: int | None = None  # bytes resident after the last time, or the fewest seen


def release_memory() -> bool:
    """Return unused memory to the system, if the process has grown a lot since the last time; whether it was done.

    Example:
        >>> _ = release_memory()
        >>> release_memory()  # it has not grown since
        False
    """
    global _least
    trim, now = _trim(), _resident()
    if trim is None or now is None:
        return False
    _least = now if _least is None else min(_least, now)
    if now - _least < SLACK:
        return False
    gc.collect()
    trim(0)
    _least = _resident()
    return True


@cache
def _trim() -> Callable[[int], int] | None:
    """`malloc_trim`, where the C library has one."""
    with suppress(AttributeError, OSError, TypeError):
        return ctypes.CDLL(None).malloc_trim
    return None


def _resident() -> int | None:
    """Bytes of memory that this process has, on Linux."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGESIZE
    return None
