"""The software and hardware on which a result depends, in addition to the config and the data."""

from __future__ import annotations

import platform
from importlib.metadata import version

import torch

from medfed import __version__

PACKAGES = ("torch", "monai", "numpy", "scipy", "nibabel", "SimpleITK", "safetensors")


def versions() -> dict[str, str]:
    """Versions of Python, medfed and the libraries that can change a result."""
    return {"python": platform.python_version(), "medfed": __version__, **{name: version(name) for name in PACKAGES}}


def environment() -> dict[str, object]:
    """The content of `environment.json`. Results are bit-identical only on one machine with one number of threads."""
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
