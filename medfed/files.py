"""Writing files so that a crash leaves the old content or the new, never half of either."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from medfed.errors import UserError


def write_atomically(path: Path, *parts: bytes | str) -> None:
    """Write beside the target, flush to the disk, then rename over it.

    Whatever fails (a full disk, a kill), the file that was there before is still whole.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with open(unfinished, "wb") as file:
            for part in parts:
                file.write(part.encode() if isinstance(part, str) else part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_sealed(path: Path, *parts: bytes) -> None:
    """Write with the SHA-256 in front: safetensors files carry no checksum, and 499 of 500 flipped bits go unseen."""
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    write_atomically(path, checksum.digest(), *parts)


def read_sealed(path: Path, advice: str) -> bytes:
    """What `write_sealed` wrote; raises a UserError that ends with the advice if a single bit differs."""
    data = path.read_bytes()
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise UserError(f"{path}: its checksum does not fit, so it was damaged after it was written; {advice}")
    return data[32:]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
