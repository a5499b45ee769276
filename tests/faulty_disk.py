"""A disk that fails at the k-th thing that a run asks of it: to open a file for writing, to write, sync or rename."""

from __future__ import annotations

import builtins
import errno
import os
from contextlib import ExitStack
from unittest.mock import patch

SHORT_WRITE = "short write"
FAULTS = ("ENOSPC", "EIO", "EACCES", SHORT_WRITE)
MODULES = ("medfed.core.files", "medfed.outputs.run_files")  # all files of a run are written there


class FaultyDisk(ExitStack):
    """Context manager in which the disk fails at the k-th operation (from 1; 0: never), and which counts operations.

    The fault is an error, such as "ENOSPC"; a "short write" writes half of the data before the disk is full.
    """

    def __init__(self, k: int = 0, fault: str = "ENOSPC") -> None:
        super().__init__()
        self.k, self.fault, self.n_operations = k, fault, 0

    def __enter__(self) -> FaultyDisk:
        super().__enter__()
        for name in ("fsync", "replace"):
            self.enter_context(patch.object(os, name, self._failing(getattr(os, name))))
        for module in MODULES:
            self.enter_context(patch(f"{module}.open", self._open, create=True))
        return self

    def _fails(self) -> bool:
        self.n_operations += 1
        return self.n_operations == self.k

    def _error(self) -> OSError:
        code = errno.ENOSPC if self.fault == SHORT_WRITE else getattr(errno, self.fault)
        return OSError(code, os.strerror(code))

    def _failing(self, operation):
        def call(*arguments):
            if self._fails():
                raise self._error()
            return operation(*arguments)

        return call

    def _open(self, path, mode="r", *more, **named):
        if not set(mode) & set("wax+"):
            return builtins.open(path, mode, *more, **named)
        if self._fails():
            raise self._error()
        return _File(builtins.open(path, mode, *more, **named), self)


class _File:
    """An open file whose `write` may fail."""

    def __init__(self, file, disk: FaultyDisk) -> None:
        self._file, self._disk = file, disk

    def write(self, data) -> int:
        if self._disk._fails():
            if self._disk.fault == SHORT_WRITE:
                self._file.write(data[: len(data) // 2])
            raise self._disk._error()
        return self._file.write(data)

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)
