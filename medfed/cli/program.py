"""What the programs have in common: their list, their flags, and how they end."""

from __future__ import annotations

import argparse
import errno
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from medfed.core.errors import UserError
from medfed.core.malloc import keep_freed_memory
from medfed.core.registry import PACKAGE, first_line

PROGRAMS = (
    "train", "evaluate", "export", "report", "audit", "keys", "coordinator", "site", "data", "codec", "benchmark",
)  # fmt: skip
INTERRUPTED, HUNG_UP, TERMINATED, CLOSED_PIPE = (128 + number for number in (2, 1, 15, 13))  # as shells count signals
_ADVICE = {
    errno.ENOSPC: "free some space and go on with --resume",
    errno.EDQUOT: "free some of your quota and go on with --resume",
    errno.EROFS: "choose a folder that can be written to with --out",
    errno.EACCES: "change the permissions, or choose another folder with --out",
    errno.EPERM: "change the permissions, or choose another folder with --out",
    errno.EEXIST: "a file stands where a folder is wanted; name another place",
    errno.ENOTDIR: "a file stands where a folder is wanted; name another place",
}


class Terminated(KeyboardInterrupt):
    """SIGTERM, as a scheduler sends it; whoever tidies up after Ctrl-C tidies up after it too."""


class HungUp(Terminated):
    """SIGHUP, as a terminal sends it that goes away."""


def programs() -> dict[str, str]:
    """The programs that there are, with the first line of each file's docstring. Imports none of them."""
    return {name: first_line(path) for name in PROGRAMS if (path := _file(name)).is_file()}


def _file(name: str) -> Path:
    """`medfed/NAME.py`, or the door of a package."""
    return PACKAGE / name / "__main__.py" if (PACKAGE / name).is_dir() else PACKAGE / f"{name}.py"


def module_of(name: str) -> str:
    """What to import for a program's `main`."""
    return f"medfed.{_file(name).relative_to(PACKAGE).with_suffix('').as_posix().replace('/', '.')}"


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """Add the positional argument `config`: a file, or the name of a config that comes with medfed."""
    parser.add_argument("config", type=Path, help="a YAML file, for example configs/prostate.yaml, or the name of a "
                                                  "config that comes with medfed, for example prostate")  # fmt: skip


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    """--out, --resume, --set (as often as one likes), --seed, --device, --quiet."""
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the results go")
    parser.add_argument("--resume", action="store_true", help="go on with the run in that folder")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change one value: --set training.batch_size=8"
    )
    parser.add_argument("--seed", type=int, help="short for --set seed=...")
    parser.add_argument("--device", help="short for --set device=...: auto, cpu or cuda")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


def overrides(arguments: argparse.Namespace) -> list[str]:
    """What the common flags change in a config: --set in its order, then --seed and --device."""
    short = {"seed": arguments.seed, "device": arguments.device}
    return [*arguments.set, *(f"{key}={value}" for key, value in short.items() if value is not None)]


def run_program(name: str, work: Callable[[], int]) -> int:
    """Do the work of a program and return its exit code; what a user can mend is one line on stderr, no traceback.

    UserError: 2. A full, read-only or forbidden disk: 1. Ctrl-C: 130, SIGHUP: 129 and SIGTERM: 143, with the
    exception's own text, if it has one (`raise type(stop)("stopped after round 3; go on with --resume") from stop`). A
    reader that went away (`| head`): 141, quietly. Everything else is our mistake, and keeps its traceback.

    Args:
        name: what the line on stderr begins with: `medfed.train`.
        work: returns an exit code.
    """
    keep_freed_memory()
    try:
        with _signals_raise():
            code = work()
            _flush()
            return code
    except UserError as error:
        return _end(name, error.sentences, 2)
    except KeyboardInterrupt as stop:
        ends = (
            (HungUp, "hung up", HUNG_UP),
            (Terminated, "terminated", TERMINATED),
            (KeyboardInterrupt, "interrupted", INTERRUPTED),
        )
        was, code = next((was, code) for kind, was, code in ends if isinstance(stop, kind))
        return _end(name, (str(stop) or was,), code)
    except BrokenPipeError:
        if not _drop_dead_streams():
            raise
        return CLOSED_PIPE
    except OSError as error:
        if error.errno not in _ADVICE:
            raise
        file = error.filename or "a file could not be written"
        return _end(name, (f"{file}: {error.strerror}; {_ADVICE[error.errno]}",), 1)


def _end(name: str, sentences: Iterable[str], code: int) -> int:
    """Print each sentence as one line on stderr and return the exit code."""
    _drop_dead_streams()
    with suppress(OSError):  # of a terminal that went away
        for sentence in sentences:
            print(f"{name}: {' '.join(sentence.split())}", file=sys.stderr)
    _drop_dead_streams()
    return code


@contextmanager
def _signals_raise() -> Iterator[None]:
    """While the work runs, SIGTERM and SIGHUP raise in it (Python allows this in the main thread alone).

    A signal that is ignored stays so: under nohup a terminal may go away.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raised: dict[int, type[KeyboardInterrupt]] = {signal.SIGTERM: Terminated, signal.SIGHUP: HungUp}
    before = {number: signal.getsignal(number) for number in raised if signal.getsignal(number) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, lambda number, frame: _raise(raised[number]))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _raise(kind: type[KeyboardInterrupt]) -> None:
    raise kind


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _drop_dead_streams() -> bool:
    """Point stdout or stderr nowhere if it cannot be written to, so that Python can end quietly; whether one was."""
    dead = [stream for stream in (sys.stdout, sys.stderr) if stream is not None and _is_dead(stream)]
    for stream in dead:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    return bool(dead)


def _is_dead(stream: TextIO) -> bool:
    """Whether it still holds what it cannot write, or is a pipe without a reader (then nothing may be left in it)."""
    try:
        stream.flush()
    except OSError:
        return True
    try:
        pipe = stream.fileno()
    except OSError:  # no file: a test's stream, or a notebook's
        return False
    poll = select.poll()
    poll.register(pipe, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
