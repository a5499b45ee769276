"""Write files so that a crash leaves either the old or the new content, never a part; lock files between processes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from medfed.core.errors import UserError

LOCK_POLL_S = 0.05
# What `zipfile` raises for damaged or unusual files; NotImplementedError is a RuntimeError.
DAMAGED_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, OSError, EOFError, ValueError)


def write_atomically(path: Path, *parts: bytes | str) -> None:
    """Write text (UTF-8) or bytes in one step: another process sees either the old file or the complete new one.

    If this fails (a full disk, a killed process), a file that existed before stays unchanged.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is a folder, a device or a pipe", str(path))
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)  # of a killed process; if it is a link, another file would be written through it
    with _removed_on_failure(unfinished), open(unfinished, "xb") as file:
        for part in parts:
            file.write(part.encode(errors="backslashreplace") if isinstance(part, str) else part)
    with _removed_on_failure(unfinished):
        _sync(unfinished)
        os.replace(unfinished, path)
    _sync(path.parent)


def sha256_digest(*parts: bytes) -> bytes:
    """The SHA-256 (32 bytes) written in front of data, because a safetensors file has no checksum of its own."""
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.digest()


def read_with_checksum(path: Path, advice: str) -> bytes:
    """Read a file that begins with the SHA-256 of the rest; UserError, which ends with `advice`, if they differ."""
    try:
        data = read_bounded(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path}: the file cannot be read ({error.strerror}); {advice}") from error
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise UserError(f"{path}: the file is damaged: its content does not match its checksum; {advice}")
    return data[32:]


def read_text(path: Path, max_bytes: int) -> str:
    """Read a user's file in UTF-8, without its byte order mark; UnicodeDecodeError if it is no such text."""
    return read_bounded(path, max_bytes).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def read_bounded(path: Path, max_bytes: int | None = None) -> bytes:
    """Read a user's file, no pipe or device, of at most `max_bytes`; the `strerror` of an OSError is a clause."""
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
    """Hold an exclusive lock on a file, which contains "process N" meanwhile, so that no two processes use one folder.

    The system releases it when the last process that has the file open ends, also a child with the yielded descriptor.
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
    """Whether a path can be printed: a name in another encoding, as on an old network drive, has lone surrogates."""
    return str(path).isascii() or not any("\ud800" <= character <= "\udfff" for character in str(path))


def note_absolute(path: Path) -> str:
    """Return " (medfed looked for ABSOLUTE_PATH)" for a path that does not exist; "" if it is absolute."""
    return "" if path.is_absolute() else f" (medfed looked for {path.absolute()})"


def printable_path(path: Path) -> str:
    r"""Bytes that are not valid UTF-8 appear as `\xNN`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def check_checksums(file: IO[bytes], name: str, advice: str) -> None:
    """UserError if a file of weights is no zip file of PyTorch, is compressed, or differs from its CRC-32."""
    try:
        with zipfile.ZipFile(file) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise UserError(
                    f"{name} is compressed, and could fill the memory; PyTorch writes files without "
                    "compression; write it again with torch.save"
                )
            damaged = archive.testzip()
    except UserError:
        raise
    except DAMAGED_ZIP as error:
        raise UserError(f"{name} is damaged, or is not a file of PyTorch ({error}); {advice}") from error
    if damaged:
        raise UserError(f"{name} is damaged: '{damaged}' in it does not fit its checksum; {advice}")
