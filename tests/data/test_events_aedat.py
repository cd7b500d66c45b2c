"""Reading AEDAT 2.0: the address layout, times, and every way in which a file can be wrong."""

from pathlib import Path

import numpy as np
import pytest
from event_files import HEADER, address, noise, write

from spikezip.data.aedat import read_aedat
from spikezip.errors import ConfigError, InputError


@pytest.mark.parametrize("name", ["a.aedat", "a.aedat.gz"])
def test_fields_of_the_address(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, [(address(0, 0, 0), 7), (address(127, 1, 1), 7), (address(3, 127, 0), 9)])
    events = read_aedat(file)
    assert events.t.tolist() == [7, 7, 9]
    assert events.x.tolist() == [127, 0, 124]  # the column is counted from the right
    assert events.y.tolist() == [127, 126, 0]  # the row from below
    assert events.polarity.tolist() == [True, False, True]  # a clear bit is ON
    assert (events.t.dtype, events.x.dtype, events.y.dtype, events.polarity.dtype) == (
        np.int64,
        np.int16,
        np.int16,
        np.bool_,
    )
    assert (events.width, events.height, events.special, events.interval) == (128, 128, 0, (7, 10))


def test_every_record_comes_back(tmp_path: Path) -> None:
    records = noise(seed=1, events=500, duration=10_000)
    events = read_aedat(write(tmp_path / "a.aedat", records))
    back = [
        (address(127 - int(x), 127 - int(y), 1 - int(p)), int(t))
        for x, y, p, t in zip(events.x, events.y, events.polarity, events.t, strict=True)
    ]
    assert back == records


def test_special_events_are_dropped_and_counted(tmp_path: Path) -> None:
    pin, other = 1 << 15, 1 << 31
    events = read_aedat(write(tmp_path / "a.aedat", [(pin, 1), (address(1, 1, 0), 2), (other | 5 << 20, 3)]))
    assert (len(events), events.special, events.t.tolist()) == (1, 2, [2])


def test_times_are_unsigned_and_wrap_around(tmp_path: Path) -> None:
    times = [2**31 - 1, 2**31, 2**32 - 1, 5, 2**31 + 4]
    events = read_aedat(write(tmp_path / "a.aedat", [(0, t) for t in times]))
    assert events.t.tolist() == [2**31 - 1, 2**31, 2**32 - 1, 2**32 + 5, 2**32 + 2**31 + 4]


def test_times_that_go_back(tmp_path: Path) -> None:
    file = write(tmp_path / "a.aedat", [(address(1, 0, 0), 10), (address(2, 0, 0), 30), (address(3, 0, 0), 20)])
    with pytest.raises(InputError, match=r'a\.aedat, record 2: the time goes back by 10 µs.*unordered="sort"'):
        read_aedat(file)
    events = read_aedat(file, unordered="sort")
    assert events.t.tolist() == [10, 20, 30]
    assert events.x.tolist() == [126, 124, 125]
    with pytest.raises(ConfigError, match="'drop'"):
        read_aedat(file, unordered="drop")


def test_a_step_back_over_the_wrap_is_seen(tmp_path: Path) -> None:
    file = write(tmp_path / "a.aedat", [(0, 2**32 - 2), (0, 1), (0, 2**32 - 1)])
    with pytest.raises(InputError, match="record 2: the time goes back by 2 µs"):
        read_aedat(file)
    assert read_aedat(file, unordered="sort").t.tolist() == [2**32 - 2, 2**32 - 1, 2**32 + 1]


def test_no_events(tmp_path: Path) -> None:
    events = read_aedat(write(tmp_path / "a.aedat", []))
    assert (len(events), events.interval) == (0, (0, 1))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not an AEDAT 2.0 file"),
        (b"# no version\r\n" + bytes(8), "is not an AEDAT 2.0 file"),
        (b"#!AER-DAT3.1\r\n#Format: RAW\r\n", "is AEDAT 3.1; only AEDAT 2.0"),
        (b"#!AER-DAT4.0\r\n", "is AEDAT 4.0; only AEDAT 2.0"),
        (b"#!AER-DAT2.0\r\n# cut", "ends within its header"),
        (HEADER + bytes(8) + bytes(7), "ends within a record: after the header come 15 bytes"),
        (HEADER + bytes(8) + bytes([0x12, 0x34, 0x50, 0, 0, 0, 0, 9]), r"record 1: the address 0x12345000.*DVS128\)"),
        (b"\x1f\x8b broken", "cannot be read"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "bad.aedat").write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_aedat(tmp_path / "bad.aedat")
    assert str(tmp_path / "bad.aedat") in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        read_aedat(tmp_path / "none.aedat")


def test_transposed(tmp_path: Path) -> None:
    events = read_aedat(write(tmp_path / "a.aedat", [(address(27, 100, 1), 0)])).transposed()
    # SpikingJelly's reader of CIFAR10-DVS: column 127 − row field, row 127 − column field, polarity 1 − bit.
    assert (events.x.tolist(), events.y.tolist(), events.polarity.tolist()) == ([27], [100], [False])
