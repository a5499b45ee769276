"""Write files so that a crash leaves either the old or the new content, never a part; lock files between processes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from medfed.core.errors import UserError

LOCK_POLL_S = 0.05
# What `zipfile` raises for damaged or unusual files; NotImplementedError is a RuntimeError.
DAMAGED_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, OSError, EOFError)


def write_atomically(path: Path, *parts: bytes | str) -> None:
    """Write a file in one step: another process sees either the old file or the complete new one.

    The parts are written to a temporary file in the same folder, flushed to the disk, and renamed to `path`. If this
    fails (a full disk, a killed process), a file that existed before stays unchanged.

    Args:
        path: the file to create or to replace; its folder must exist.
        parts: the content, written one after another; text is encoded as UTF-8.

    Raises:
        OSError: if the file cannot be written.
    """
    stage_file(path, *parts)()


def stage_file(path: Path, *parts: bytes | str) -> Callable[[], None]:
    """Write the content of a file to a temporary file, and return a function that gives this file its final name.

    Several files can thus be written first, and then be renamed together. `write_atomically` does both steps at once.

    Args:
        path: the file to create or to replace; its folder must exist.
        parts: the content, written one after another; text is encoded as UTF-8.

    Returns:
        A function without arguments that flushes the temporary file to the disk and renames the file to `path`.

    Raises:
        OSError: if the temporary file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)  # of a killed process; if it is a link, another file would be written through it
    with _removed_on_failure(unfinished), open(unfinished, "xb") as file:
        for part in parts:
            file.write(part.encode(errors="backslashreplace") if isinstance(part, str) else part)

    def commit() -> None:
        with _removed_on_failure(unfinished):
            _sync(unfinished)
            os.replace(unfinished, path)
        _sync(path.parent)

    return commit


def sha256_digest(*parts: bytes) -> bytes:
    """Return the SHA-256 checksum (32 bytes) of data that are written to a file after this checksum.

    The file then begins with the checksum, and `read_with_checksum` verifies it. A safetensors file has no checksum of
    its own: in 500 tests in which one bit of such a file was flipped, loading the file found the error only once.

    Args:
        parts: the data in one or more parts, which are concatenated.
    """
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.digest()


def read_with_checksum(path: Path, advice: str) -> bytes:
    """Read a file that begins with the SHA-256 of its content, verify the content, and return it without the SHA-256.

    Args:
        path: a file that was written as `write_atomically(path, sha256_digest(data), data)`.
        advice: what the user can do if the file is damaged. The error message ends with this text.

    Raises:
        FileNotFoundError: if there is no such file.
        UserError: if it cannot be read, or if the content does not have the SHA-256 with which the file begins.
    """
    try:
        data = read_bounded(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path}: the file cannot be read ({error.strerror}); {advice}") from error
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise UserError(f"{path}: the file is damaged: its content does not match its checksum; {advice}")
    return data[32:]


def checked_json(content: Mapping[str, Any]) -> bytes:
    """Return JSON values as bytes, with the SHA-256 of all other values under the key "sha256".

    Args:
        content: JSON values by name, without the name "sha256".
    """
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return (json.dumps({**content, "sha256": digest}, indent=2, sort_keys=True) + "\n").encode()


def read_checked_json(data: bytes) -> dict[str, Any]:
    """Return the JSON values that `checked_json` converted to bytes, without their checksum.

    Args:
        data: the bytes.

    Raises:
        ValueError: if a byte was changed.
        RecursionError: if changed bytes are too deeply nested.
    """
    content = json.loads(data.decode())
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    content.pop("sha256", None)
    if checked_json(content) != data:
        raise ValueError("its content does not match its checksum")
    return content


def read_text(path: Path, max_bytes: int) -> str:
    """Read a text file in UTF-8 of a user. A pipe or a device, which may never end, is refused.

    Args:
        path: the file. A byte order mark at its beginning is left out.
        max_bytes: the largest size of the file, in bytes.

    Raises:
        OSError: if the file cannot be read (`read_bounded`).
        UnicodeDecodeError: if the file is not UTF-8 text.
    """
    return read_bounded(path, max_bytes).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def read_bounded(path: Path, max_bytes: int | None = None) -> bytes:
    """Read a file of a user. A pipe or a device, which may never end, is refused.

    Args:
        path: the file.
        max_bytes: the largest size of the file, in bytes; None reads a file of any size.

    Raises:
        OSError: if there is no such file, if it cannot be read, is no regular file or is larger. Its `strerror` is a
            clause for an error message.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # to open a pipe would otherwise wait for a writer
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
        content = file.read(-1 if max_bytes is None else max_bytes + 1)
    if max_bytes is not None and len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes", str(path))
    return content


@contextmanager
def exclusive_lock(path: Path, busy: Callable[[str], UserError], wait_s: float = 0.0) -> Iterator[int]:
    """Context manager that holds an exclusive lock on a file, so that two processes never use one folder together.

    The operating system releases the lock when the last process that has the file open ends, even after `kill -9`.

    Args:
        path: the lock file; it is created if it does not exist. While the lock is held, the file contains the text
            "process N", where N is the number of the process that holds it.
        busy: function that is called if another process still holds the lock after `wait_s` seconds. The function
            receives the text in the lock file, and returns the error to raise.
        wait_s: how many seconds to wait for the lock before `busy` is called; 0 does not wait.

    Yields:
        The file descriptor of the lock file. A child process that inherits it holds the lock too.

    Raises:
        UserError: the error from `busy`, if another process still holds the lock after `wait_s` seconds.
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
                time.sleep(LOCK_POLL_S)
        file.truncate(0)
        file.write(f"process {os.getpid()}\n")
        file.flush()
        yield file.fileno()
        file.truncate(0)


@contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    """Context manager that deletes `path` if the block raises an exception."""
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    """Wait until the content of a file, or the list of files of a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def has_utf8_name(path: Path) -> bool:
    """Return whether a path is valid UTF-8, so that it can be printed and written to a table.

    A path is not valid UTF-8 if a name in it was stored in another encoding, such as Latin-1 on an old network drive.
    Python represents the bytes of such a name as lone surrogates (U+D800 to U+DFFF).
    """
    return str(path).isascii() or not any("\ud800" <= character <= "\udfff" for character in str(path))


def note_absolute(path: Path) -> str:
    """Return " (medfed looked for ABSOLUTE_PATH)" for the message that a path does not exist; "" if it is absolute.

    Args:
        path: the path as the user wrote it; a relative one starts at the current folder.
    """
    return "" if path.is_absolute() else f" (medfed looked for {path.absolute()})"


def printable_path(path: Path) -> str:
    """Return a path as text that can always be printed. Bytes that are not valid UTF-8 appear as `\\xNN`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def check_checksums(file: IO[bytes], name: str, advice: str) -> None:
    """Compare the content of a file of weights with the CRC-32 checksums that PyTorch stores in it, and never reads.

    Args:
        file: the opened file.
        name: the name of the file, for error messages.
        advice: what to do with a damaged file, for error messages.

    Raises:
        UserError: if the content does not fit its checksums, if it is compressed (PyTorch never compresses), or if the
            file is not in PyTorch's format (a zip).
    """
    try:
        with zipfile.ZipFile(file) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise UserError(
                    f"{name} is compressed, and could fill the memory; PyTorch writes files without "
                    "compression; write it again with torch.save"
                )
            damaged = archive.testzip()
    except DAMAGED_ZIP as error:
        raise UserError(f"{name} is damaged, or is not a file of PyTorch ({error}); {advice}") from error
    if damaged:
        raise UserError(f"{name} is damaged: '{damaged}' in it does not fit its checksum; {advice}")
