"""`FlareConnection` with fake FLARE jobs, whose controller is a thread that behaves as a test needs it."""

import gc
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import pytest
import torch

from medfed.core.errors import UserError
from medfed.engines.flare import connection as connection_module
from medfed.engines.flare.connection import MAX_JOBS, FlareConnection
from medfed.federation.message import Message, digest

REQUEST = Message("train", {"w": torch.ones(2)}, {}, {"round": 1, "last": 0})
OTHER = Message("train", {"w": torch.zeros(2)}, {}, {"round": 1, "last": 0})
ASKED = {"north": REQUEST, "south": REQUEST, "west": OTHER}
FakeController = Callable[[Connection, dict, list[bytes]], None]


class FakeJobs:
    """Starts one fake job after another, each with the next of the given controllers; None never connects."""

    def __init__(self, *controllers: FakeController | None) -> None:
        self.controllers, self.headers, self.stopped, self.running = list(controllers), [], 0, []

    def __call__(self, settings: dict[str, str]):
        controller = self.controllers.pop(0)
        job = _Job(self)
        if controller is not None:
            threading.Thread(target=self._run, args=(controller, settings, job), daemon=True).start()
        return job

    def _run(self, controller: FakeController, settings: dict[str, str], job) -> None:
        with (
            suppress(FileNotFoundError),  # the folder of the socket
            Listener(settings["address"], "AF_UNIX", authkey=bytes.fromhex(settings["key"])) as listener,
            listener.accept() as connection,
        ):
            try:
                while True:
                    header = json.loads(connection.recv_bytes())
                    self.headers.append(header)
                    controller(connection, header, [connection.recv_bytes() for _ in range(header["n_requests"])])
            except (EOFError, OSError):
                pass


class _Job:
    def __init__(self, jobs: FakeJobs) -> None:
        self.jobs, self.reason, self.lost = jobs, None, set()

    def check(self) -> set[str]:
        if self.reason:
            raise EOFError(self.reason)
        return self.lost

    def stop(self) -> None:
        self.jobs.stopped += 1


def echo(connection, header, requests) -> None:
    """Let every site reply with its own request."""
    for site, index in header["sites"].items():
        send(connection, site, requests[index])
    connection.send_bytes(b"")


def send(connection, site: str, reply: bytes) -> None:
    connection.send_bytes(site.encode())
    connection.send_bytes(reply)


def breaking_after(n: int) -> FakeController:
    """Return a controller whose connection breaks after n replies."""

    def controller(connection, header, requests) -> None:
        for site, index in list(header["sites"].items())[:n]:
            send(connection, site, requests[index])
        raise EOFError

    return controller


def exchange(jobs: FakeJobs, seconds: float = 0.0, **settings):
    received, flare = [], FlareConnection(jobs, **settings)
    start = time.monotonic()
    replies = flare.exchange("train", ASKED, seconds, lambda *arguments: received.append(arguments))
    flare.close()
    assert time.monotonic() - start < 30
    assert [arguments[2:] for arguments in received] == [(n, len(ASKED)) for n in range(1, len(received) + 1)]
    return replies, [site for _, site, *_ in received]


def test_each_site_receives_its_request_and_a_request_to_two_sites_is_sent_once():
    jobs = FakeJobs(echo)
    replies, received = exchange(jobs)
    assert list(replies) == sorted(ASKED) == sorted(received)
    assert all(digest(replies[site].to_bytes()) == digest(ASKED[site].to_bytes()) for site in ASKED)
    assert jobs.headers[0]["n_requests"] == 2 and jobs.headers[0]["kind"] == "train" and jobs.stopped == 1


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_after_a_failure_another_job_asks_only_the_sites_without_a_reply(n):
    jobs = FakeJobs(breaking_after(n), echo)
    replies, received = exchange(jobs)
    assert {site: reply.kind for site, reply in replies.items()} == dict.fromkeys(ASKED, "train")
    assert [len(header["sites"]) for header in jobs.headers] == [3, *([3 - n] if n < 3 else [])]
    assert sorted(received) == sorted(ASKED) and jobs.stopped == len(jobs.headers)


@pytest.mark.parametrize("n", [0, 1])
def test_after_max_jobs_failures_the_replies_so_far_are_returned_and_the_others_hold_the_reason(n):
    jobs = FakeJobs(breaking_after(n), *(MAX_JOBS - 1) * [breaking_after(0)], echo)
    replies, _ = exchange(jobs)
    assert [replies[site].kind for site in sorted(ASKED)] == n * ["train"] + (3 - n) * ["failed"]
    assert replies["west"].facts["why"] == "did not reply: FLARE's job ended: its connection broke"
    assert len(jobs.headers) == MAX_JOBS == jobs.stopped


def test_a_controller_that_never_starts_is_given_up_after_the_timeout():
    threads = threading.active_count()
    replies, _ = exchange(FakeJobs(*MAX_JOBS * [None]), join_timeout_s=0.1)
    reason = "did not reply: FLARE's job ended: its controller did not start within 0.1 s"
    assert replies["north"].facts["why"] == reason
    assert threading.active_count() <= threads  # no thread is left waiting


def test_a_controller_that_hangs_is_given_up_after_the_timeout(monkeypatch):
    """It keeps its connection open and sends nothing."""
    release = threading.Event()

    def hung(connection, header, requests):
        release.wait(6)
        raise EOFError

    monkeypatch.setattr(connection_module, "GRACE_S", 0.1)
    replies, _ = exchange(FakeJobs(*MAX_JOBS * [hung]), seconds=0.1, load_timeout_s=0.0)
    release.set()
    assert replies["north"].facts["why"] == "did not reply: FLARE's job ended: its controller sent nothing for 0.2 s"


@pytest.mark.parametrize("connects", [False, True])
def test_without_a_timeout_it_waits_as_long_as_the_job_runs_and_reports_why_it_ended(connects):
    started, release = [], threading.Event()
    jobs = FakeJobs(*MAX_JOBS * [(lambda *_: release.wait(20)) if connects else None])

    def start(settings):
        started.append(jobs(settings))
        threading.Timer(0.2, lambda job=started[-1]: setattr(job, "reason", "FLARE says FINISHED:ABORTED")).start()
        return started[-1]

    replies = FlareConnection(start).exchange("train", ASKED, 0.0)
    release.set()
    reason = "did not reply: FLARE's job ended: FLARE says FINISHED:ABORTED"
    assert len(started) == MAX_JOBS and replies["west"].facts["why"] == reason


def test_a_user_error_is_raised_and_starts_no_other_job():
    def start(settings):
        raise UserError("federation.engine: nvflare needs NVIDIA FLARE")

    with pytest.raises(UserError, match="needs NVIDIA FLARE"):
        FlareConnection(start).exchange("train", ASKED, 0.0)


def test_all_file_descriptors_are_closed():
    def n_open() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    time.sleep(1)  # for the controllers of earlier tests to end
    before = n_open()
    exchange(FakeJobs(breaking_after(1), echo))
    deadline = time.monotonic() + 10
    while n_open() > before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert n_open() <= before
