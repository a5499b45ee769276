"""R10: a flipped bit in any file of a run or in an image is found."""

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import kills
import nibabel as nib
import pytest
import safetensors
import torch
import untrained_runs
from damaged_files import flipped
from safetensors.torch import load, save

from medfed.core.errors import UserError
from medfed.datasets.collections.prostate import Prostate
from medfed.datasets.splits import split
from medfed.experiments.resume import check_data
from medfed.federation.encoding import InvalidMessage
from medfed.federation.message import State
from medfed.images.reading import read_image
from medfed.outputs.run_folder import RunFolder
from medfed.testing.toy import ToySegmentation

pytestmark = pytest.mark.hardening


def n_found(path: Path, read: Callable[[], object], n: int, rng: random.Random, errors=(UserError,)) -> int:
    """Flip a bit of a file n times; return how often reading it raises one of the errors."""
    data, found = path.read_bytes(), 0
    read()
    for _ in range(n):
        path.write_bytes(flipped(data, rng))
        try:
            read()
        except errors:
            found += 1
    path.write_bytes(data)
    return found


def n_found_without_checks(data: bytes, path: Path, n: int, rng) -> int:
    """A control: the format's own checks, without a checksum or TLS."""
    path.write_bytes(data)
    return n_found(path, lambda: State.from_bytes(path.read_bytes()), n, rng, (InvalidMessage,))


def spread(n: int, paths: list[Path]) -> list[tuple[Path, int]]:
    """Divide n flips among files."""
    return [(path, n // len(paths) + (index < n % len(paths))) for index, path in enumerate(paths)]


class WrongVoxelsError(Exception):
    """A damaged image was read without an error, with other voxels."""


def test_r10_images_when_they_are_read(measurement, small_phantom, tmp_path):
    """A bit of a gzip header, such as one of the time of compression, may be without effect."""
    path = Path(shutil.copy(next(small_phantom.glob("HK/*.nii.gz")), tmp_path))
    original = read_image(path, 1, [])[0]

    def compare(image: torch.Tensor) -> None:
        if not torch.equal(image, original):
            raise WrongVoxelsError

    def read() -> None:
        with suppress(UserError):
            compare(read_image(path, 1, [])[0])

    def read_with_nibabel() -> None:
        try:
            image = torch.from_numpy(nib.load(path).get_fdata(dtype="float32"))
        except Exception:
            return
        compare(image)

    n, rng = measurement.count(300, 20), measurement.rng("images")
    n_wrong = n_found(path, read, n, rng, (WrongVoxelsError,))
    n_control = n_found(path, read_with_nibabel, n, rng, (WrongVoxelsError,))
    measurement.report(
        "one flipped bit in a .nii.gz image, when the image is read",
        (f"0 of {n} read with other voxels", f"{n_wrong} of {n}", n_wrong == 0),
        (f"nibabel alone {n_control} of {n}", n_control > 0),
    )


def test_r10_images_of_a_run_that_is_resumed(measurement, small_phantom, tmp_path):
    shutil.copytree(small_phantom, tmp_path / "data")
    (tmp_path / "run").mkdir()
    dataset = Prostate(root=str(tmp_path / "data"), image_size=32)
    splits = {site: split(dataset.cases(site), 0, 0.2, 0.2) for site in ("BMC", "HK")}

    def check() -> None:
        check_data(RunFolder(tmp_path / "run"), dataset, splits, [])

    def check_without_record() -> None:
        (tmp_path / "run" / "data.json").unlink()
        check()

    check()
    paths = [path for site in splits for path in sorted((tmp_path / "data" / site).iterdir())]
    n, rng = measurement.count(100, 20), measurement.rng("resumed")
    found = sum(n_found(path, check, k, rng) for path, k in spread(n, paths) if k)
    control = sum(n_found(path, check_without_record, k, rng) for path, k in spread(n, paths) if k)
    measurement.report(
        "one flipped bit in an image or mask since the run was started",
        (f"{n} of {n} found", f"{found} of {n}", found == n),
        (f"without data.json {control} of {n}", control < n),
    )


def test_r10_files_of_a_run(measurement, tmp_path):
    (tmp_path / "run").mkdir()
    folder = untrained_runs.work(tmp_path / "run")
    paths = [tmp_path / "run" / name for name in untrained_runs.FILES]
    n, rng = measurement.count(400, 2 * len(paths)), measurement.rng("results")
    found = sum(n_found(path, folder.check, k, rng) for path, k in spread(n, paths))
    (model := tmp_path / "model.safetensors").write_bytes(save({"w": torch.randn(10_000)}))
    some = measurement.count(100, 20)
    control = n_found(model, lambda: load(model.read_bytes()), some, rng, (safetensors.SafetensorError, KeyError))
    measurement.report(
        f"one flipped bit in a file of a finished run ({len(paths)} kinds of files)",
        (f"{n} of {n} found", f"{found} of {n}", found == n),
        (f"safetensors without a checksum {control} of {some}", control < some),
    )


def test_r10_checkpoints(measurement, tmp_path):
    kills.work(tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    (state_path,) = (tmp_path / "run" / "states").glob(f"*{kills.SETTINGS.rounds}.state")
    site_path = next((tmp_path / "run" / "sites" / "north").glob(f"*{kills.SETTINGS.rounds}.site"))
    method = kills.METHODS["ELCFS (amplitudes)"]
    engine = ToySegmentation(image_side=16, n_images=4).engine(method, folder=tmp_path / "run" / "sites")
    n, rng = measurement.count(200, 20), measurement.rng("checkpoints")
    found = n_found(state_path, lambda: folder.load_state(kills.SETTINGS.rounds), n, rng)
    found += n_found(site_path, lambda: engine.restore({"north": kills.SETTINGS.rounds}), n, rng)
    plain = folder.load_state(kills.SETTINGS.rounds).to_bytes()
    control = n_found_without_checks(plain, tmp_path / "plain", n, rng)
    measurement.report(
        "one flipped bit in a checkpoint of the coordinator or of a site",
        (f"{2 * n} of {2 * n} found", f"{found} of {2 * n}", found == 2 * n),
        (f"the same bytes without their checksum {control} of {n}", control < n),
    )
