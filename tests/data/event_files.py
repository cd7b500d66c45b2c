"""Writes small recordings in the published formats, for the tests of event data."""

import gzip
import struct
from pathlib import Path

import numpy as np

HEADER = (
    b"#!AER-DAT2.0\r\n# This is a raw AE data file - do not edit\r\n"
    b"# AEChip: ch.unizh.ini.jaer.chip.retina.DVS128\r\n#End of Preferences\r\n"
)


def address(column: int, row: int, bit: int) -> int:
    """An address of the DVS128, from the fields as they stand in it."""
    return row << 8 | column << 1 | bit


def write(path: Path, records: list[tuple[int, int]], header: bytes = HEADER) -> Path:
    """An AEDAT 2.0 file of (address, time) records; gzipped if its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = header + b"".join(struct.pack(">II", a, t) for a, t in records)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def noise(seed: int, events: int, duration: int) -> list[tuple[int, int]]:
    """Random pixels at random times."""
    rng = np.random.default_rng(seed)
    fields = rng.integers(0, (128, 128, 2), (events, 3)).tolist()
    times = sorted(rng.integers(0, duration, events).tolist())
    return [(address(*field), t) for field, t in zip(fields, times, strict=True)]
