"""One site in a process of its own, as the process that started it sees it.

`SiteProcess` starts `medfed.deployment.worker`, sends it requests over a socket and waits for the replies. Every
failure of the site's process, also a crash or a lack of memory, becomes a `SiteFailed` error here.
"""

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

WORKER = "medfed.deployment.worker"  # started as a program, not imported
REPLY, ERROR, STEP, WARNING, READY = b"a", b"e", b"s", b"n", b"r"  # the first byte of a frame from the worker
POLL_S = 0.2  # how often to check whether to stop
SEND_TIMEOUT_S = 60  # for a process that does not read a request
EXIT_TIMEOUT_S = 5  # for a process that has closed its connection to exit


class SiteFailed(RuntimeError):
    """Error of a site that did not reply; its text is the reason, as a clause whose subject is the site."""


@dataclass
class SiteProcess:
    """Handle of a site's process, which is started with the first request, and again if it has ended.

    Args:
        job: description from which the worker builds its site, as JSON values (`medfed.deployment.worker.serve`). Its
            entry `directory` is the working directory of the process.
        on_step: function that is called after each training step with (site, step, steps of this round); None calls
            nothing.
        on_warning: function that is called with each warning of the site, as a sentence; None drops the warnings.
    """

    job: dict[str, Any]
    on_step: Callable[[str, int, int], None] | None = None
    on_warning: Callable[[str], None] | None = None
    _process: subprocess.Popen | None = field(default=None, init=False)
    _connection: Connection | None = field(default=None, init=False)

    def ask(
        self, request: bytes, timeout_s: float | None = None, stopped: Callable[[], bool] = lambda: False
    ) -> bytes:
        """Send a request to the site's process and wait for the reply.

        If the process does not run, it is started first.

        Args:
            request: the bytes of the request (`Message.to_bytes`).
            timeout_s: seconds to wait, including the start of the process; None waits without limit.
            stopped: function without arguments that returns True when waiting must end; it is called about every 0.2
                seconds.

        Returns:
            The bytes of the reply, for `Message.from_bytes`.

        Raises:
            SiteFailed: if the process ended or the site reported an error; also if the process did not reply in time
                or `stopped` returned True. In the last two cases the process is killed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            self._start(deadline, stopped)
            self._open_connection().send_bytes(request)
            return self._wait_for(REPLY, deadline, stopped)
        except (EOFError, OSError) as error:
            raise SiteFailed(self._how_it_ended(error)) from error

    def close(self) -> None:
        """Kill the site's process, if it runs, and close the connection to the process."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def _start(self, deadline: float | None, stopped: Callable[[], bool]) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        own_end, worker_end = socket.socketpair()
        # Without this limit, sending to a suspended or hanging process would block this process as well.
        own_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
        with own_end, worker_end:
            command = [sys.executable, "-m", WORKER, str(worker_end.fileno())]
            environment = {**os.environ, "OMP_NUM_THREADS": str(self.job["threads"])}
            # A new session, so that Ctrl-C reaches this process alone, which then ends the worker.
            self._process = subprocess.Popen(command, pass_fds=[worker_end.fileno()], env=environment,
                                             stdout=sys.stderr, cwd=self.job["directory"], start_new_session=True)
            self._connection = Connection(own_end.detach())
        self._connection.send_bytes(json.dumps(self.job).encode())
        self._wait_for(READY, deadline, stopped)

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise EOFError("its process is not running")
        return self._connection

    def _wait_for(self, wanted: bytes, deadline: float | None, stopped: Callable[[], bool]) -> bytes:
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if stopped() or (left is not None and left <= 0):
                self.close()
                timed_out = left is not None and left <= 0
                raise SiteFailed("did not finish in time and was stopped" if timed_out else "was stopped")
            if not self._open_connection().poll(POLL_S if left is None else min(POLL_S, left)):
                continue
            frame = self._open_connection().recv_bytes()
            kind, content = frame[:1], frame[1:]
            if kind == wanted:
                return content
            if kind == ERROR:
                if wanted == READY:  # the site could not be built, so its process ends
                    self.close()
                raise SiteFailed(content.decode())
            if kind == STEP and self.on_step:
                self.on_step(*json.loads(content))
            if kind == WARNING and self.on_warning:
                self.on_warning(content.decode())

    def _how_it_ended(self, error: Exception) -> str:
        if self._process is None:
            return f"its process did not start: {error}"
        try:
            code = self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.close()
            return "its process no longer reads requests, and was ended"
        self.close()
        if code == -signal.SIGKILL:
            return "its process was killed, as the operating system does when memory runs out"
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"
