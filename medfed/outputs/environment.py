"""The software and hardware on which a result depends, in addition to the config and the data."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch

from medfed import __version__

NOT_INSTALLED = "not installed"
PACKAGES = ("torch", "monai", "numpy", "scipy", "nibabel", "SimpleITK", "safetensors")


def versions() -> dict[str, str]:
    """Versions of Python, medfed and the libraries that can change a result; "not installed" for a missing library."""
    return {"python": platform.python_version(), "medfed": __version__, **{name: _version(name) for name in PACKAGES}}


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # only some files need it
        return NOT_INSTALLED


def environment() -> dict[str, object]:
    """The content of `environment.json`. Results are bit-identical only on one machine with one number of threads."""
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
