"""Write files so that a crash leaves the old content or the new, never half of either; and lock them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from medfed.core.errors import UserError


def write_atomically(path: Path, *parts: bytes | str) -> None:
    """Write beside the target, flush to the disk, then rename over it.

    Whatever fails (a full disk, a kill), the file that was there before is still whole.
    """
    stage_file(path, *parts)()


def stage_file(path: Path, *parts: bytes | str) -> Callable[[], None]:
    """Write beside the target; the call of what comes back waits for the disk and renames (`write_atomically`)."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with _removed_on_failure(unfinished), open(unfinished, "wb") as file:
        for part in parts:
            file.write(part.encode(errors="backslashreplace") if isinstance(part, str) else part)

    def commit() -> None:
        with _removed_on_failure(unfinished):
            _sync(unfinished)
            os.replace(unfinished, path)
        _sync(path.parent)

    return commit


def sha256_digest(*parts: bytes) -> bytes:
    """Their SHA-256, to go in front: safetensors files carry no checksum, and 499 of 500 flipped bits go unseen."""
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.digest()


def read_with_checksum(path: Path, advice: str) -> bytes:
    """Read a file that begins with the `sha256_digest` of its content, and return the content without the digest.

    Args:
        path: a file that was written as `write_atomically(path, sha256_digest(data), data)`.
        advice: what the user can do if the file is damaged; the last clause of the error message.

    Raises:
        UserError: if the content does not have this SHA-256.
    """
    data = path.read_bytes()
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise UserError(f"{path}: its checksum does not fit, so it was damaged after it was written; {advice}")
    return data[32:]


@contextmanager
def exclusive_lock(path: Path, busy: Callable[[str], UserError], wait_s: float = 0.0) -> Iterator[int]:
    """Hold the lock of a file, which is made if missing and names the process while that holds it.

    The lock ends with the last process that has the file's descriptor, also by kill -9.

    Args:
        busy: called with the holder ("process 123"); the error to raise where another process holds the lock.
        wait_s: how many seconds to wait for that process first.

    Yields:
        the descriptor, for a child process that should hold the lock as well.

    Raises:
        OSError: if the file cannot be opened.
    """
    give_up = time.monotonic() + wait_s
    with open(path, "a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= give_up:
                    file.seek(0)
                    raise busy(file.read().strip() or "another process") from error
                time.sleep(min(1.0, wait_s))
        file.truncate(0)
        file.write(f"process {os.getpid()}\n")
        file.flush()
        yield file.fileno()
        file.truncate(0)


@contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def has_utf8_name(path: Path) -> bool:
    """False for a name of other bytes, such as Latin-1 from an old share: Python keeps these as lone surrogates."""
    return str(path).isascii() or not any("\ud800" <= letter <= "\udfff" for letter in str(path))


def printable_path(path: Path) -> str:
    """A path for people, whatever its bytes are."""
    return os.fsencode(path).decode(errors="backslashreplace")
