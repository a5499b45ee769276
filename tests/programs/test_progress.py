"""Progress: bars on a terminal, and few plain lines in a log file."""

import io
import sys

import pytest
from tqdm import tqdm

from medfed.cli import progress
from medfed.cli.progress import ProgressBar, RoundProgress


class Clock:
    """Time in seconds that a test moves forward."""

    now_s = 1000.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(progress, "time", Clock())
    monkeypatch.setattr(ProgressBar, "_last_line_s", Clock.now_s)
    return progress.time


def log_file(monkeypatch, isatty=False):
    """Replace standard error by a file in memory, and return the file."""
    stream = io.StringIO()
    stream.isatty = lambda: isatty
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_a_log_file_has_at_most_one_line_every_30_seconds_of_all_bars(clock, monkeypatch):
    """Two bars advance every second for 100 seconds: lines after 30, 60 and 90 seconds."""
    log = log_file(monkeypatch)
    with ProgressBar(total=100, desc="runs") as runs, ProgressBar(total=200, desc="reading", leave=False) as reading:
        for _ in range(100):
            clock.now_s += 1
            runs.update(1), runs.refresh()
            reading.update(2), reading.refresh()
        tqdm.write("note: a note", file=sys.stderr)
    lines = log.getvalue().splitlines()
    assert "\r" not in log.getvalue() and log.getvalue().endswith("note: a note\n")
    assert [line.split(", ")[0] for line in lines[:3]] == ["runs: 30%", "runs: 60%", "runs: 90%"]
    assert "; reading: 29%, 58/200, " in lines[0] and "|" not in lines[0]
    assert len(lines) == 4, "and no line when a bar is closed"


def test_a_line_of_a_federation_names_round_site_and_step(clock, monkeypatch):
    log = log_file(monkeypatch)
    with RoundProgress(0, rounds=2, n_sites=2) as bar:
        bar.site_replied("train", "A", 1, 2)
        bar.site_replied("train", "B", 2, 2)
        bar.round_done({"round": 1, "validation_score": 0.25})
        clock.now_s += 31
        bar.step("A", 3, 4)
        bar.step("A", 4, 4)
    (line,) = log.getvalue().splitlines()
    assert line.startswith("round 2/2, A 4/4, validation score 0.250 50%, 2/4 updates, ")


@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_terminal_shows_bars_and_a_quiet_bar_prints_nothing(clock, monkeypatch, is_quiet):
    log = log_file(monkeypatch, isatty=not is_quiet)
    with ProgressBar(total=2, desc="reading", disable=is_quiet) as bar:
        clock.now_s += 31
        bar.update(1), bar.refresh()
    assert log.getvalue() == "" if is_quiet else "\rreading:  50%|" in log.getvalue()


def test_a_bar_that_another_thread_is_creating_is_left_out(clock, monkeypatch):
    log = log_file(monkeypatch)
    unfinished = ProgressBar.__new__(ProgressBar)
    with ProgressBar(total=2, desc="reading") as bar:
        clock.now_s += 31
        bar.update(1), bar.refresh()
    unfinished.disable = True
    assert log.getvalue().count("reading") == 1
