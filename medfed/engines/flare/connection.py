"""The round loop's connection to a FLARE job that carries its messages.

FLARE ends a whole job when one of its processes fails. `FlareConnection` therefore treats a job as replaceable: if a
job ends, it starts another one and sends again the requests that have no reply yet. A site that receives the same
training request twice returns its stored reply, so that no round is trained or counted twice.
"""

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
from medfed.engines.parts.worker_pool import encode_requests
from medfed.federation.engine import OnReply
from medfed.federation.message import Message, failed_reply

MAX_JOBS = 3  # an exchange is given up after this many jobs have failed
POLL_S = 0.2
WARNING = b"\0"  # first byte of a frame with a warning for the user; any other frame begins with the name of a site


class Job(Protocol):
    """A FLARE job that runs."""

    def end_reason(self) -> str | None:
        """Return why the FLARE job ended, as a clause such as "FLARE says FINISHED"; None while the job runs."""
        ...

    def stop(self) -> None:
        """End the FLARE job. Called after the connection to the job was closed."""
        ...


@dataclass
class FlareConnection:
    """Sends requests to sites and receives their replies through FLARE jobs.

    Args:
        start: starts a job. It must write its argument, a dict with `address`, the path of a local socket, and `key`, a
            secret in hexadecimal, to the file `CONNECTION_FILE` in the local folder of the job's server.
        join_timeout_s: seconds until the job's `FlareController` must have connected.
        load_timeout_s: seconds that a site may take to start and to read its data, added to the timeout of the first
            request that a job sends to the site.
        grace_s: seconds after a request's timeout until the `FlareController` must have reported it, and seconds
            without progress after which a transfer is given up.
    """

    start: Callable[[dict[str, str]], Job]
    join_timeout_s: float = 120.0
    load_timeout_s: float = 600.0
    grace_s: float = 60.0
    _job: Job | None = field(default=None, init=False)
    _connection: Connection | None = field(default=None, init=False)
    _n_failed_jobs: int = field(default=0, init=False)
    _is_idle: bool = field(default=False, init=False)
    _warnings: list[bytes] = field(default_factory=list, init=False)

    def exchange(
        self, kind: str, messages: Mapping[str, Message], timeout_s: float, on_reply: OnReply | None = None
    ) -> dict[str, Message]:
        """Send one request to each site and return the replies, sorted by site.

        If the FLARE job fails, another job is started for the sites without a reply, at most `MAX_JOBS` in all. A site
        without a reply gets a "failed" one. A late or second reply to a request is not returned; a warning names the
        site. A `timeout_s` of 0 waits as long as the job runs.
        """
        replies: dict[str, Message] = {}
        self._n_failed_jobs = 0
        try:
            self._exchange(kind, messages, timeout_s, replies, on_reply)
        finally:
            self._show_warnings()
        return dict(sorted(replies.items()))

    def _exchange(
        self,
        kind: str,
        messages: Mapping[str, Message],
        timeout_s: float,
        replies: dict[str, Message],
        on_reply: OnReply | None,
    ) -> None:
        """Send the messages and add the replies to `replies`, again after a failed job for the sites that have not
        replied."""
        while left := {site: message for site, message in messages.items() if site not in replies}:
            try:
                self._connect()
                for site, reply in self._ask(kind, left, timeout_s):
                    is_first = site not in replies
                    replies[site] = reply
                    if on_reply and is_first:
                        on_reply(kind, site, len(replies), len(messages))
            except (EOFError, OSError) as error:
                self._handle_failed_job(left, replies, str(error))

    def close(self) -> None:
        """Close the connection to the FLARE job, end the job, and show the job's warnings about late replies."""
        if self._connection:
            with suppress(EOFError, OSError):
                while self._is_idle and self._connection.poll():
                    self._warnings.append(self._connection.recv_bytes())
            self._connection.close()
        if self._job:
            self._job.stop()
        self._job = self._connection = None
        self._show_warnings()

    def _show_warnings(self) -> None:
        """Show the collected warnings; called outside a transfer, so that an error in showing them ends no job."""
        frames, self._warnings = self._warnings, []
        for frame in frames:
            warnings.warn(frame.removeprefix(WARNING).decode(), stacklevel=2)

    def _ask(self, kind: str, messages: Mapping[str, Message], timeout_s: float) -> Iterator[tuple[str, Message]]:
        """Send the messages over the connection, and yield (site, reply) as they arrive."""
        indices, requests = encode_requests(messages)
        self._is_idle = False
        header = {
            "kind": kind,
            "sites": indices,
            "n_requests": len(requests),
            "timeout_s": timeout_s,
            "load_timeout_s": self.load_timeout_s,
        }
        _, connection = self._running()
        connection.send_bytes(json.dumps(header).encode())
        for request in requests:
            connection.send_bytes(request)
        limit_s = timeout_s + self.load_timeout_s + self.grace_s if timeout_s else None
        while frame := self._next_frame(limit_s):
            if frame.startswith(WARNING):
                self._warnings.append(frame)
            else:
                yield frame.decode(), Message.from_bytes(self._next_frame(self.grace_s))
        self._is_idle = True

    def _next_frame(self, limit_s: float | None) -> bytes:
        """Return the next frame; raise EOFError if the job ends first, or nothing is received for `limit_s` seconds."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        job, connection = self._running()
        while not connection.poll(POLL_S):
            if job.end_reason():
                raise EOFError
            if deadline is not None and time.monotonic() > deadline:
                raise EOFError(f"its controller sent nothing for {limit_s:g} s")
        return connection.recv_bytes()

    def _running(self) -> tuple[Job, Connection]:
        """Return the job and the connection to it; raise EOFError if there is none."""
        if self._job is None or self._connection is None:
            raise EOFError("its connection is closed")
        return self._job, self._connection

    def _connect(self) -> None:
        """Start a job, if none runs, and wait until its `FlareController` connects."""
        if self._connection is not None:
            return
        with tempfile.TemporaryDirectory(prefix="medfed_") as folder:  # the path of a socket must be short
            key = secrets.token_bytes(32)
            address = str(Path(folder) / "socket")
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen()
                listener.settimeout(POLL_S)
                self._job = job = self.start({"address": address, "key": key.hex()})
                self._connection = self._accept(job, listener, key)

    def _accept(self, job: Job, listener: socket.socket, key: bytes) -> Connection:
        """Return the connection to the `FlareController` that knows the key.

        `multiprocessing.connection.Listener` is not used, because its `accept` has no timeout.
        """
        deadline = time.monotonic() + self.join_timeout_s
        while time.monotonic() < deadline and job.end_reason() is None:
            with suppress(TimeoutError):
                end, _ = listener.accept()
                for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(self.grace_s) + 1, 0))
                connection = Connection(end.detach())
                try:
                    deliver_challenge(connection, key)
                    answer_challenge(connection, key)
                    return connection
                except (AuthenticationError, EOFError, OSError):
                    connection.close()
        raise EOFError(f"its controller did not connect within {self.join_timeout_s:g} s")

    def _handle_failed_job(self, left: Mapping[str, Message], replies: dict[str, Message], error: str) -> None:
        """Close a job that failed; after `MAX_JOBS` of them, set a failed reply for each site without a reply."""
        why = (self._job.end_reason() if self._job else None) or error or "its connection broke"
        self.close()
        self._n_failed_jobs += 1
        if self._n_failed_jobs >= MAX_JOBS:
            reply = failed_reply(f"{NO_REPLY}: FLARE's job ended: {why}")
            replies |= dict.fromkeys((site for site in left if site not in replies), reply)
