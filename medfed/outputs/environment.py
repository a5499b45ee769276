"""The software and hardware that a result depends on besides config and data."""

from __future__ import annotations

import platform
from importlib.metadata import version

import torch

PACKAGES = ("medfed", "torch", "monai", "numpy", "scipy", "nibabel", "SimpleITK", "safetensors")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change a result, by name."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def environment() -> dict[str, object]:
    """Return the content of `environment.json`: versions, platform, processor, number of threads and GPU.

    Results are bit-identical only on the same machine with the same number of threads.
    """
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
