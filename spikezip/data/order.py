"""Orders that are random, and the same on every machine and with every version of every library."""

import hashlib


def shuffled(count: int, seed: int) -> list[int]:
    """The numbers below `count`, sorted by the SHA-256 of "seed:number".

    Example:
        >>> shuffled(5, seed=0)
        [4, 3, 2, 0, 1]
    """
    return sorted(range(count), key=lambda index: hashlib.sha256(f"{seed}:{index}".encode()).digest())


def hold_out(count: int, seed: int, share: float = 0.1) -> tuple[list[int], list[int]]:
    """Two sets of samples without overlap, each in ascending order: most of them, and the `share` held out.

    Example:
        >>> hold_out(5, seed=0, share=0.4)
        ([0, 1, 2], [3, 4])
    """
    order = shuffled(count, seed)
    held = round(count * share)
    return sorted(order[held:]), sorted(order[:held])
