"""`SiteWorker` with a worker and a clock that the tests control; no test waits for time to pass."""

import threading
from types import SimpleNamespace

import pytest

from medfed.engines.flare import site_worker
from medfed.engines.flare.site_worker import SiteWorker
from medfed.engines.parts.worker_process import WorkerFailed

T, LOAD = 20.0, 600.0
LATER = "it keeps running and can take part in a later round"


class Process:
    """A worker that reads its data, and replies, when the test says so."""

    def __init__(self, job, on_warning) -> None:
        self.data_read, self.has_data, self.starts, self.closed = threading.Event(), False, 0, False
        self.work: dict[bytes, threading.Event] = {}
        self.asked: list[bytes] = []
        self.done: list[bytes] = []
        self.failure: str | None = None

    def is_running(self) -> bool:
        return self.has_data

    def start(self, stopped) -> None:
        self.starts += 1
        while not self.data_read.wait(0.01):
            if stopped():
                raise WorkerFailed("was stopped")
        self.has_data = True

    def ask(self, header, body, stopped):
        self.asked.append(body)
        while not self.work[body].wait(0.01):
            if self.failure or stopped():
                self.has_data = False
                self.data_read.clear()
                raise WorkerFailed(self.failure or "was stopped")
        self.done.append(body)
        yield body.upper()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(site_worker, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(site_worker, "POLL_S", 0.005)
    monkeypatch.setattr(site_worker, "WorkerProcess", Process)
    return clock


@pytest.fixture
def site(clock):
    worker = SiteWorker({}, print)
    yield worker
    worker.close()
    assert worker._process.closed and not worker._thread.is_alive()


class Request(threading.Thread):
    """A request in a thread; `answer` is the reply, or why there is none."""

    def __init__(self, site: SiteWorker, body: bytes, stopped=lambda: False) -> None:
        super().__init__(daemon=True)
        self.site, self.body, self.stopped = site, body, stopped
        site._process.work[body] = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self.answer = self.site.ask({}, self.body, T, LOAD, self.stopped)
        except WorkerFailed as error:
            self.answer = str(error)

    def result(self):
        self.join(20)
        return self.answer

    def is_waiting(self) -> bool:
        self.join(0.05)  # ten polls
        return self.is_alive()


def until(condition) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError


def test_the_time_of_the_first_reply_begins_when_the_data_are_read(site, clock):
    first = Request(site, b"round 1")
    clock.now = 599
    assert first.is_waiting()
    site._process.data_read.set()
    until(lambda: site._state == (True, 599))
    clock.now = 599 + T
    assert first.is_waiting()
    site._process.work[b"round 1"].set()
    assert first.result() == b"ROUND 1" and site._process.starts == 1


def test_a_site_that_reads_its_data_too_long_is_left_out_keeps_running_and_takes_part_in_the_next_round(site, clock):
    first = Request(site, b"round 1")
    until(lambda: site._requests.qsize() or site._process.asked)
    clock.now = LOAD + 1
    assert first.result() == f"was still reading its data after 601 s; {LATER}"
    site._process.data_read.set()
    second = Request(site, b"round 2")
    site._process.work[b"round 2"].set()
    assert second.result() == b"ROUND 2"
    assert site._process.done == [b"round 2"] and site._process.starts == 1


def test_a_late_site_finishes_its_work_which_is_dropped_and_takes_part_in_the_next_round(site, clock):
    site._process.data_read.set()
    first = Request(site, b"round 1")
    until(lambda: site._process.asked)
    clock.now = T + 1
    assert first.result() == f"was still working after 21 s; {LATER}"
    second = Request(site, b"round 2")
    assert second.is_waiting()
    for event in site._process.work.values():
        event.set()
    assert second.result() == b"ROUND 2" and site._process.done == [b"round 1", b"round 2"]
    assert site._process.starts == 1


def test_a_request_that_was_given_up_before_its_turn_is_never_worked_on(site, clock):
    site._process.data_read.set()
    first = Request(site, b"round 1")
    until(lambda: site._process.asked)
    clock.now = T + 1
    first.result()
    second = Request(site, b"round 2")
    until(lambda: site._requests.qsize() or site._process.asked)
    clock.now = 2 * T + 2
    assert second.result().startswith("was still working after 21 s")
    third = Request(site, b"round 3")
    for event in site._process.work.values():
        event.set()
    assert third.result() == b"ROUND 3" and site._process.done == [b"round 1", b"round 3"]


def test_a_site_whose_worker_crashed_reads_its_data_again_within_the_time_of_a_later_request(site, clock):
    """The coordinator then waits for it no longer than for the others."""
    site._process.data_read.set()
    first = Request(site, b"round 1")
    until(lambda: site._process.asked)
    site._process.failure = "its process was killed"
    assert first.result() == "its process was killed"
    site._process.failure = None
    until(lambda: site._process.starts == 2)
    second = Request(site, b"round 2")
    until(lambda: site._requests.qsize() or site._process.asked)
    clock.now = T + 1
    assert second.result().startswith("was still reading its data after 21 s")


def test_a_cancelled_request_leaves_the_worker_running(site, clock):
    site._process.data_read.set()
    assert Request(site, b"round 1", stopped=lambda: True).result() == "was stopped"
    site._process.work[b"round 1"].set()
    second = Request(site, b"round 2")
    site._process.work[b"round 2"].set()
    assert second.result() == b"ROUND 2" and site._process.starts == 1
