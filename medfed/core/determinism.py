"""PyTorch settings that make two runs of the same computation bit-identical."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def set_deterministic(threads: int) -> None:
    """Make PyTorch use deterministic algorithms and a fixed number of CPU threads, in the whole process.

    The number of threads matters because a sum that is split among another number of threads is rounded differently.
    The number is a setting of the config and not the number of cores, so that every machine splits a sum in the same
    way. If an operation has no deterministic algorithm, PyTorch warns and runs the operation anyway.

    Args:
        threads: number of CPU threads, at least 1 (`training.threads`).
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, cuBLAS results differ from run to run
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(threads)


@contextmanager
def cpu_threads(threads: int) -> Iterator[None]:
    """Context manager, also a decorator, that sets PyTorch's number of CPU threads and restores it afterwards.

    Many operations on small tensors, as in reading images, are fastest with one thread: several threads wait for each
    other after each operation, and ten times as long if another program uses the cores.

    Args:
        threads: number of CPU threads, at least 1.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """Context manager that calls `set_deterministic` and restores the number of CPU threads afterwards.

    PyTorch's deterministic algorithms stay switched on afterwards.

    Args:
        threads: number of CPU threads, at least 1 (`training.threads`).
    """
    with cpu_threads(threads):
        set_deterministic(threads)
        yield


def allow_faster_algorithms() -> None:
    """Let PyTorch use GPU algorithms whose results differ from run to run, until `set_deterministic` is called.

    cuDNN then also times its convolution algorithms when a shape occurs for the first time, and uses the fastest.
    """
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = True
