"""Events of a DVS128 camera from AEDAT 2.0 files, as jAER writes them.

After header lines that begin with `#`, a file is a row of records: a big-endian 32-bit address, a big-endian 32-bit
time in µs (docs.inivation.com, "AEDAT 2.0"). An address of the DVS128 holds, from its lowest bit on,

    bit 0        polarity: 0 is ON (brighter), 1 is OFF
    bits 1–7     column, counted from the right
    bits 8–14    row, counted from below
    bits 15, 31  set: a special event (a signal on a pin), not a pixel

as jAER's own reader has it (`DVS128.Extractor` in github.com/SensorsINI/jaer; it flips column and polarity, and draws
row 0 below). The format's documentation says the opposite of polarity, and nothing of the flip. In recordings the noise
decides: a DVS pixel leaks towards ON, and lone events have bit 0 clear more often than set.
"""

import gzip
import re
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spikezip.errors import ConfigError, InputError

_SPECIAL = (1 << 31) | (1 << 15)
_UNUSED = 0x7FFF0000  # no DVS128 sets these; a DAVIS, whose row is here, does
_SIDE = 128


@dataclass(frozen=True, eq=False)
class Events:
    """Events in the order of time.

    Args:
        t: µs. `x`: columns from the left. `y`: rows from the top. `polarity`: True is ON (brighter).
        width, height: of the sensor.
        special: how many special events (no pixels) were left out.
        span: the time covered, µs, its end excluded; None: from the first event to the last.
    """

    t: NDArray[np.int64]
    x: NDArray[np.int16]
    y: NDArray[np.int16]
    polarity: NDArray[np.bool_]
    width: int
    height: int
    special: int = 0
    span: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.t)

    @property
    def interval(self) -> tuple[int, int]:
        """The time covered, µs, its end excluded."""
        if self.span is not None:
            return self.span
        return (int(self.t[0]), int(self.t[-1]) + 1) if len(self) else (0, 1)

    def part(self, start: int, stop: int, span: tuple[int, int] | None = None) -> "Events":
        """The events from number `start` up to `stop`."""
        cut = slice(start, stop)
        return replace(
            self, t=self.t[cut], x=self.x[cut], y=self.y[cut], polarity=self.polarity[cut], special=0, span=span
        )

    def transposed(self) -> "Events":
        """Rows as columns: the picture mirrored at its main diagonal."""
        return replace(self, x=self.y, y=self.x, width=self.height, height=self.width)


def read_aedat(path: str | Path, unordered: str = "error") -> Events:
    """The events of an AEDAT 2.0 file of a DVS128, plain or gzipped.

    Times are 32 bits wide and wrap around after 71 minutes: the difference of two neighbours is taken modulo 2³², as
    the one nearest to zero, so a wrap is seen through. A time that then still goes backwards is an error, as the format
    promises order; old hardware broke that promise now and then, and `unordered="sort"` sorts such a file.

    Example:
        >>> import struct, tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "two.aedat"
        >>> records = struct.pack(">4I", 3 << 8 | 5 << 1, 100, 3 << 8 | 5 << 1 | 1, 250)
        >>> _ = file.write_bytes(b"#!AER-DAT2.0\\r\\n# made by hand\\r\\n" + records)
        >>> events = read_aedat(file)
        >>> events.t.tolist(), events.x.tolist(), events.y.tolist(), events.polarity.tolist()
        ([100, 250], [122, 122], [124, 124], [True, False])
    """
    if unordered not in ("error", "sort"):
        raise ConfigError(f'unordered is "error" or "sort", not {unordered!r}')
    data = _bytes(Path(path))
    start, chip = _header(data, path)
    if (len(data) - start) % 8:
        raise InputError(
            f"{path} ends within a record: after the header come {len(data) - start:,} bytes, and a record has 8. "
            "The file was cut off; get it again"
        )
    records = np.frombuffer(data, ">u4", offset=start).reshape(-1, 2)
    address = records[:, 0].astype(np.uint32)
    special = (address & _SPECIAL) != 0
    strange = np.flatnonzero(~special & ((address & _UNUSED) != 0))
    if len(strange):
        raise InputError(
            f"{path}, record {strange[0]}: the address {address[strange[0]]:#010x} is not one of a DVS128"
            f"{f' (the header names the camera {chip})' if chip else ''}; only DVS128 files are read here. "
            'Other cameras: open_data("tonic", …)'
        )
    t = _times(records[:, 1].astype(np.uint32), path, unordered)
    keep = np.flatnonzero(~special)
    if unordered == "sort":
        keep = keep[np.argsort(t[keep], kind="stable")]
    address, t = address[keep], t[keep]
    return Events(
        t=t,
        x=(_SIDE - 1 - ((address >> 1) & 127)).astype(np.int16),
        y=(_SIDE - 1 - ((address >> 8) & 127)).astype(np.int16),
        polarity=(address & 1) == 0,
        width=_SIDE,
        height=_SIDE,
        special=int(special.sum()),
    )


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def _header(data: bytes, path: str | Path) -> tuple[int, str]:
    """Where the records begin, and the camera that the header names ("" if none)."""
    version = re.match(rb"#!AER-DAT(\d+\.\d+)", data)
    if version is None:
        raise InputError(f"{path} is not an AEDAT 2.0 file: its first line is not #!AER-DAT2.0")
    if version[1] != b"2.0":
        raise InputError(
            f"{path} is AEDAT {version[1].decode()}; only AEDAT 2.0 is read here. Export it from jAER as AEDAT 2.0, or "
            'open it through tonic: open_data("tonic", …)'
        )
    end = 0
    while data[end : end + 1] == b"#":
        end = data.find(b"\n", end) + 1
        if not end:
            raise InputError(f"{path} ends within its header. The file was cut off; get it again")
    chip = re.search(rb"^# AEChip: (\S+)", data[:end], re.MULTILINE)
    return end, chip[1].decode("ascii", "replace") if chip else ""


def _times(stamps: NDArray[np.uint32], path: str | Path, unordered: str) -> NDArray[np.int64]:
    if not len(stamps):
        return np.zeros(0, np.int64)
    # uint32 differences wrap by themselves; read as int32 they are the nearest to zero.
    steps = np.diff(stamps).view(np.int32).astype(np.int64)
    back = np.flatnonzero(steps < 0)
    if len(back) and unordered == "error":
        raise InputError(
            f"{path}, record {back[0] + 1}: the time goes back by {-steps[back[0]]:,} µs, and so at {len(back):,} "
            'record(s); pass unordered="sort" to sort the events'
        )
    return np.concatenate([[np.int64(stamps[0])], stamps[0] + np.cumsum(steps)])
