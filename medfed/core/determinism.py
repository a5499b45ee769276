"""What PyTorch must be told so that the same work gives the same bits."""

from __future__ import annotations

import os

import torch


def set_deterministic(threads: int | None = None) -> None:
    """Ask for deterministic algorithms, and for so many threads: sums in other parts are sums with other rounding."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS gives other bits each time
    torch.use_deterministic_algorithms(True, warn_only=True)
    if threads:
        torch.set_num_threads(threads)
