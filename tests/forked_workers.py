"""Worker processes that are forked from the tests' process, with everything imported.

A worker that starts Python and imports PyTorch and MONAI needs seconds, a forked one milliseconds. Everything after the
start is the same: the worker's program, the socket and its frames.
"""

import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress

import torch._dynamo  # noqa: F401  the first optimiser imports it, which would take a second in each worker
from tqdm import tqdm

import medfed.deployment.worker  # noqa: F401  what the worker imports

FORKING = threading.Lock()  # the library filelock refuses to fork in two threads at once


def _close_inherited_files(kept: tuple[int, ...]) -> None:
    """Close the sockets of other workers: while this process has one open, nobody sees that its worker was killed."""
    for descriptor in range(3, 1024):
        if descriptor not in kept:
            with suppress(OSError):
                os.close(descriptor)


def _run_module(command: list[str]) -> int:
    """Run `python -m module arguments` in this process; return its exit code."""
    _, option, module, *sys.argv[1:] = command
    assert option == "-m"
    sys.modules.pop(module)  # a new process has not imported it
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)  # a text means failure
    return 0


class ForkedWorker:
    """The part of `subprocess.Popen` that `WorkerProcess` uses, for the worker's program."""

    def __init__(self, command, pass_fds, **others) -> None:
        self.returncode: int | None = None
        with FORKING:
            self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                _close_inherited_files(pass_fds)
                sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # those of pytest write to a closed file
                tqdm.set_lock(threading.RLock())  # the parent's lock is shared, and stays locked if it is killed
                code = _run_module(command)
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


def fork_workers(monkeypatch) -> None:
    """Fork all worker processes from this process, until the test ends; other programs are started as usual."""
    start = subprocess.Popen

    def fork_or_start(command, **others):
        return ForkedWorker(command, **others) if others.get("pass_fds") else start(command, **others)

    monkeypatch.setattr("medfed.engines.parts.worker_process.subprocess.Popen", fork_or_start)
