"""PyTorch settings that make two runs of the same computation bit-identical."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def set_deterministic(threads: int) -> None:
    """Make PyTorch use deterministic algorithms and a fixed number of CPU threads, in the whole process.

    A sum that is split among another number of threads is rounded differently, so the number is a setting.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, cuBLAS results differ from run to run
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(threads)


@contextmanager
def cpu_threads(threads: int) -> Iterator[None]:
    """Set PyTorch's number of CPU threads, and restore it afterwards; also a decorator.

    Operations on small tensors, as in reading images, are fastest with one thread.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """Call `set_deterministic`, and restore the number of threads afterwards; the algorithms stay deterministic."""
    with cpu_threads(threads):
        set_deterministic(threads)
        yield


def allow_faster_algorithms() -> None:
    """Let PyTorch use GPU algorithms whose results differ from run to run, until `set_deterministic`."""
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = True
