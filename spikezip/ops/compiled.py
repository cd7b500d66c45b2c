"""Loops that are compiled for the CPU by numba, where that is installed, and shared among torch's threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch

LEAST = 1 << 15  # values for a thread: below that, handing the work over takes longer than doing it


@cache
def numba_is_here() -> bool:
    """Whether numba is installed."""
    return find_spec("numba") is not None


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop when it is first called: without the interpreter's lock, and kept on disk where that is possible.

    Example:
        >>> double = jit(lambda x: 2 * x) if numba_is_here() else lambda x: 2 * x
        >>> double(3)
        6
    """
    import numba  # only where it is used: importing the library must not need it

    options = {"nogil": True, "error_model": "numpy"}
    try:
        compiled: Callable[..., Any] = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder can be written to: compile in every process
        compiled = numba.njit(**options)(function)
    return compiled


def share(work: Callable[[int, int], Any], pieces: int, values: int) -> None:
    """Call `work(first, last)` on ranges that make up `pieces`, at once on as many threads as torch uses.

    Example:
        >>> seen = []
        >>> share(lambda first, last: seen.extend(range(first, last)), pieces=5, values=10)
        >>> seen
        [0, 1, 2, 3, 4]
    """
    threads = min(torch.get_num_threads(), pieces, max(1, values // LEAST))
    if threads == 1:
        work(0, pieces)
        return
    bounds = [pieces * i // threads for i in range(threads + 1)]
    pool = _pool(threads - 1)
    waiting = [pool.submit(work, first, last) for first, last in pairwise(bounds[1:])]
    work(bounds[0], bounds[1])
    for one in waiting:
        one.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="spikezip")
