"""Keep the memory that a training step frees in the process, so that the next step can reuse it quickly."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # parameter numbers of glibc's mallopt
_NEVER = 2**31 - 1  # the largest threshold: memory is never returned
_LARGE_BYTES = 2**25  # the largest M_MMAP_THRESHOLD that glibc accepts
_DEFAULT_MMAP_MAX = 65536

_is_kept = False  # whether `keep_freed_memory` was applied in this process


def keep_freed_memory() -> bool:
    """Keep freed memory in the process instead of returning it; return False on a system without glibc.

    By default, glibc's malloc gets the memory of every large tensor from the operating system and returns it
    afterwards. With the small U-Net, the page faults of a round, half a million, take a sixth of its time. The process
    then keeps its peak memory until it ends, except in `return_large_blocks`. CUDA memory is not affected.
    """
    global _is_kept
    mallopt = _mallopt()
    settings = (_MMAP_THRESHOLD, _LARGE_BYTES), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER)
    _is_kept = mallopt is not None and all(mallopt(*setting) for setting in settings)
    return _is_kept


@contextmanager
def return_large_blocks() -> Iterator[None]:
    """Return new blocks of 32 MiB or more to the operating system when they are freed, for reading large images.

    In kept memory, small blocks divide the space between the large ones into parts that are too small for the next
    image, so the process would grow with the number of images. It applies to all threads.
    """
    mallopt = _mallopt() if _is_kept else None
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
    try:
        yield
    finally:
        mallopt(_MMAP_MAX, 0)


@cache
def _mallopt() -> Callable[[int, int], int] | None:
    """glibc's function that changes a parameter of malloc; None on a system without glibc."""
    try:
        return ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return None
