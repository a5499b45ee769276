"""PyTorch settings that make two runs of the same computation bit-identical."""

from __future__ import annotations

import os

import torch


def set_deterministic(threads: int | None = None) -> None:
    """Make PyTorch use deterministic algorithms, and a fixed number of CPU threads.

    The number of threads matters because a sum that is split among another number of threads is rounded differently. If
    an operation has no deterministic algorithm, PyTorch warns and runs it anyway.

    Args:
        threads: number of CPU threads, at least 1; None or 0 keeps the current number.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, cuBLAS results differ from run to run
    torch.use_deterministic_algorithms(True, warn_only=True)
    if threads:
        torch.set_num_threads(threads)
