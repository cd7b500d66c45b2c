"""Progress where there is no terminal: a line now and then."""

import pytest

from spikezip.cli import screen


def test_a_log_gets_a_line_a_minute(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    told = ((130.0, 0), (165.0, 0), (170.0, 1_000), (200.0, 2_000), (230.5, 2_500), (9_000.0, 10_000))
    clock = iter([100.0, *(seconds for seconds, _ in told)])
    monkeypatch.setattr(screen, "monotonic", lambda: next(clock))
    with screen.progress("measuring", 10_000) as done:
        for _, samples in told:
            done(samples)
    output = capsys.readouterr()
    assert output.err.splitlines() == [
        "measuring: 1,000 of 10,000, about 11 min left",
        "measuring: 2,500 of 10,000, about 7 min left",
    ]
    assert output.out == ""


def test_short_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with screen.progress("measuring", 100) as done:
        for samples in range(101):
            done(samples)
    assert capsys.readouterr().err == ""
