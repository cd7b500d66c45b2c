"""Long event recordings, one file per class and session, cut into windows; trained on one session, tested on another.

    folder/
      session1/  Box.aedat.gz  Mug.aedat.gz  Mug_1.aedat.gz  …
      session2/  Box.aedat.gz  Mug.aedat.gz  …

Windows of one recording look alike, so a random split would test on near copies of what was trained on. The sessions
are the split. What is looked at during training is the last stretch of each training recording, so that nothing is
chosen on the test session.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spikezip.data.aedat import Events, read_aedat
from spikezip.data.base import FRAMES, Data
from spikezip.data.frame_split import Frames, Sample, stack
from spikezip.data.frames import TIME, Binning, count_events, windows
from spikezip.errors import ConfigError, InputError

_NAME = re.compile(r"(?P<label>.+?)(_\d+)?\.aedat(\.gz)?")
Recordings = Mapping[str, list[Path]]  # by class


@dataclass(frozen=True)
class _Cut:
    """The windows of one recording, and how many held too few events."""

    label: int
    windows: list[Events]
    few: int


def open_recordings(
    source: str | Path,
    *,
    seed: int = 0,
    train: str = "session1",
    test: str = "session2",
    window_ms: float | None = None,
    window_events: int | None = None,
    min_events: int = 100,
    hold_out: float = 0.1,
    bins: int = 4,
    size: int = 128,
    by: str = TIME,
    polarity: bool = True,
    unordered: str = "error",
) -> Data:
    """Windows of event recordings (AEDAT 2.0 of a DVS128), by session.

    The class is the file's name. A number after an underscore marks another recording of the same class (`Mug_1`). Only
    classes that both sessions hold are used; the note names those left out.

    Args:
        source: a folder with one folder per session.
        seed: not used; nothing here is random.
        train, test: the sessions to train and to test on.
        window_ms, window_events: the length of a window, in one or the other; 200 ms if neither is given.
        min_events: windows with fewer events are left out, and counted in the note.
        hold_out: share of each training recording, at its end, that is for validation. 0: validation is the test.
        bins, size, by, polarity: how a window becomes a frame, see `frames.Binning`.
        unordered: see `read_aedat`.

    Example:
        >>> import struct, tempfile
        >>> records = b"".join(struct.pack(">2I", n % 128 << 8, 1000 * n) for n in range(1000))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for file in ("session1/Mug.aedat", "session1/Mug_1.aedat", "session1/Box.aedat", "session2/Mug.aedat"):
        ...         Path(folder, file).parent.mkdir(exist_ok=True)
        ...         _ = Path(folder, file).write_bytes(b"#!AER-DAT2.0\\r\\n" + records)
        ...     data = open_recordings(folder, window_ms=100, min_events=50, size=32)
        >>> data.classes, len(data.train), len(data.validation), len(data.test)
        (('Mug',), 16, 2, 9)
    """
    if train == test:
        raise ConfigError(f"train and test are both {train!r}: windows of one recording would be on both sides")
    if not 0 <= hold_out < 1:
        raise ConfigError(f"hold_out is a share from 0 up to 1, not {hold_out!r}")
    if window_ms is None and window_events is None:
        window_ms = 200.0
    binning = Binning(bins, size, by, polarity)
    sessions = {name: _session(Path(source), name) for name in (train, test)}
    classes = tuple(label for label in sessions[train] if label in sessions[test])
    if not classes:
        raise InputError(
            f"{source}: {train} and {test} have no class in common; {train} has {', '.join(sessions[train])}, "
            f"{test} has {', '.join(sessions[test])}"
        )
    cut = {
        name: [
            _cut(file, number, read_aedat(file, unordered), window_ms, window_events, min_events)
            for number, label in enumerate(classes)
            for file in session[label]
        ]
        for name, session in sessions.items()
    }
    ends = [len(c.windows) - round(len(c.windows) * hold_out) for c in cut[train]]
    early = [(c.label, c.windows[:end]) for c, end in zip(cut[train], ends, strict=True)]
    late = [(c.label, c.windows[end:]) for c, end in zip(cut[train], ends, strict=True)]
    held = sum(len(kept) for _, kept in late)
    tested = _frames([(c.label, c.windows) for c in cut[test]], binning, f"{source}/{test}")
    length = f"{window_ms:g} ms" if window_ms is not None else f"{window_events:,} events"
    validation = f"the last {held:,} windows of the training recordings" if held else "the test windows"
    return Data(
        name="events",
        kind=FRAMES,
        classes=classes,
        train=_frames(early, binning, f"{source}/{train}"),
        validation=_frames(late, binning, f"{source}/{train}") if held else tested,
        test=tested,
        note=" ".join(
            [
                f"Windows of {length}; trained on {train}, tested on {test}. Validation: {validation}.",
                *_left_out(train, test, sessions, cut[train], min_events),
                *_left_out(test, train, sessions, cut[test], min_events),
            ]
        ),
    )


def _session(folder: Path, name: str) -> dict[str, list[Path]]:
    """The recordings of a session by class, classes in the order of the alphabet."""
    path = folder / name
    if not path.is_dir():
        there = sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
        raise InputError(f"there is no folder {path}; {folder} holds {', '.join(there) or 'no folders'}")
    found: dict[str, list[Path]] = {}
    for file in sorted(path.iterdir()):
        if match := _NAME.fullmatch(file.name):
            found.setdefault(match["label"], []).append(file)
    if not found:
        raise InputError(f"{path} holds no .aedat or .aedat.gz files")
    return dict(sorted(found.items()))


def _cut(
    file: Path, label: int, events: Events, window_ms: float | None, window_events: int | None, min_events: int
) -> _Cut:
    every = windows(events, window_ms, window_events)
    enough = [window for window in every if len(window) >= min_events]
    if not enough:
        raise InputError(
            f"{file} gives no window of at least {min_events:,} events (it has {len(events):,} events and "
            f"{len(every):,} windows); make windows shorter, or min_events smaller"
        )
    return _Cut(label, enough, len(every) - len(enough))


def _frames(parts: list[tuple[int, list[Events]]], binning: Binning, where: str) -> Frames:
    def samples() -> Iterator[Sample]:
        for label, cut in parts:
            for window in cut:
                yield count_events(window, binning), label

    total = sum(len(cut) for _, cut in parts)
    if not total:
        raise InputError(f"{where}: no window is left to train on; make windows shorter, or hold_out smaller")
    return stack(samples(), total)


def _left_out(
    session: str, other: str, sessions: Mapping[str, Recordings], cut: list[_Cut], min_events: int
) -> Iterator[str]:
    """What of a session is not used, and why, as sentences for the note."""
    missing = [label for label in sessions[session] if label not in sessions[other]]
    if missing:
        yield f"Left out: {', '.join(missing)} of {session}, which {other} does not have."
    few = sum(c.few for c in cut)
    if few:
        yield f"Left out: {few:,} windows of {session} with fewer than {min_events:,} events."
