"""Progress: bars on a terminal, and few in a log file."""

import io
import sys

import pytest
from tqdm import tqdm

from medfed.cli import progress
from medfed.cli.progress import ProgressBar, RoundProgress


def stderr(monkeypatch, isatty):
    """Replace standard error by a file in memory, and return the file."""
    stream = io.StringIO()
    stream.isatty = lambda: isatty
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_a_program_of_less_than_30_seconds_draws_no_bar_in_a_log_file(monkeypatch):
    log = stderr(monkeypatch, isatty=False)
    with ProgressBar(total=100, desc="runs") as bar:
        for _ in range(100):
            bar.update(1)
    assert log.getvalue() == ""


def test_a_log_file_shows_the_progress_after_the_interval(monkeypatch):
    monkeypatch.setattr(progress, "LOG_INTERVAL_S", 0.0)
    log = stderr(monkeypatch, isatty=False)
    with RoundProgress(0, rounds=2, n_sites=2) as bar:
        bar.site_replied("train", "A", 1, 2)
        bar.site_replied("train", "B", 2, 2)
        bar.round_done({"round": 1, "validation_score": 0.25})
        bar.step("A", 3, 4)
    assert "round 2/2, A 3/4, validation score 0.250  50%|" in log.getvalue()


def test_a_bar_that_a_note_has_drawn_ends_with_its_line(monkeypatch):
    log = stderr(monkeypatch, isatty=False)
    with RoundProgress(0, rounds=1, n_sites=1) as bar:
        bar.site_replied("train", "A", 1, 1)
        tqdm.write("note", file=log)
    assert "note\n" in log.getvalue() and log.getvalue().endswith("left\n")


@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_terminal_shows_bars_and_a_quiet_bar_prints_nothing(monkeypatch, is_quiet):
    terminal = stderr(monkeypatch, isatty=True)
    with ProgressBar(total=2, desc="reading", disable=is_quiet) as bar:
        bar.update(1)
    assert terminal.getvalue() == "" if is_quiet else "\rreading:  50%|" in terminal.getvalue()


def test_without_standard_error_the_work_goes_on(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert list(ProgressBar(range(3), desc="reading")) == [0, 1, 2]
