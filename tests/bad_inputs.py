"""Users whose images, masks or configs are wrong, what is wrong, and what the error says about it."""

import csv
import gzip
import json
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from conftest import SMALL_UNET, small_yaml
from PIL import Image

from medfed import data, evaluate, train

MAX_S = 5.0  # CPU time until a mistake is reported
WHERE = re.compile(r"\S+\.(yaml|yml|nii|nii\.gz|png)\b|\b[a-z_]+\.[a-z_]+\b|--[a-z]|/\S+: ")  # a file, a key or a flag
NEXT = re.compile(r"; |expected |Did you mean|must |choose |Known: ")


@dataclass
class User:
    """A user with a folder of images to damage, a config, and the programs. `error_line` is the last line on stderr."""

    place: Path
    capsys: pytest.CaptureFixture
    error_line: str = ""

    @property
    def config(self) -> Path:
        return self.place / "tiny.yaml"

    @property
    def out(self) -> Path:
        return self.place / "run"

    def replace(self, old: str, new: str) -> None:
        text = self.config.read_text(encoding="utf-8")
        assert old in text
        self.config.write_text(text.replace(old, new), encoding="utf-8")

    def image(self, site: str = "BMC", index: int = 0) -> Path:
        return sorted(p for p in (self.place / "data" / site).iterdir() if "eg" not in p.name)[index]

    def mask(self, site: str = "BMC", index: int = 0) -> Path:
        return sorted(p for p in (self.place / "data" / site).iterdir() if "eg" in p.name)[index]

    def train(self, *more: str) -> int:
        return train.main([str(self.config), "--out", str(self.out), "--quiet", "--device", "cpu", *more])

    def evaluate(self, *more: str) -> int:
        always = ("--leave-one-site-out", "--out", str(self.out), "--quiet", "--device", "cpu")
        return evaluate.main([str(self.config), *always, *more])

    def check(self) -> tuple[int, str]:
        """Exit code and report of `python -m medfed.data check CONFIG`, whose sentences are in one line here."""
        self.capsys.readouterr()
        code = data.main(["check", str(self.config), "--quiet"])
        output = self.capsys.readouterr()
        assert output.err == ""
        return code, " ".join(output.out.split())

    def refused(self, code: int, *words: str, with_code: int = 2) -> None:
        """The program left with one line on stderr that has these words, and trained nothing."""
        lines = self.capsys.readouterr().err.splitlines()
        assert code == with_code and len(lines) == 1 and lines[0].startswith("medfed."), lines
        assert all(word in lines[0] for word in words), lines[0]
        self.error_line = lines[0]

    def refused_before_training(self, *words: str, more: tuple[str, ...] = ()) -> None:
        """The error also names a file, key or flag, and what to do; it comes soon, and nothing is written."""
        start = time.thread_time()
        self.refused(self.train(*more), *words)
        assert time.thread_time() - start < MAX_S
        assert WHERE.search(self.error_line.partition(": ")[2]) and NEXT.search(self.error_line)
        written = [path.name for path in self.place.rglob("*") if path.is_file() and "data" not in path.parts]
        assert set(written) <= {"tiny.yaml", "other.yml", "run", "run.lock"}

    def goes_on(self, *notices: str, more: tuple[str, ...] = ("--set", "federation.rounds=1")) -> dict:
        """The run is done, and its summary tells each of these in a notice; the summary."""
        assert self.train(*more) == 0, self.capsys.readouterr().err
        summary = json.loads((self.out / "summary.json").read_text())
        for notice in notices:
            assert sum(notice in output for output in summary["notices"]) == 1, summary["notices"]
        return summary

    def rows(self, name: str) -> list[dict[str, str]]:
        with open(self.out / name, newline="") as file:
            return list(csv.DictReader(file))


def spoil(path: Path, voxels=lambda array: array, affine=lambda matrix: matrix) -> None:
    """Write a NIfTI file again with other voxels or in another place."""
    image = nib.load(path)
    nib.save(nib.Nifti1Image(voxels(np.asarray(image.dataobj)), affine(image.affine)), path)


def make_user(place: Path, phantom: Path, capsys: pytest.CaptureFixture) -> User:
    """Return a user with three sites of four patients each, six slices a patient, to be spoilt."""
    shutil.copytree(phantom, place / "data", ignore=shutil.ignore_patterns("PHANTOM.json"))
    (place / "tiny.yaml").write_text(small_yaml(place / "data"))
    return User(place, capsys)


def make_eyes(place: Path, capsys: pytest.CaptureFixture) -> User:
    """Return a user with three sites of three colour pictures each, cup (0) in disc (128) on white (255)."""
    rng = np.random.default_rng(0)
    label = np.full((40, 40), 255, np.uint8)
    label[8:30, 8:30], label[14:24, 14:24] = 128, 0
    for site in ("north", "south", "west"):
        for folder in ("images", "masks"):
            (place / "data" / site / folder).mkdir(parents=True)
        for name in ("a", "b", "c"):
            pixels = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / "data" / site / "images" / f"{name}.png")
            Image.fromarray(label).save(place / "data" / site / "masks" / f"{name}.png")
    (place / "tiny.yaml").write_text(f"""
data: {{name: folder, root: {place / "data"}, image_size: 32, image_channels: 3, structure_names: [disc, cup],
  mask_values: {{disc: [0, 128], cup: [0]}}, background_value: 255}}
network: {SMALL_UNET}
method: {{name: fedavg}}
federation: {{unseen_site: west, rounds: 1}}
""")
    return User(place, capsys)


def with_value(value: float):
    """One voxel set to it."""

    def change(array: np.ndarray) -> np.ndarray:
        array = array.astype(np.float32)
        array[3, 3, 3] = value
        return array

    return change


CONFIGS = {  # what is wrong: (a part of the config, what stands there instead, what the sentence has)
    "row 1, an unknown key": ("learning_rate", "learnig_rate", ("training.learnig_rate: unknown", "'learning_rate'?")),
    "row 2, text for a number": (
        "rounds: 2",
        'rounds: "3"',
        ("federation.rounds", "got the text '3'", "remove the quotes"),
    ),
    "row 2, a fraction of a round": ("rounds: 2", "rounds: 3.5", ("federation.rounds", "a whole number, got 3.5")),
    "row 3, a negative weight": ("alpha: 0.1", "gamma: -1", ("method.gamma: expected a number of at least 0, got -1",)),
    "row 3, alpha below 0": (
        "alpha: 0.1",
        "alpha: -0.1",
        ("method.alpha: expected a number of at least 0 or", "got -0.1"),
    ),
    "row 3, alpha too large": ("alpha: 0.1", "alpha: 0.5", ("method.alpha: expected a number below 0.5 or", "got 0.5")),
    "row 3, a ratio above 1": ("ratio: 0.2", "ratio: 1.5", ("data.validation_ratio: expected a number below 1", "1.5")),
    "row 4, NaN": ("rate: 0.01", "rate: .nan", ("training.learning_rate", "expected a finite number, got nan")),
    "row 4, infinity": ("rate: 0.01", "rate: .inf", ("training.learning_rate", "expected a finite number, got inf")),
    "row 5, a key twice": ("seed: 3", "seed: 3\nseed: 4", ("line 3", "'seed' already stands in line 2", "keep one")),
    "row 7, a site twice": ("[BMC, HK,", "[BMC, BMC,", ("data.sites: 'BMC' is listed twice", "remove one")),
    "row 7, a site twice by case": ("[BMC, HK,", "[BMC, bmc,", ("'BMC' and 'bmc' differ only in", "remove one")),
    "row 7, by Unicode form": ("[BMC,", '["\u00e9", "e\u0301",', (r"'\xe9' and 'e\u0301' differ", "remove one")),
    "row 8, the unseen site alone": ("[BMC, HK, UCL]", "[UCL]", ("data.sites: 'UCL' is the unseen site", "add one")),
    "row 10, a path": ("[BMC,", "[../x,", ("data.sites: a site cannot be called '../x'", "must not contain /")),
    "row 10, 300 characters": ("[BMC,", f"[{'x' * 300},", ("it has 300 characters, expected 1 to 64", "rename it")),
    "row 10, a newline": ("[BMC,", '["a\\nb",', (r"a site cannot be called 'a\nb'", "rename it")),
}


def cut(path: Path, n_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:n_bytes])


def plain(path: Path, n_bytes: int) -> None:
    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes())[:n_bytes])
    path.unlink()


def header(path: Path, **values) -> None:
    """Write single values into a NIfTI header, whatever nibabel thinks of them."""
    whole = gzip.decompress(path.read_bytes())
    result = nib.Nifti1Header(whole[:348], check=False)
    for name, value in values.items():
        result[name] = value
    path.write_bytes(gzip.compress(result.binaryblock + whole[348:]))


def shifted(matrix: np.ndarray) -> np.ndarray:
    return matrix + np.array([[0, 0, 0, 20]] * 3 + [[0] * 4])


NO_AFFINE = {"srow_x": 0, "srow_y": 0, "srow_z": 0, "qform_code": 0, "sform_code": 1}
PLACE = "data.ignore_mask_geometry: true"
FILES = {  # what is wrong: (what is done to image and mask, what the sentence has)
    "row 19, a truncated .nii.gz": (
        lambda image, mask: cut(image, 5000),
        ("Case00.nii.gz: the file is damaged, incomplete", "Compressed file ended", "again"),
    ),
    "row 19, a truncated header": (
        lambda image, mask: cut(mask, 100),
        ("Segmentation.nii.gz: the file is damaged, incomplete",),
    ),
    "row 20, a truncated .nii": (
        lambda image, mask: plain(image, 2000),
        ("Case00.nii: the file has 2,000 bytes; expected 38,752",),
    ),
    "row 24, a NaN": (
        lambda image, mask: spoil(image, with_value(np.nan)),
        ("Case00.nii.gz: 1 of 9,600 voxels are NaN and 0 are infinite", "expected finite numbers", "repair the file"),
    ),
    "row 27, a fourth axis": (
        lambda image, mask: spoil(image, lambda array: np.stack([array, array], -1)),
        ("Case00.nii.gz: the file contains 2 volumes (along its fourth axis), expected 1", "keep only one"),
    ),
    "row 30, another shape": (
        lambda image, mask: spoil(mask, lambda array: array[:-1]),
        ("Case00_Segmentation.nii.gz: the mask has 39 x 40 x 6 voxels", "Case00.nii.gz has 40 x 40 x 6", "resample"),
    ),
    "row 31, another spacing": (
        lambda image, mask: spoil(mask, affine=lambda matrix: matrix @ np.diag([1, 1, 1.1, 1])),
        (
            "the mask, 3.83216 x 3.83216 x 3.3 mm along LPS, lies up to 1.5 mm away from its image",
            "3 mm along LPS",
            PLACE,
        ),
    ),
    "row 32, another place": (
        lambda image, mask: spoil(mask, affine=shifted),
        ("lies up to 34.6 mm away from its image", "resample the mask", PLACE),
    ),
    "row 32, another direction": (
        lambda image, mask: spoil(mask, lambda array: array[::-1], lambda matrix: matrix @ np.diag([-1, 1, 1, 1])),
        ("3 mm along RPS, lies up to 299 mm away from its image", "3 mm along LPS", PLACE),
    ),
    "row 33, no affine": (
        lambda image, mask: header(image, **NO_AFFINE),
        ("Case00.nii.gz: the voxel size in the header is 0 x 0 x 0 mm", "expected 0.0001 to 100 mm"),
    ),
    "row 33, no voxel size": (
        lambda image, mask: header(image, pixdim=[1, 0, 2, 3, 0, 0, 0, 0]),
        ("Case00.nii.gz: the voxel size in the header is 0 x 2 x 3 mm", "expected 0.0001 to 100 mm", "correct"),
    ),
    "row 35, 255 for 1": (
        lambda image, mask: spoil(mask, lambda array: np.uint8(255) * (array > 0)),
        ("the mask has the labels 0, 255; expected 0 (background), 1 (prostate), 2 (prostate)", "again"),
    ),
    "row 36, a label without a class": (
        lambda image, mask: spoil(mask, lambda array: 5 * array),
        ("the mask has the labels 0, 5, 10; expected 0 (background), 1 (prostate)", "mask again"),
    ),
    "row 37, fractions": (
        lambda image, mask: spoil(mask, lambda array: array.astype(np.float32) / 2),
        ("the mask has fractional labels such as 0.5;", "expected whole numbers", "nearest-neighbour"),
    ),
}
