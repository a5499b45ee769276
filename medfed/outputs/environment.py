"""The software and hardware on which a result depends, in addition to the config and the data."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version

import torch

PACKAGES = ("medfed", "torch", "monai", "numpy", "scipy", "nibabel", "SimpleITK", "safetensors")


def versions() -> dict[str, str]:
    """Return the installed versions of Python, medfed and the libraries that can change a result, by package name."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


@cache
def _version(package: str) -> str:
    """Return the installed version of a package; `importlib.metadata` reads it from a file each time."""
    return version(package)


def environment() -> dict[str, object]:
    """Return the content of `environment.json`: the software and hardware that a run uses.

    Results are bit-identical only on the same machine with the same number of threads (`training.threads`).

    Returns:
        A dict with "versions" (a version for each package name), "platform" (the operating system), "processor" (the
        CPU instruction set that PyTorch uses), "threads" (the number of PyTorch's threads) and "cuda" (the name of the
        GPU; None without a GPU).
    """
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
