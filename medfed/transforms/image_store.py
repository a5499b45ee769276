"""Store for images that a method computes, such as restyled ones: a file without a name, or memory.

These are images of patients. A file without a name cannot be opened by another program, and the operating system
removes it when the process ends, however it ends: after an error, Ctrl-C, `kill -9` or a crash.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import warnings
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
    the disk, or whose original has changed, is never returned.
    """

    def __init__(self, cache: Cache, site: str = "") -> None:
        self.max_bytes, self._site, self._is_full = cache.max_bytes, site, False
        self._records: dict[int, bytes] = {}  # in memory
        self._file: BinaryIO | None = None
        if cache.folder is not None and self.max_bytes > 0:
            self._file = _open(Path(cache.folder or tempfile.gettempdir()), site)

    def has_room(self, position: int, image: Tensor) -> bool:
        """Return whether `write` would store an image of this shape; all lower positions count as used."""
        return not self._is_full and (position + 1) * _record_bytes(image) <= self.max_bytes

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


def _open(folder: Path, site: str) -> BinaryIO:
    """Open a file without a name."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder, buffering=0)  # mode 0600
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
