"""Store for images that a method computes, such as restyled ones: a file without a name, a kept file, or memory.

These are images of patients. A file without a name cannot be opened by another program, and the operating system
removes it when the process ends, however it ends: after an error, Ctrl-C, `kill -9` or a crash.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from medfed.core.errors import UserError
from medfed.federation.settings import Cache

CHECKSUM_BYTES = 32  # SHA-256
MIN_FREE_BYTES = 2**30  # that stay free on the disk, for example for the checkpoints of the run
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a full disk, a used quota, a too large file


class ImageStore:
    """Stores images of one site as float16, each under a number (its position), up to a limit in bytes.

    The checksum of each stored image also covers the original from which it was computed: an image that was damaged on
    the disk, or whose original has changed, is never returned. With `cache.keep`, there is one file for each site and
    `content`, a checksum of all settings of a style transfer, and later runs use it again. The limit is then that of
    all files of the site: to make room, the store deletes the files that were opened the longest time ago and that no
    process uses.
    """

    def __init__(self, cache: Cache, site: str = "", content: str = "") -> None:
        self.max_bytes, self._site, self._is_full = cache.max_bytes, site, False
        self._records: dict[int, bytes] = {}  # in memory
        self._file: BinaryIO | None = None
        self._kept: Path | None = None  # path of the file, if it has one
        if cache.folder is not None and self.max_bytes > 0:
            self._file, self._kept = _open(cache, site, content)
        self._n_bytes = 0  # of the kept file, for which there is room besides the other kept files
        if self._file is not None and self._kept is not None:
            os.truncate(self._file.fileno(), min(os.fstat(self._file.fileno()).st_size, self.max_bytes))
            self._make_room(os.fstat(self._file.fileno()).st_size)

    def has_room(self, position: int, image: Tensor) -> bool:
        """Return whether `write` would store an image of this shape, after deleting kept files that no process uses.

        The limit counts all lower positions as used, so use the positions from 0 without gaps.
        """
        n_bytes = (position + 1) * _record_bytes(image)
        if self._is_full or n_bytes > self.max_bytes:
            return False
        return self._kept is None or n_bytes <= self._n_bytes or self._make_room(n_bytes)

    def read(self, position: int, original: Tensor) -> Tensor | None:
        """Return the stored image, (C, H, W) float16; None if it is missing, damaged, or made from another original."""
        n_bytes = _record_bytes(original)
        if (position + 1) * n_bytes > self.max_bytes:
            return None
        if self._file is None:
            record = self._records.get(position, b"")
        else:
            record = os.pread(self._file.fileno(), n_bytes, position * n_bytes)
        checksum, pixels = record[:CHECKSUM_BYTES], record[CHECKSUM_BYTES:]
        if not any(checksum) or checksum != _checksum(position, original, pixels):  # zeros: a gap in the file
            return None
        return torch.frombuffer(bytearray(pixels), dtype=torch.float16).reshape(original.shape)

    def write(self, position: int, original: Tensor, image: Tensor) -> None:
        """Store an image, (C, H, W) float16, if there is room. If the disk becomes full, warn, and store no more."""
        if not self.has_room(position, image):
            return
        pixels = image.contiguous().numpy().tobytes()
        record = _checksum(position, original, pixels) + pixels
        if self._file is None:
            self._records[position] = record
            return
        try:
            if shutil.disk_usage(self._file.fileno()).free < MIN_FREE_BYTES:
                raise OSError(errno.ENOSPC, f"less than {MIN_FREE_BYTES / 1e9:.1f} GB is free")
            os.pwrite(self._file.fileno(), record, position * len(record))
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._is_full = True
            warnings.warn(
                f"{self._site}: the disk of cache.folder is full ({error.strerror}), so further restyled images are "
                "computed again in each epoch; choose another folder, or free space",
                stacklevel=2,
            )

    def _make_room(self, n_bytes: int) -> bool:
        """Delete the oldest unused kept files of the site until this file may have `n_bytes`; False if it may not."""
        assert self._kept is not None
        sizes = dict(_other_files(self._kept))
        excess = n_bytes + sum(sizes.values()) - self.max_bytes
        for path, size in sizes.items():
            if excess <= 0:
                break
            excess -= size if _delete_unused(path) else 0
        self._n_bytes = n_bytes if excess <= 0 else self._n_bytes
        return excess <= 0


def _other_files(kept: Path) -> list[tuple[Path, int]]:
    """Return the path and the size in bytes of each other kept file of a site, the oldest first."""
    site = re.escape(kept.name.rpartition("-")[0])
    files = []
    for path in kept.parent.iterdir():
        if path != kept and re.fullmatch(site + r"-[0-9a-f]{16}\.images", path.name):
            with suppress(FileNotFoundError):  # another process has deleted it
                status = path.lstat()
                files.append((status.st_mtime_ns, path, status.st_size))
    return [(path, size) for _, path, size in sorted(files)]


def _delete_unused(path: Path) -> bool:
    """Delete a kept file; return False if a process uses it, or if it belongs to another user."""
    try:
        with open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _open(cache: Cache, site: str, content: str) -> tuple[BinaryIO, Path | None]:
    """Open the file of a store: without a name, or a kept one that no other process uses, with its path."""
    folder = Path(cache.folder or tempfile.gettempdir())
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if cache.keep:
            name = f"{site}-{hashlib.sha256(content.encode()).hexdigest()[:16]}.images"
            if (folder / name).is_symlink():
                raise UserError(
                    f"cache.folder: {folder / name} is a symbolic link; expected a file, so that images of patients "
                    "stay in this folder; remove the link"
                )
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            file = os.fdopen(os.open(folder / name, flags, 0o600), "r+b", buffering=0)
            os.fchmod(file.fileno(), 0o600)  # an older file may have other permissions
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.utime(file.fileno())  # now it is the file that was opened last
                return file, folder / name
            except BlockingIOError:  # another run with the same settings writes it; this run uses a file of its own
                file.close()
        return tempfile.TemporaryFile(dir=folder, buffering=0), None  # mode 0600
    except OSError as error:
        raise UserError(
            f"cache.folder: no file for the restyled images of {site} can be created in {folder} ({error.strerror}); "
            "choose another folder, or set cache.folder to null, which keeps the images in memory"
        ) from error


def _record_bytes(image: Tensor) -> int:
    """Bytes that one image takes in the file, with its checksum."""
    return CHECKSUM_BYTES + 2 * image.numel()


def _checksum(position: int, original: Tensor, pixels: bytes) -> bytes:
    """SHA-256 of a stored image, its position and the original from which it was computed."""
    checksum = hashlib.sha256(position.to_bytes(8, "little"))
    checksum.update(np.ascontiguousarray(original.numpy()).data)
    checksum.update(pixels)
    return checksum.digest()
