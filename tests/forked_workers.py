"""Worker processes that are forked from the tests' process, with everything imported.

A worker that starts Python and imports PyTorch and MONAI needs seconds, a forked one milliseconds. Everything after the
start is the same: the worker's program, the socket and its frames.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
import time
import traceback
from contextlib import suppress

from tqdm import tqdm

from medfed.deployment import worker


def _close_inherited_files(kept: tuple[int, ...]) -> None:
    """Close the sockets of other workers: while this process has one open, nobody sees that its worker was killed."""
    for descriptor in range(3, 1024):
        if descriptor not in kept:
            with suppress(OSError):
                os.close(descriptor)


class ForkedWorker:
    """The part of `subprocess.Popen` that `WorkerProcess` uses, for the worker's program."""

    def __init__(self, command, pass_fds, **others) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            _close_inherited_files(pass_fds)
            tqdm.set_lock(threading.RLock())  # the parent's lock is shared, and stays locked if this process is killed
            try:
                code = worker.main(list(map(str, pass_fds)))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)  # nothing of the tests may run in the child

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("worker", timeout)
            time.sleep(0.01)
        return self.poll()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def fork_workers(monkeypatch, n_started: int = 0) -> None:
    """Fork all worker processes from this process, until the test ends, but start the first `n_started` as programs."""
    popen, numbers = subprocess.Popen, itertools.count()

    def start(command, **others):
        return (popen if next(numbers) < n_started else ForkedWorker)(command, **others)

    monkeypatch.setattr("medfed.engines.worker_process.subprocess.Popen", start)
