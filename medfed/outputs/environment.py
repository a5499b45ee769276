"""What a result depends on besides config and data: versions, processor, threads."""

from __future__ import annotations

import platform
from importlib.metadata import version

import torch

PACKAGES = ("medfed", "torch", "monai", "numpy", "scipy", "nibabel", "SimpleITK", "safetensors")


def versions() -> dict[str, str]:
    """Versions of the packages that decide a result."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def environment() -> dict[str, object]:
    """For `environment.json`. Equal bits are promised on one machine with one number of threads."""
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
