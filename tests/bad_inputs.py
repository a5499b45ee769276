"""Users whose images, masks or configs are wrong, what is wrong, and what the error says about it."""

import json
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from conftest import SMALL_UNET, read_csv, small_yaml
from folder_layouts import save_pixels

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
        return read_csv(self.out / name)


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
        for name in ("a", "b", "c"):
            save_pixels(place / "data" / site / "images" / f"{name}.png", rng.integers(0, 256, (40, 40, 3)))
            save_pixels(place / "data" / site / "masks" / f"{name}.png", label)
    (place / "tiny.yaml").write_text(f"""
data: {{name: folder, root: {place / "data"}, image_size: 32, image_channels: 3, structure_names: [disc, cup],
  mask_values: {{disc: [0, 128], cup: [0]}}, background_value: 255}}
network: {SMALL_UNET}
method: {{name: fedavg}}
federation: {{unseen_site: west, rounds: 1}}
""")
    return User(place, capsys)


def cut(path: Path, n_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:n_bytes])
