"""`WorkerProcess` with a fake worker that imports nothing; `test_processes` forks real workers."""

import errno
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_sites import install_fake_worker, is_alive, process_id

from medfed.core.errors import WorkerBug
from medfed.engines.parts import worker_process
from medfed.engines.parts.worker_process import WorkerFailed, WorkerProcess

NORTH = {"kind": "train", "sites": {"north": 0}}


def ask(site: WorkerProcess, request: bytes, **more) -> bytes:
    (reply,) = site.ask(NORTH, request, **more)
    return reply


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    return install_fake_worker(tmp_path, monkeypatch)


@pytest.fixture
def site(folder):
    process = WorkerProcess({"sites": ["north"], "directory": str(folder)})
    yield process
    process.close()


def does(folder: Path, what: str) -> None:
    (folder / "north.does").write_text(what)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_replies_steps_and_warnings_are_received(folder):
    calls = []
    job = {"sites": ["north"], "directory": str(folder)}
    site = WorkerProcess(job, lambda *step: calls.append(step), calls.append)
    assert [ask(site, b"one"), ask(site, b"two")] == [b"one", b"two"]
    assert calls == 2 * [("north", 1, 2), "few images"]
    site.close()
    assert not is_alive(process_id(folder, "north"))


@pytest.mark.parametrize(
    ("what", "sentence", "keeps_running"),
    [
        ("die", "its process was killed, as the operating system does when memory runs out", False),
        ("term", "its process was ended by SIGTERM", False),
        ("exit", "its process ended with exit code 3", False),
        ("bug", "KeyError: 'w'", False),
        ("no start", "sites: no images here", False),  # a site that cannot be built
        ("no", "training diverged", True),
    ],
)
def test_a_failure_gives_the_reason_and_only_an_error_of_the_site_leaves_its_process_running(
    folder, site, what, sentence, keeps_running
):
    """Any other process is started again: the next request must not go to a process that ends."""
    before = descriptors()
    does(folder, what)
    with pytest.raises(WorkerFailed, match=f"^{sentence}$") as raised:
        ask(site, b"request")
    assert isinstance(raised.value.reported, WorkerBug) == (what == "bug")
    first = process_id(folder, "north")
    assert (is_alive(first), descriptors() == before) == (keeps_running, not keeps_running)
    does(folder, "echo")
    assert ask(site, b"request", timeout_s=10) == b"request"
    assert (process_id(folder, "north") == first) == keeps_running


@pytest.fixture
def short_timeouts(monkeypatch):
    for name, seconds in (("TRANSFER_TIMEOUT_S", 1), ("EXIT_TIMEOUT_S", 0.2), ("LOAD_TIMEOUT_S", 1.0)):
        monkeypatch.setattr(worker_process, name, seconds)


def test_a_process_that_does_not_read_a_long_request_is_killed(folder, site, short_timeouts):
    assert ask(site, b"request") == b"request"
    os.kill(suspended := process_id(folder, "north"), signal.SIGSTOP)
    with pytest.raises(WorkerFailed, match="^its process no longer reads requests or finishes .*ended$"):
        ask(site, bytes(8 << 20))
    assert not is_alive(suspended)


@pytest.mark.parametrize("n_bytes", [0, 1000, 1 << 20, 8 << 20])
@pytest.mark.parametrize("what", ["half", "not ready", "sleep", "suspend", "steps"])
def test_a_process_that_stalls_anywhere_is_ended(folder, site, short_timeouts, what, n_bytes):
    does(folder, what)
    late = "did not finish in time and was stopped"
    sentence = "its process no longer reads requests or finishes its reply, and was ended" if what == "half" else late
    start = time.monotonic()
    with pytest.raises(WorkerFailed, match=f"^{sentence}$"):
        ask(site, bytes(n_bytes), timeout_s=0.5)
    assert time.monotonic() - start < 2.7, "the timeouts of the reply and the transfer, and a second for the start"
    assert not is_alive(process_id(folder, "north"))


class Descriptor:
    """A connection that can be closed only once, like a file descriptor; a signal may arrive while it is closed."""

    def __init__(self, signal: type[BaseException] | None = None) -> None:
        self.is_open, self.signal = True, signal

    def close(self) -> None:
        if not self.is_open:
            raise OSError(errno.EBADF, "Bad file descriptor")
        self.is_open = False
        time.sleep(0.05)
        if self.signal:
            raise self.signal


def test_a_process_is_closed_once_if_two_threads_close_it(tmp_path):
    site = WorkerProcess({"directory": str(tmp_path)})
    site._connection = connection = Descriptor()
    with ThreadPoolExecutor(2) as pool:
        for closing in [pool.submit(site.close) for _ in range(2)]:
            closing.result()
    assert not connection.is_open


def test_a_process_whose_closing_was_interrupted_can_be_closed_again(tmp_path):
    site = WorkerProcess({"directory": str(tmp_path)})
    site._connection = connection = Descriptor(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        site.close()
    site.close()
    assert not connection.is_open and site._connection is None


def test_waiting_ends_when_stopped_returns_true(folder, site):
    does(folder, "sleep")
    pid = folder / "north.pid"
    with pytest.raises(WorkerFailed, match="^was stopped$"):
        ask(site, b"request", stopped=lambda: pid.is_file() and pid.read_text() != "")
    assert not is_alive(process_id(folder, "north"))


def test_a_missing_working_directory_is_reported(tmp_path, folder):
    site = WorkerProcess({"sites": ["north"], "directory": str(tmp_path / "gone")})
    before = descriptors()
    with pytest.raises(WorkerFailed, match="^its process did not start: .*gone"):
        ask(site, b"request")
    assert descriptors() == before
