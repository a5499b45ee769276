"""A site in a process of its own: whatever kills it, an error or want of memory, leaves the asker alive."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

WORKER = "medfed.deployment.worker"  # a program; started, not imported
ANSWER, SAID, STEP, NOTE, READY = b"a", b"e", b"s", b"n", b"r"  # how a frame from the worker begins
POLL_S = 0.2  # between two looks at whether to stop
SEND_TIMEOUT_S = 60  # for a process that takes no byte of a letter
EXIT_TIMEOUT_S = 5  # for one that hung up to be gone


class SiteFailed(RuntimeError):
    """A site did not answer; the text is a clause that says why."""


@dataclass
class SiteProcess:
    """Starts when it is first asked, and again after it died.

    Args:
        job: what the worker builds its site from (`medfed.deployment.worker`): plain JSON. It works in the folder
            `directory`.
        on_step: told the site, the step and how many steps there are.
        on_note: told what the site warns of, a sentence at a time.
    """

    job: dict[str, Any]
    on_step: Callable[[str, int, int], None] | None = None
    on_note: Callable[[str], None] | None = None
    _process: subprocess.Popen | None = field(default=None, init=False)
    _line: Connection | None = field(default=None, init=False)

    def ask(
        self, letter: bytes, timeout_s: float | None = None, stopped: Callable[[], bool] = lambda: False
    ) -> bytes:
        """The site's answer to a letter, both as `Message.to_bytes` makes them.

        Raises:
            SiteFailed: if its process died or was not done in time (and then is gone), or the site said no.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            self._start(until, stopped)
            self._connection().send_bytes(letter)
            return self._wait_for(ANSWER, until, stopped)
        except (EOFError, OSError) as error:
            raise SiteFailed(self._how_it_ended(error)) from error

    def close(self) -> None:
        """End the process, if there is one, with whatever it started."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
        if self._line is not None:
            self._line.close()
        self._process = self._line = None

    def _start(self, until: float | None, stopped: Callable[[], bool]) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        # A process that is stopped, or starved of memory, would else take this one along.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
        with ours, theirs:
            command = [sys.executable, "-m", WORKER, str(theirs.fileno())]
            environment = {**os.environ, "OMP_NUM_THREADS": str(self.job["threads"])}
            # Its own session: Ctrl-C is the asker's, who then ends it.
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdout=sys.stderr,
                                             cwd=self.job["directory"], start_new_session=True)
            self._line = Connection(ours.detach())
        self._line.send_bytes(json.dumps(self.job).encode())
        self._wait_for(READY, until, stopped)

    def _connection(self) -> Connection:
        if self._line is None:
            raise EOFError("its process is not there")
        return self._line

    def _wait_for(self, wanted: bytes, until: float | None, stopped: Callable[[], bool]) -> bytes:
        while True:
            left = None if until is None else until - time.monotonic()
            if stopped() or (left is not None and left <= 0):
                self.close()
                raise SiteFailed("was stopped" if left is None or left > 0 else "was not done in time and was stopped")
            if not self._connection().poll(POLL_S if left is None else min(POLL_S, left)):
                continue
            frame = self._connection().recv_bytes()
            kind, content = frame[:1], frame[1:]
            if kind == wanted:
                return content
            if kind == SAID:
                if wanted == READY:  # there is no site, so its process ends
                    self.close()
                raise SiteFailed(content.decode())
            if kind == STEP and self.on_step:
                self.on_step(*json.loads(content))
            if kind == NOTE and self.on_note:
                self.on_note(content.decode())

    def _how_it_ended(self, error: Exception) -> str:
        if self._process is None:
            return f"its process did not start: {error}"
        try:
            code = self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.close()
            return "its process takes no letters any more, and was ended"
        self.close()
        if code == -signal.SIGKILL:
            return "its process was killed, as the system does when memory runs out"
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"
