"""Pickles of arrays, text, numbers, lists and dictionaries, and of nothing else.

A pickle is a program: reading one runs what it names. This reader knows four names, with which numpy writes plain
arrays, and refuses every other.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy._core.multiarray import _reconstruct

from spikezip.errors import InputError


def loads(raw: bytes, where: Path) -> Any:
    """What the pickle holds; strings that Python 2 wrote come back as bytes.

    Example:
        >>> loads(pickle.dumps({"data": [1, 2]}), Path("batch"))
        {'data': [1, 2]}
        >>> loads(pickle.dumps(print), Path("batch"))
        Traceback (most recent call last):
        spikezip.errors.InputError: batch names builtins.print, which a batch of images has no need of: not read
    """
    try:
        return _Plain(raw, where).load()
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise InputError(f"{where} is damaged, or not a pickle: {type(error).__name__}: {error}") from None


class _Plain(pickle.Unpickler):
    def __init__(self, raw: bytes, where: Path) -> None:
        super().__init__(io.BytesIO(raw), encoding="bytes")
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        raise InputError(f"{self._where} names {module}.{name}, which a batch of images has no need of: not read")


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in the old protocols."""
    if encoding != "latin1":
        raise ValueError(f"bytes encoded as {encoding}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}
