"""The asker's side of a site's process, with a process that imports nothing; `test_processes` starts real ones."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from fake_sites import install_fake_worker, is_alive, process_id

from medfed.engines import site_process
from medfed.engines.site_process import SiteFailed, SiteProcess


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    return install_fake_worker(tmp_path, monkeypatch)


@pytest.fixture
def site(folder):
    process = SiteProcess({"site": "north", "threads": 1, "directory": str(folder)})
    yield process
    process.close()


def does(folder: Path, what: str) -> None:
    (folder / "north.does").write_text(what)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_it_answers_and_tells_its_steps_and_notes(folder):
    told = []
    job = {"site": "north", "threads": 1, "directory": str(folder)}
    site = SiteProcess(job, lambda *step: told.append(step), told.append)
    assert [site.ask(b"one"), site.ask(b"two")] == [b"one", b"two"]
    assert told == 2 * [("north", 1, 2), "few images"]
    site.close()
    assert not is_alive(process_id(folder, "north"))


@pytest.mark.parametrize(("what", "sentence"), [
    ("die", "its process was killed, as the system does when memory runs out"),
    ("term", "its process was ended by SIGTERM"),
    ("exit", "its process ended with exit code 3"),
])  # fmt: skip
def test_one_that_dies_says_how_and_starts_again_when_it_is_asked(folder, site, what, sentence):
    before = descriptors()
    does(folder, what)
    with pytest.raises(SiteFailed, match=f"^{sentence}$"):
        site.ask(b"letter")
    assert descriptors() == before
    does(folder, "echo")
    assert site.ask(b"letter") == b"letter"


def test_one_that_is_late_is_stopped_in_time(folder, site):
    assert site.ask(b"letter") == b"letter"
    does(folder, "sleep")
    began = time.monotonic()
    with pytest.raises(SiteFailed, match="^was not done in time and was stopped$"):
        site.ask(b"letter", 0.4)
    assert time.monotonic() - began < 30 and not is_alive(process_id(folder, "north"))


def test_one_that_says_no_says_why_and_lives_on(folder, site):
    does(folder, "no")
    with pytest.raises(SiteFailed, match="^training diverged$"):
        site.ask(b"letter")
    first = process_id(folder, "north")
    does(folder, "echo")
    assert site.ask(b"letter") == b"letter" and process_id(folder, "north") == first


def test_one_that_cannot_begin_says_why_and_is_asked_anew(folder, site):
    """The process that said no must not get the next letter: it is about to end."""
    does(folder, "no start")
    with pytest.raises(SiteFailed, match="^sites: no images here$"):
        site.ask(b"letter")
    does(folder, "echo")
    assert site.ask(b"letter", 10) == b"letter"


def test_one_that_takes_no_byte_of_a_long_letter_is_given_up(folder, site, monkeypatch):
    monkeypatch.setattr(site_process, "SEND_TIMEOUT_S", 1)
    monkeypatch.setattr(site_process, "EXIT_TIMEOUT_S", 0.2)
    assert site.ask(b"letter") == b"letter"
    os.kill(stopped := process_id(folder, "north"), signal.SIGSTOP)
    with pytest.raises(SiteFailed, match="^its process takes no letters any more, and was ended$"):
        site.ask(bytes(8 << 20))
    assert not is_alive(stopped)


def test_it_stops_when_it_is_told_to(folder, site):
    does(folder, "sleep")
    told = threading.Event()
    threading.Timer(0.3, told.set).start()
    with pytest.raises(SiteFailed, match="^was stopped$"):
        site.ask(b"letter", stopped=told.is_set)
    assert not is_alive(process_id(folder, "north"))


def test_a_folder_that_is_gone_is_a_reason(tmp_path, folder):
    site = SiteProcess({"site": "north", "threads": 1, "directory": str(tmp_path / "gone")})
    before = descriptors()
    with pytest.raises(SiteFailed, match="^its process did not start: .*gone"):
        site.ask(b"letter")
    assert descriptors() == before
