"""The round loop's connection to a FLARE job that carries its messages.

FLARE ends a whole job when one of its processes fails. `FlareConnection` therefore treats a job as replaceable: if a
job ends, it starts another one and sends again the requests that have no reply yet. A site that receives the same
training request twice returns its stored reply, so that no round is trained or counted twice.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Protocol

from medfed.engines.flare.job import NO_REPLY
from medfed.engines.parts.worker_pool import encode_requests
from medfed.federation.engine import OnReply
from medfed.federation.message import Message, failed_reply

MAX_JOBS = 3  # an exchange is given up after this many jobs have failed
POLL_S = 0.2
GRACE_S = 60.0  # after the timeout of a request, for the job's controller to report it
END = b""  # the frame that ends an exchange, in both directions


class Job(Protocol):
    """A FLARE job that runs."""

    def check(self) -> Collection[str]:
        """Return the sites from which no reply can come any more; raise EOFError with the reason if the job ended."""
        ...

    def stop(self) -> None:
        """End the FLARE job. Called after the connection to the job was closed."""
        ...


@dataclass
class FlareConnection:
    """Sends requests to sites and receives their replies through FLARE jobs."""

    # Starts a job. It must write its argument, a dict with `address`, the path of a local socket, and `key`, a secret
    # in hexadecimal, to `CONNECTION_FILE` in the local folder of the job's server, whose controller listens there.
    start: Callable[[dict[str, str]], Job]
    join_timeout_s: float = 120.0  # until the job's `FlareController` must listen
    load_timeout_s: float = 600.0  # for a site to read its data, added to the timeout of a job's first request to it
    plan: str = ""  # checksum of the plan, which each request carries; a site with another plan refuses it
    _job: Job | None = field(default=None, init=False)
    _connection: Connection | None = field(default=None, init=False)
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False)

    def exchange(
        self, kind: str, messages: Mapping[str, Message], timeout_s: float, on_reply: OnReply | None = None
    ) -> dict[str, Message]:
        """Send one request to each site and return the replies, sorted by site.

        If the FLARE job fails, another job is started for the sites without a reply, at most `MAX_JOBS` in all. A site
        without a reply gets a "failed" one. A `timeout_s` of 0 waits as long as the job runs and reaches the site.
        """
        replies: dict[str, Message] = {}

        def receive(site: str, reply: Message) -> None:
            replies[site] = reply
            if on_reply:
                on_reply(kind, site, len(replies), len(messages))

        why = ""
        for _ in range(MAX_JOBS):
            try:
                if left := {site: message for site, message in messages.items() if site not in replies}:
                    self._exchange(kind, left, timeout_s, receive)
                break
            except (EOFError, OSError) as error:
                why = str(error) or "its connection broke"
                self.close()
        else:
            failed = failed_reply(f"{NO_REPLY}: FLARE's job ended: {why}")
            replies |= {site: failed for site in messages if site not in replies}
        return dict(sorted(replies.items()))

    def is_open(self) -> bool:
        """Return whether a job runs."""
        return self._job is not None

    def close(self) -> None:
        """Close the connection to the FLARE job, and end the job."""
        if self._connection:
            self._connection.close()
        if self._job:
            self._job.stop()
        if self._folder:
            self._folder.cleanup()
        self._job = self._connection = self._folder = None

    def _exchange(
        self, kind: str, messages: Mapping[str, Message], timeout_s: float, receive: Callable[[str, Message], None]
    ) -> None:
        """Send the messages over the connection, and pass each reply to `receive` when it arrives."""
        job, connection = self._open()
        indices, requests = encode_requests(messages)
        header = {
            "kind": kind,
            "sites": indices,
            "n_requests": len(requests),
            "timeout_s": timeout_s,
            "load_timeout_s": self.load_timeout_s,
            "plan": self.plan,
        }
        for frame in (json.dumps(header).encode(), *requests):
            connection.send_bytes(frame)
        left, is_ended = set(messages), False
        limit_s = timeout_s + self.load_timeout_s + GRACE_S
        deadline = time.monotonic() + limit_s
        while True:
            if connection.poll(POLL_S):
                if (frame := connection.recv_bytes()) == END:
                    return
                site = frame.decode()
                left.discard(site)
                receive(site, Message.from_bytes(connection.recv_bytes()))
                deadline = time.monotonic() + limit_s
            elif timeout_s and time.monotonic() > deadline:
                raise EOFError(f"its controller sent nothing for {limit_s:g} s")
            elif left <= set(job.check()) and not is_ended:
                connection.send_bytes(END)
                is_ended = True

    def _open(self) -> tuple[Job, Connection]:
        """Return the job and the connection to its `FlareController`; start a job if none runs."""
        if self._job is None or self._connection is None:
            self._folder = tempfile.TemporaryDirectory(prefix="medfed_")  # the path of a socket must be short
            address, key = str(Path(self._folder.name) / "socket"), secrets.token_bytes(32)
            self._job = self.start({"address": address, "key": key.hex()})
            self._connection = self._connect(self._job, address, key)
        return self._job, self._connection

    def _connect(self, job: Job, address: str, key: bytes) -> Connection:
        """Return the connection to the `FlareController`, which listens at the address when its job has started."""
        deadline = time.monotonic() + self.join_timeout_s
        while time.monotonic() < deadline:
            with suppress(FileNotFoundError, ConnectionRefusedError):
                return Client(address, "AF_UNIX", authkey=key)
            job.check()
            time.sleep(POLL_S)
        raise EOFError(f"its controller did not start within {self.join_timeout_s:g} s")
