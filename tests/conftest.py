"""Fixtures: toy federations (`medfed.testing`), and a config for a phantom that trains in a second or two.

Nothing heavy is imported with this module: pytest-xdist reads it in the process that starts the workers, which would
otherwise wait until that process has imported PyTorch and MONAI.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # pytest-xdist starts as many processes as there are cores

import csv
import fcntl
import gc
import logging
import shutil
import socket
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import nibabel as nib
import numpy as np
import pytest

if TYPE_CHECKING:
    from medfed.federation.settings import Federation
    from medfed.methods.fedavg import FedAvg
    from medfed.testing.toy import ToySegmentation

pytest_plugins = ["hardening_table"]

logging.getLogger().addHandler(logging.NullHandler())  # warnings of libraries are not printed among a program's errors
warnings.filterwarnings("ignore", message=".*always_return_as_numpy.*", category=FutureWarning)


class ReversedFolder(pytest.Dir):
    """A folder of tests whose files and folders are collected from the last to the first."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return reversed(list(super().collect()))


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Let every second worker begin with the last file, so that no two workers compile the same files of a new clone.

    Each worker finds half of the files compiled by another one.
    """
    is_reversed = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579"
    return ReversedFolder.from_parent(parent, path=path) if is_reversed else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by folder and file, because all workers must have them in the same order."""
    items.sort(key=lambda item: item.path)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while the tests are collected, and afterwards only among the objects that the tests create.

    PyTorch, MONAI and the tests themselves are some million objects: looking at all of them takes half a second.
    Little garbage is in cycles, so that it is collected less often than by default.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _draw_no_figures() -> None:
    """Before any run of a fixture: `run_figures` replaces the function that draws the figures of a run."""
    import run_figures  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def _own_secrets(tmp_path_factory) -> None:
    """The secret of the hospitals of the tests is not in the folder of the user who runs the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session", autouse=True)
def _wait_for_no_disk() -> Iterator[None]:
    """A test that kills processes needs no file on the disk, which outlives a power cut, only in the system's memory.

    Tests of failing disks replace `os.fsync` themselves.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True)
def _draw_figures(request) -> Iterator[None]:
    from run_figures import drawn_figures

    if "figures" not in request.keywords:
        yield
        return
    with drawn_figures():
        yield


@pytest.fixture
def quiet() -> Iterator[None]:
    """Warnings of MONAI are not logged."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def unpainted_figures(monkeypatch, request) -> None:
    """Figures have their size, axes and labels, but nothing is painted, which takes most of the time of a figure.

    Tests with the mark `figures` look at them.
    """
    if "figures" in request.keywords:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    monkeypatch.setattr(FigureCanvasAgg, "draw", FigureCanvasAgg.get_renderer)  # an empty image of the right size


@pytest.fixture
def toy() -> ToySegmentation:
    from medfed.testing.toy import ToySegmentation

    return ToySegmentation()


@pytest.fixture
def fedavg() -> FedAvg:
    from medfed.methods.fedavg import FedAvg

    return FedAvg()


@pytest.fixture
def two_rounds() -> Federation:
    from medfed.federation.settings import Federation

    return Federation(rounds=2)


@pytest.fixture(scope="session")
def tiny_phantom(tmp_path_factory) -> Path:
    """Six synthetic sites with four patients each, in the published folder layout, with small images.

    The first worker that needs the phantom makes it, for all workers.
    """
    from medfed.phantoms import ProstatePhantom

    own = tmp_path_factory.getbasetemp()
    root = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "data" / "prostate_phantom"
    root.parent.mkdir(exist_ok=True)
    with open(root.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not root.exists():
            ProstatePhantom(root=str(root), cases_per_site=4, matrix=40).ensure_available()
    return root


@pytest.fixture(scope="session")
def small_phantom(tmp_path_factory, tiny_phantom) -> Path:
    """Three sites of the tiny phantom, BMC, HK and UCL, with six slices, a third of each patient's slices."""
    return slices_of(tiny_phantom, tmp_path_factory.mktemp("small"), ("BMC", "HK", "UCL"), slice(4, 10))


def slices_of(phantom: Path, folder: Path, sites: tuple[str, ...], slices: slice) -> Path:
    """A copy of some sites of a phantom with some slices of each volume."""
    root = folder / "prostate_phantom"
    for site in sites:
        shutil.copytree(phantom / site, root / site)
    for path in root.glob("*/*"):
        image = nib.load(path)
        nib.save(nib.Nifti1Image(np.asarray(image.dataobj)[..., slices], image.affine), path)
    shutil.copy(phantom / "PHANTOM.json", root)
    return root


UNET = "{name: unet, features: [4, 4, 4, 8, 8, 4]}"
SMALL_UNET = "{name: medfed.testing.small_unet.SmallUNet}"  # a third of the time of a training step


def tiny_yaml(root: Path, network: str = UNET) -> str:
    """A config that trains in a second or two on three sites of the tiny phantom."""
    return f"""
seed: 3
data: {{name: prostate, root: {root}, image_size: 32, sites: [BMC, HK, UCL], validation_ratio: 0.2}}
network: {network}
method: {{name: elcfs, alpha: 0.1, min_patients: 1}}
training: {{batch_size: 16, learning_rate: 0.01}}
federation: {{unseen_site: UCL, rounds: 2}}
"""


@pytest.fixture
def tiny_config(tmp_path, tiny_phantom) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(tiny_yaml(tiny_phantom))
    return path


def small_yaml(root: Path) -> str:
    """The tiny config with a smaller network, for tests that export no bundle and do not look at the U-Net."""
    return tiny_yaml(root, SMALL_UNET)


@pytest.fixture
def small_config(tmp_path, small_phantom) -> Path:
    """A config that trains in a fraction of a second: few slices, and a small network."""
    path = tmp_path / "small.yaml"
    path.write_text(small_yaml(small_phantom))
    return path


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def free_port() -> int:
    """Return a free port whose next port is also free."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue
