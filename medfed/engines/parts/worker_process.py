"""A worker process, as the process that started it sees it: requests and replies travel through a socket.

The worker runs `medfed.deployment.worker`. Every failure of it, also a crash or a lack of memory, becomes a
`WorkerFailed` error here.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from medfed.cli.program import machine_sentence
from medfed.core.errors import UserError, WorkerBug
from medfed.core.import_path import child_import_path
from medfed.federation.engine import OnStep

WORKER = "medfed.deployment.worker"  # started as a program, not imported
REPLY, ERROR, STEP, WARNING, READY = b"a", b"e", b"s", b"n", b"r"  # the first byte of a frame from the worker
REPORTED = {error.__name__: error for error in (UserError, OSError, MemoryError, WorkerBug)}  # errors by name
POLL_S = 0.2  # how often to check whether to stop
TRANSFER_TIMEOUT_S = 60  # for a process that does not read a request, or stops in the middle of a reply
LOAD_TIMEOUT_S = 3600.0  # for a process to start and to read its data, if the request has a timeout
EXIT_TIMEOUT_S = 5  # for a process that has closed its connection to exit
# CPU time that a worker needs to import PyTorch, MONAI and medfed: 7 to 10 s were measured on two busy cores, for one
# worker and for each of two. An idle machine needs less, but workers that start too early make a short run slower.
WORKER_START_S = 8.0
MIN_GAIN = 3  # workers must save this many times the time that they need to start
OWN_PROGRAM = "__main__."  # begins the name of a class that only the program that the user started can import


def n_workers_worth_it(rest_s: float, preparation_s: float, max_workers: Callable[[], int]) -> int:
    """Return how many workers to start for work of `rest_s` seconds that each prepares in `preparation_s`; 1: none."""
    needed_s = MIN_GAIN * (WORKER_START_S + preparation_s)
    if rest_s < needed_s:  # any number of workers saves less than this, and `max_workers` reads files of the system
        return 1
    n_workers = max_workers()
    return n_workers if rest_s * (1 - 1 / n_workers) >= needed_s else 1


def can_be_imported(config_yaml: str) -> bool:
    """Return whether a worker can import all classes of a config, none of which is in the user's own `__main__`."""
    return OWN_PROGRAM not in config_yaml


def check_can_be_imported(config_yaml: str, jobs: int | None) -> None:
    """Raise UserError if the user asks for several processes and `can_be_imported` is false."""
    if jobs is not None and jobs > 1 and not can_be_imported(config_yaml):
        raise UserError(
            f"--jobs {jobs}: the config names a class of the program itself ({OWN_PROGRAM}...), which other processes "
            "cannot import; put the class into a file of its own, or use 1"
        )


class WorkerFailed(RuntimeError):
    """A worker process did not reply; the text is a clause that can follow the name of a site.

    `reported` is the error that the worker reported (UserError, OSError, MemoryError or WorkerBug); None if its process
    ended, crashed or was late.
    """

    def __init__(self, why: str, reported: Exception | None = None) -> None:
        super().__init__(why)
        self.reported = reported


def error_frame(error: Exception, text: str = "") -> bytes:
    """Return the frame with which a worker reports an error; `text` replaces its text and the name of its file."""
    is_of_machine = machine_sentence(error) is not None
    kind: type[Exception] = WorkerBug
    arguments: list[Any] = [f"{type(error).__name__}: {error}"]
    if isinstance(error, UserError) or (text and is_of_machine):
        kind, arguments = UserError, [str(error)]
    elif isinstance(error, OSError) and is_of_machine:
        kind, arguments = OSError, [error.errno, error.strerror, error.filename and str(error.filename)]
    elif is_of_machine:
        kind = MemoryError
    return ERROR + json.dumps([kind.__name__, [text] if text else arguments]).encode()


def _failure(content: bytes) -> WorkerFailed:
    """Return the error that a worker reported with `error_frame`."""
    name, arguments = json.loads(content)
    reported = REPORTED[name](*arguments)
    return WorkerFailed(str(reported), reported)


@dataclass
class WorkerProcess:
    """Handle of a worker process. A request starts the process if it is not running."""

    job: Mapping[str, Any]  # what the worker does, as JSON values (`medfed.deployment.worker.serve`)
    on_step: OnStep | None = None  # for runs of a comparison, called with ("", trainings done, trainings of the run)
    on_warning: Callable[[str], None] | None = None  # called with the text of each warning of the worker
    work_s: float = field(default=0.0, init=False)  # seconds that the worker worked on the last request
    _process: subprocess.Popen | None = field(default=None, init=False)
    _connection: Connection | None = field(default=None, init=False)
    _closing: threading.Lock = field(default_factory=threading.Lock, init=False)

    def ask(
        self,
        header: Mapping[str, Any],
        *bodies: bytes,
        timeout_s: float | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[bytes]:
        """Send a request, a header and messages as bytes, and yield the bytes of each reply as it arrives.

        The request is sent when the iterator is asked for the first reply; the next one must wait until the iterator
        has ended. `timeout_s` is for all replies, without the start of the process; None has no limit. WorkerFailed if
        the process ended, if it did not reply in time or `stopped` returned True (the process is then killed), or if
        the worker reported an error.
        """
        try:
            self.start(stopped, None if timeout_s is None else LOAD_TIMEOUT_S)
            self._open_connection().send_bytes(json.dumps({**header, "n_bodies": len(bodies)}).encode())
            for body in bodies:
                self._open_connection().send_bytes(body)
            yield from self._replies(timeout_s, stopped)
        except (EOFError, OSError) as error:
            raise WorkerFailed(self._how_it_ended(error)) from error

    def close(self) -> None:
        """Kill the worker process, if it runs, and close the connection to it; threads may do so at the same time.

        No file descriptor is closed twice, because its number may belong to another file by then.
        """
        if process := self._process:
            if process.poll() is None:
                process.kill()
            process.wait()
        with self._closing:
            connection, self._process, self._connection = self._connection, None, None
        if connection is not None:
            connection.close()

    def is_running(self) -> bool:
        return (process := self._process) is not None and process.poll() is None

    def start(self, stopped: Callable[[], bool] = lambda: False, timeout_s: float | None = None) -> None:
        """Start the process if it does not run, and wait until it is ready: a site has then read its data."""
        if self.is_running():
            return
        try:
            self._launch()
            for _ in self._replies(timeout_s, stopped):  # there is none
                pass
        except (EOFError, OSError) as error:
            raise WorkerFailed(self._how_it_ended(error)) from error
        except WorkerFailed as error:
            if error.reported:  # the worker could not be built, so its process ends
                self.close()
            raise

    def _launch(self) -> None:
        """Start the process and tell it what its job is."""
        self.close()
        os.stat(self.job["directory"])  # an error here is reported, unlike one in the worker
        own_end, worker_end = socket.socketpair()
        # Without these limits, a process that hangs in the middle of a message would block this process as well.
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            own_end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", TRANSFER_TIMEOUT_S, 0))
        with own_end, worker_end:
            command = [sys.executable, "-m", WORKER, str(worker_end.fileno())]
            # The worker sets the number of threads, so libraries must not start others before. It finds the same
            # modules as this process, such as the file with a method of the user.
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": child_import_path()}
            # A new session, so that Ctrl-C reaches this process alone, which then ends the worker. It starts in the
            # root folder, because `python -m` looks for modules in the current folder first.
            self._process = subprocess.Popen(
                command, pass_fds=[worker_end.fileno()], env=environment, stdout=_log(), cwd="/", start_new_session=True
            )
            self._connection = Connection(own_end.detach())
        self._open_connection().send_bytes(json.dumps(self.job).encode())

    def _open_connection(self) -> Connection:
        if (connection := self._connection) is None:
            raise EOFError("its process is not running")
        return connection

    def _replies(self, timeout_s: float | None, stopped: Callable[[], bool]) -> Iterator[bytes]:
        """Yield the replies until the worker says that it is ready for the next request."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            if stopped() or left_s <= 0:
                self.close()
                raise WorkerFailed("did not finish in time and was stopped" if left_s <= 0 else "was stopped")
            if not self._open_connection().poll(min(POLL_S, left_s)):
                continue
            frame = self._open_connection().recv_bytes()
            kind, content = frame[:1], frame[1:]
            if kind == READY:
                self.work_s = float(content)
                return
            if kind == ERROR:
                failure = _failure(content)
                if isinstance(failure.reported, WorkerBug):  # what it left in memory or on the GPU is not known
                    self.close()
                raise failure
            if kind == REPLY:
                yield content
            if kind == STEP and self.on_step:
                self.on_step(*json.loads(content))
            if kind == WARNING and self.on_warning:
                self.on_warning(content.decode())

    def _how_it_ended(self, error: Exception) -> str:
        """How the process ended, as a clause, after an error of the connection to it."""
        if (process := self._process) is None:
            return f"its process did not start: {error}"
        try:
            code = process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.close()
            return "its process no longer reads requests or finishes its reply, and was ended"
        self.close()
        if code == -signal.SIGKILL:
            return "its process was killed, as the operating system does when memory runs out"
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"


def _log() -> int:
    """Return the file descriptor to which a worker prints: that of stderr, which has none in some notebooks."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return subprocess.DEVNULL
