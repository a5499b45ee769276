"""The round loop's end of the line, with a relay of ours at the other: a thread that does what a test says."""

import json
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path

import pytest
import torch

from medfed.core.errors import UserError
from medfed.engines.flare.connection import MAX_JOBS, FlareConnection
from medfed.federation.message import Message, digest

LETTER = Message("train", {"w": torch.ones(2)}, {}, {"round": 1, "last": 0})
OTHER = Message("train", {"w": torch.zeros(2)}, {}, {"round": 1, "last": 0})
ASKED = {"north": LETTER, "south": LETTER, "west": OTHER}
Relay = Callable[[Connection, dict, list[bytes]], None]


class FakeJobs:
    """Jobs one after another; of each the relay does what the test gave it, then its line breaks."""

    def __init__(self, *relays: Relay | None) -> None:
        self.relays, self.requests, self.stopped, self.running = list(relays), [], 0, []

    def __call__(self, line: dict[str, str]):
        relay = self.relays.pop(0)
        job = _Job(self)
        if relay is not None:
            threading.Thread(target=self._run, args=(relay, line, job), daemon=True).start()
        return job

    def _run(self, relay: Relay, told: dict[str, str], job) -> None:
        with Client(told["address"], "AF_UNIX", authkey=bytes.fromhex(told["key"])) as line:
            try:
                while True:
                    request = json.loads(line.recv_bytes())
                    self.requests.append(request)
                    relay(line, request, [line.recv_bytes() for _ in range(request["n_letters"])])
            except (EOFError, OSError):
                pass


class _Job:
    def __init__(self, jobs: FakeJobs) -> None:
        self.jobs, self.how = jobs, None

    def ended(self) -> str | None:
        return self.how

    def stop(self) -> None:
        self.jobs.stopped += 1


def echo(line, request, letters) -> None:
    """Every site answers with its letter."""
    for site, index in request["sites"].items():
        send(line, site, letters[index])
    line.send_bytes(b"")


def send(line, site: str, answer: bytes) -> None:
    line.send_bytes(site.encode())
    line.send_bytes(answer)


def breaking_after(n: int) -> Relay:
    """The line breaks after n answers."""

    def relay(line, request, letters) -> None:
        for site, index in list(request["sites"].items())[:n]:
            send(line, site, letters[index])
        raise EOFError

    return relay


def exchange(jobs: FakeJobs, seconds: float = 0.0, **settings):
    heard, line = [], FlareConnection(jobs, **settings)
    began = time.monotonic()
    answers = line.exchange("train", ASKED, seconds, lambda *told: heard.append(told))
    line.close()
    assert time.monotonic() - began < 30
    assert [told[2:] for told in heard] == [(n, len(ASKED)) for n in range(1, len(heard) + 1)]
    return answers, [site for _, site, *_ in heard]


def test_each_site_gets_its_letter_and_what_goes_to_two_crosses_once():
    jobs = FakeJobs(echo)
    answers, heard = exchange(jobs)
    assert list(answers) == sorted(ASKED) == sorted(heard)
    assert all(digest(answers[site].to_bytes()) == digest(ASKED[site].to_bytes()) for site in ASKED)
    assert jobs.requests[0]["n_letters"] == 2 and jobs.requests[0]["kind"] == "train" and jobs.stopped == 1


def test_one_job_serves_many_exchanges():
    jobs = FakeJobs(echo)
    line = FlareConnection(jobs)
    for _ in range(3):
        assert len(line.exchange("train", ASKED, 0.0)) == 3
    line.close()
    assert len(jobs.requests) == 3 and jobs.stopped == 1


def test_of_two_answers_of_a_site_the_last_counts_and_none_is_added():
    def twice(line, request, letters):
        for site in request["sites"]:
            send(line, site, letters[0])
            send(line, site, letters[0])
        line.send_bytes(b"")

    answers, _ = exchange(FakeJobs(twice))
    assert list(answers) == sorted(ASKED)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_after_a_break_another_job_asks_only_the_sites_that_are_left(n):
    jobs = FakeJobs(breaking_after(n), echo)
    answers, heard = exchange(jobs)
    assert {site: answer.kind for site, answer in answers.items()} == dict.fromkeys(ASKED, "train")
    assert len(jobs.requests[0]["sites"]) == 3 and len(jobs.requests[1]["sites"]) == 3 - n
    assert sorted(heard) == sorted(ASKED) and jobs.stopped == 2


def test_a_break_after_all_answers_but_before_the_end_asks_nobody_again():
    jobs = FakeJobs(breaking_after(3), echo)
    assert len(exchange(jobs)[0]) == 3 and len(jobs.requests) == 1


def test_an_answer_that_broke_off_in_the_middle_is_none():
    def half(line, request, letters):
        line.send_bytes(b"north")
        raise EOFError

    jobs = FakeJobs(half, echo)
    answers, heard = exchange(jobs)
    assert answers["north"].kind == "train" and heard.count("north") == 1


def test_it_gives_up_after_a_few_jobs_and_says_why():
    jobs = FakeJobs(*MAX_JOBS * [breaking_after(0)], echo)
    answers, _ = exchange(jobs)
    assert {answer.kind for answer in answers.values()} == {"failed"}
    assert answers["west"].facts["why"] == "did not reply: FLARE's job ended: its line broke"
    assert len(jobs.requests) == MAX_JOBS == jobs.stopped


def test_the_answers_that_came_are_kept_when_it_gives_up():
    jobs = FakeJobs(breaking_after(1), *(MAX_JOBS - 1) * [breaking_after(0)])
    answers, _ = exchange(jobs)
    assert [answers[site].kind for site in sorted(ASKED)] == ["train", "failed", "failed"]


def test_a_relay_that_never_comes_is_not_waited_for():
    threads = threading.active_count()
    answers, _ = exchange(FakeJobs(*MAX_JOBS * [None]), join_timeout_s=0.3)
    assert answers["north"].facts["why"] == "did not reply: FLARE's job ended: its relay was not there within 0.3 s"
    assert threading.active_count() == threads  # nobody waits at a closed door


def test_a_job_that_ends_before_its_relay_comes_says_how():
    jobs = FakeJobs(*MAX_JOBS * [None])

    def ending(line):
        job = jobs(line)
        job.how = "FLARE says FINISHED:ABNORMAL"
        return job

    line = FlareConnection(ending)
    answers = line.exchange("train", ASKED, 0.0)
    assert answers["north"].facts["why"] == "did not reply: FLARE's job ended: FLARE says FINISHED:ABNORMAL"


def test_a_relay_that_falls_silent_is_not_waited_for():
    """Hung, it holds its line open and answers nothing."""
    release = threading.Event()

    def hung(line, request, letters):
        release.wait(6)
        raise EOFError

    answers, _ = exchange(FakeJobs(*MAX_JOBS * [hung]), seconds=0.2, grace_s=0.3)
    release.set()
    assert answers["north"].facts["why"] == "did not reply: FLARE's job ended: its relay said nothing for 0.5 s"


def test_without_a_limit_it_waits_as_long_as_the_job_runs():
    made, release = [], threading.Event()
    jobs = FakeJobs(*MAX_JOBS * [lambda *_: release.wait(20)])

    def start(line):
        made.append(jobs(line))
        threading.Timer(0.5, lambda job=made[-1]: setattr(job, "how", "FLARE says FINISHED:ABORTED")).start()
        return made[-1]

    line = FlareConnection(start)
    answers = line.exchange("train", ASKED, 0.0)
    release.set()
    assert len(made) == MAX_JOBS and answers["west"].facts["why"].endswith("FLARE says FINISHED:ABORTED")


def test_a_stranger_at_the_door_is_not_let_in():
    """It knows the place and not the key; the relay that comes after it is taken."""

    def start(line):
        def stranger() -> None:
            with pytest.raises(AuthenticationError):
                Client(line["address"], "AF_UNIX", authkey=b"wrong")
            real(line)

        real = FakeJobs(echo)
        threading.Thread(target=stranger, daemon=True).start()
        return _Job(real)

    answers = FlareConnection(start).exchange("train", ASKED, 0.0)
    assert {answer.kind for answer in answers.values()} == {"train"}


def test_a_sentence_for_the_user_is_no_break():
    def start(line):
        raise UserError("federation.engine: nvflare needs NVIDIA FLARE")

    with pytest.raises(UserError, match="needs NVIDIA FLARE"):
        FlareConnection(start).exchange("train", ASKED, 0.0)


def test_a_note_that_cannot_be_shown_is_no_break_of_the_line():
    def noting(line, request, letters):
        line.send_bytes(b"\0HK: its answer came late")
        echo(line, request, letters)

    def full(*_, **__):
        raise OSError("No space left on device")

    line = FlareConnection(FakeJobs(noting))
    with pytest.warns(UserWarning, match="^HK: its answer came late$"):
        assert all(answer.kind != "failed" for answer in line.exchange("train", ASKED, 0.0).values())
    line.close()
    jobs = FakeJobs(noting, echo)
    line = FlareConnection(jobs)
    with warnings.catch_warnings(), pytest.raises(OSError, match="No space left"):
        warnings.showwarning = full
        warnings.simplefilter("always")
        line.exchange("train", ASKED, 0.0)
    assert jobs.stopped == 0 and len(jobs.requests) == 1
    line.close()


def test_no_descriptor_is_left():
    before = len(list(Path("/proc/self/fd").iterdir()))
    exchange(FakeJobs(breaking_after(1), echo))
    time.sleep(0.2)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
