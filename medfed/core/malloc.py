"""Keep the memory that a training step frees, so that the next step need not ask the kernel for it again."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # glibc's numbers for mallopt
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell glibc's malloc to hand no freed memory back while the process lives; whether it listened.

    By default every large tensor is a mapping of its own, and each training step faults all its pages in again: with
    the small U-Net, half a million page faults a round, a sixth of its time. A process then holds its peak until it
    ends, which a training process does anyway. CUDA's memory, and systems without glibc, are not touched.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
