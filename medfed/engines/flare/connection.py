"""The round loop's connection to `FlareController`: a FLARE job carries messages, and a broken one is replaced."""

from __future__ import annotations

import json
import secrets
import socket
import struct
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Protocol

from medfed.engines.flare.job import NO_REPLY
from medfed.federation.message import Message, failed_reply

MAX_JOBS = 3  # that may break in one exchange before it is given up
POLL_S = 0.2
NOTE = b"\0"  # how a frame begins that is a note for the user, where one might begin with a site's name


class Job(Protocol):
    """A FLARE job that runs."""

    def ended(self) -> str | None:
        """How it ended, as a clause; None while it runs."""
        ...

    def stop(self) -> None: ...


@dataclass
class FlareConnection:
    """Letters to sites and answers back, over FLARE jobs.

    Args:
        start: begins a job whose `FlareController` finds the given words (`address` and `key`) in its local folder.
        join_timeout_s: how long a job may take until its `FlareController` is there.
        grace_s: how long after a site's time the `FlareController` may take to say so, and how long it may take
            no byte.
    """

    start: Callable[[dict[str, str]], Job]
    join_timeout_s: float = 120.0
    grace_s: float = 60.0
    _job: Job | None = field(default=None, init=False)
    _line: Connection | None = field(default=None, init=False)
    _broken: int = field(default=0, init=False)
    _is_idle: bool = field(default=False, init=False)
    _notes: list[bytes] = field(default_factory=list, init=False)

    def exchange(
        self, kind: str, messages: Mapping[str, Message], seconds: float,
        on_reply: Callable[[str, str, int, int], None] | None = None,
    ) -> dict[str, Message]:
        """An answer a site, `failed` where there is none; a job that breaks is started again for the sites left.

        Of an answer that nobody waits for any more a warning says whose it is; it is not among these.

        Args:
            seconds: how long a site may take; 0 waits as long as the job runs.
            on_reply: told the kind, the site, and how many of how many sites have answered.
        """
        answers: dict[str, Message] = {}
        self._broken = 0
        try:
            self._exchange(kind, messages, seconds, answers, on_reply)
        finally:
            self._tell()
        return dict(sorted(answers.items()))

    def _exchange(self, kind: str, messages: Mapping[str, Message], seconds: float, answers: dict[str, Message],
                  on_reply: Callable[[str, str, int, int], None] | None) -> None:
        while left := {site: message for site, message in messages.items() if site not in answers}:
            try:
                self._connect()
                for site, answer in self._ask(kind, left, seconds):
                    is_first = site not in answers
                    answers[site] = answer
                    if on_reply and is_first:
                        on_reply(kind, site, len(answers), len(messages))
            except (EOFError, OSError) as error:
                self._give_up_or_again(left, answers, str(error))

    def close(self) -> None:
        """End the job."""
        if self._line:
            with suppress(EOFError, OSError):
                while self._is_idle and self._line.poll():
                    self._notes.append(self._line.recv_bytes())
            self._line.close()
        if self._job:
            self._job.stop()
        self._job = self._line = None
        self._tell()

    def _tell(self) -> None:
        """Not while the line is in use: what goes wrong in showing a note is no fault of the line."""
        notes, self._notes = self._notes, []
        for note in notes:
            warnings.warn(note.removeprefix(NOTE).decode(), stacklevel=2)

    def _ask(
        self, kind: str, messages: Mapping[str, Message], seconds: float
    ) -> Iterator[tuple[str, Message]]:
        letters: list[tuple[Message, bytes]] = []
        places: dict[str, int] = {}
        for site, message in messages.items():
            for index, (known, _) in enumerate(letters):
                if known is message:
                    places[site] = index
                    break
            else:
                places[site] = len(letters)
                letters.append((message, message.to_bytes()))
        self._is_idle = False
        request = {"kind": kind, "sites": places, "n_letters": len(letters), "seconds": seconds}
        _, line = self._running()
        line.send_bytes(json.dumps(request).encode())
        for _, letter in letters:
            line.send_bytes(letter)
        limit = seconds + self.grace_s if seconds else None
        while frame := self._frame(limit):
            if frame.startswith(NOTE):
                self._notes.append(frame)
            else:
                yield frame.decode(), Message.from_bytes(self._frame(self.grace_s))
        self._is_idle = True

    def _frame(self, limit: float | None) -> bytes:
        """What comes next on the line; EOFError if the job ends first, or nothing comes in time."""
        until = None if limit is None else time.monotonic() + limit
        job, line = self._running()
        while not line.poll(POLL_S):
            if job.ended():
                raise EOFError
            if until is not None and time.monotonic() > until:
                raise EOFError(f"its relay said nothing for {limit:g} s")
        return line.recv_bytes()

    def _running(self) -> tuple[Job, Connection]:
        """The job and the line to it; EOFError if there is none."""
        if self._job is None or self._line is None:
            raise EOFError("its line is closed")
        return self._job, self._line

    def _connect(self) -> None:
        """Start a job, if none runs, and wait for its `FlareController`."""
        if self._line is not None:
            return
        with tempfile.TemporaryDirectory(prefix="medfed_") as place:  # a socket's path must be short
            key = secrets.token_bytes(32)
            address = str(Path(place) / "line")
            with socket.socket(socket.AF_UNIX) as door:
                door.bind(address)
                door.listen()
                door.settimeout(POLL_S)
                self._job = job = self.start({"address": address, "key": key.hex()})
                self._line = self._accepted(job, door, key)

    def _accepted(self, job: Job, door: socket.socket, key: bytes) -> Connection:
        """The `FlareController` that knows the key; not by `Listener`, whose `accept` knows no end."""
        until = time.monotonic() + self.join_timeout_s
        while time.monotonic() < until and job.ended() is None:
            with suppress(TimeoutError):
                end, _ = door.accept()
                for way in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    end.setsockopt(socket.SOL_SOCKET, way, struct.pack("ll", int(self.grace_s) + 1, 0))
                line = Connection(end.detach())
                try:
                    deliver_challenge(line, key)
                    answer_challenge(line, key)
                    return line
                except (AuthenticationError, EOFError, OSError):
                    line.close()
        raise EOFError(f"its relay was not there within {self.join_timeout_s:g} s")

    def _give_up_or_again(self, left: Mapping[str, Message], answers: dict[str, Message], how: str) -> None:
        """The job broke: the next turn starts another, or its end is the answer of every site that is left."""
        why = (self._job.ended() if self._job else None) or how or "its line broke"
        self.close()
        self._broken += 1
        if self._broken >= MAX_JOBS:
            reply = failed_reply(f"{NO_REPLY}: FLARE's job ended: {why}")
            answers |= dict.fromkeys((site for site in left if site not in answers), reply)
