"""The software and hardware on which a result depends, in addition to the config and the data."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch

from medfed import __version__
from medfed.core.errors import UserError
from medfed.outputs.manifest import RUN_FORMAT

NOT_INSTALLED = "not installed"
PACKAGES = ("medfed", "torch", "monai", "numpy", "scipy", "nibabel", "SimpleITK", "safetensors")


def versions() -> dict[str, str]:
    """Return the versions of Python, medfed and the libraries that can change a result, by package name.

    The version of a library that is not installed is the text "not installed". A source tree that is not installed has
    the version that medfed's code states.
    """
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


@cache
def _version(package: str) -> str:
    """Return the installed version of a package; `importlib.metadata` reads it from a file each time."""
    try:
        return version(package)
    except PackageNotFoundError:  # a source tree on PYTHONPATH, or a package that only some files need
        return __version__ if package == "medfed" else NOT_INSTALLED


def installed_version(package: str) -> str:
    """Return the installed version of a package that a file must name, such as the requirements of a bundle.

    Args:
        package: the name under which pip installs the package, for example "pytorch-ignite".

    Raises:
        UserError: if the package is not installed.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        raise UserError(
            f"the package {package} is not installed; expected it, because the bundle states its version; "
            f"pip install {package}"
        ) from None


def environment() -> dict[str, object]:
    """Return the content of `environment.json`: the software and hardware that a run uses.

    Results are bit-identical only on the same machine with the same number of threads (`training.threads`).

    Returns:
        A dict with "run_format" (the layout of the run's folder), "versions" (a version for each package name),
        "platform" (the operating system), "processor" (the CPU instruction set that PyTorch uses), "threads" (the
        number of PyTorch's threads) and "cuda" (the name of the GPU; None without a GPU).
    """
    return {
        "run_format": RUN_FORMAT,
        "versions": versions(),
        "platform": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
