"""Bad inputs as a user meets them: one line with what is wrong, found, expected and next; nothing half written."""

from __future__ import annotations

import csv
import errno
import gzip
import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from conftest import SMALL_UNET, UNET, small_yaml
from PIL import Image

from medfed import data, evaluate, train
from medfed.core import files
from medfed.federation.rounds import federate
from medfed.outputs.run_folder import RunFolder


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

    def refused_before_training(self, *words: str) -> None:
        self.refused(self.train(), *words)
        assert not list(self.place.rglob("*.state")) and not (self.out / "config.yaml").exists()

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


@pytest.fixture
def user(tmp_path, small_phantom, capsys) -> User:
    """Three sites of four patients each, six slices a patient, to be spoilt."""
    shutil.copytree(small_phantom, tmp_path / "data", ignore=shutil.ignore_patterns("PHANTOM.json"))
    (tmp_path / "tiny.yaml").write_text(small_yaml(tmp_path / "data"))
    return User(tmp_path, capsys)


@pytest.fixture
def eyes(tmp_path, capsys) -> User:
    """Three sites of three colour pictures each, cup (0) in disc (128) on white (255)."""
    rng = np.random.default_rng(0)
    label = np.full((40, 40), 255, np.uint8)
    label[8:30, 8:30], label[14:24, 14:24] = 128, 0
    for site in ("north", "south", "west"):
        for folder in ("images", "masks"):
            (tmp_path / "data" / site / folder).mkdir(parents=True)
        for name in ("a", "b", "c"):
            pixels = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / site / "images" / f"{name}.png")
            Image.fromarray(label).save(tmp_path / "data" / site / "masks" / f"{name}.png")
    (tmp_path / "tiny.yaml").write_text(f"""
data: {{name: folder, root: {tmp_path / "data"}, image_size: 32, image_channels: 3, structure_names: [disc, cup],
  mask_values: {{disc: [0, 128], cup: [0]}}, background_value: 255}}
network: {SMALL_UNET}
method: {{name: fedavg}}
federation: {{unseen_site: west, rounds: 1}}
""")
    return User(tmp_path, capsys)


def with_value(value: float):
    """One voxel set to it."""
    def change(array: np.ndarray) -> np.ndarray:
        array = array.astype(np.float32)
        array[3, 3, 3] = value
        return array
    return change


CONFIGS = {  # what is wrong: (a part of the config, what stands there instead, what the sentence has)
    "row 1, an unknown key": (
        "learning_rate", "learnig_rate", ("training.learnig_rate: unknown key", "Did you mean 'learning_rate'?")),
    "row 2, text for a number": (
        "rounds: 2", 'rounds: "3"', ("federation.rounds", "expected a whole number, got the text '3'", "remove the")),
    "row 2, a fraction of a round": ("rounds: 2", "rounds: 3.5", ("federation.rounds", "a whole number, got 3.5")),
    "row 3, a negative weight": ("alpha: 0.1", "gamma: -1", ("method.gamma: must be at least 0, got -1",)),
    "row 3, alpha below 0": ("alpha: 0.1", "alpha: -0.1", ("method.alpha: must lie in [0, 0.5), got -0.1",)),
    "row 3, alpha too large": ("alpha: 0.1", "alpha: 0.5", ("method.alpha: must lie in [0, 0.5), got 0.5",)),
    "row 3, a ratio above 1": ("ratio: 0.2", "ratio: 1.5", ("data.validation_ratio: must lie in [0, 1)", "1.5")),
    "row 4, NaN": ("rate: 0.01", "rate: .nan", ("training.learning_rate", "expected a finite number, got nan")),
    "row 4, infinity": ("rate: 0.01", "rate: .inf", ("training.learning_rate", "expected a finite number, got inf")),
    "row 5, a key twice": ("seed: 3", "seed: 3\nseed: 4", ("line 3", "'seed' already stands in line 2", "keep one")),
    "row 7, a site twice": ("[BMC, HK,", "[BMC, BMC,", ("data.sites: 'BMC' is listed twice", "remove one")),
    "row 7, a site twice by case": ("[BMC, HK,", "[BMC, bmc,", ("'BMC' and 'bmc' differ only in", "remove one")),
    "row 7, by Unicode form": ("[BMC,", '["\u00e9", "e\u0301",', (r"'\xe9' and 'e\u0301' differ", "remove one")),
    "row 8, the unseen site alone": ("[BMC, HK, UCL]", "[UCL]", ("data.sites: 'UCL' is the unseen site", "add one")),
    "row 10, a path": ("[BMC,", "[../x,", ("data.sites: a site cannot be called '../x'", "must not contain /")),
    "row 10, a device": ("[BMC,", "[CON,", ("data.sites: a site cannot be called 'CON'", "reserves", "rename it")),
    "row 10, 300 characters": ("[BMC,", f"[{'x' * 300},", ("it has 300 characters, expected 1 to 64", "rename it")),
    "row 10, a newline": ("[BMC,", '["a\\nb",', (r"a site cannot be called 'a\nb'", "rename it")),
}  # fmt: skip


@pytest.mark.parametrize("wrong", CONFIGS)
def test_a_wrong_config(user, wrong):
    old, new, words = CONFIGS[wrong]
    user.replace(old, new)
    user.refused_before_training("tiny.yaml: ", *words)
    assert not user.out.exists()
    user.refused(user.evaluate(), *words)


def test_a_config_that_is_not_a_text_file(user):
    (user.place / "other.yml").write_text(user.config.read_text())
    spoilt = {
        "is empty; expected the blocks data, network and method": lambda: user.config.write_text(""),
        "not UTF-8 text (byte 0xe9 at position 10); save it as UTF-8":
            lambda: user.config.write_bytes("seed: 3 # \u00e9".encode("latin-1")),
        "no such file; expected a YAML file. Did you mean": user.config.unlink,
        "is a folder; expected a YAML file": user.config.mkdir,
    }
    for words, spoiling in spoilt.items():
        spoiling()
        user.refused_before_training(f"tiny.yaml: {words}")
    user.refused(train.main([str(user.place / "data" / "a.yaml")]), "no such file", "check the path")


def test_two_folders_of_one_site(eyes):
    shutil.copytree(eyes.place / "data" / "south", eyes.place / "data" / "South")
    sentence = "data: the site names 'South' and 'south' differ only in upper and lower case"
    eyes.refused_before_training(sentence, "remove one")


def test_an_image_of_the_unseen_site_in_training(user):
    shutil.copy(user.image("UCL"), user.image("BMC"))
    user.refused_before_training(
        "BMC/Case00.nii.gz and", "UCL/Case01.nii.gz: these files are", "expected every image once", "remove all but")


def test_an_image_that_occurs_twice_in_a_site_is_refused_unless_allowed(user):
    shutil.copy(user.image(), user.image().with_name("Case99.nii.gz"))
    shutil.copy(user.mask(), user.image().with_name("Case99_segmentation.nii.gz"))
    user.refused_before_training("Case00.nii.gz and", "Case99.nii.gz: these files are", "allow_duplicates: true")
    user.replace("image_size", "allow_duplicates: true, image_size")
    assert user.check()[0] == 0
    user.goes_on("Case99.nii.gz: these files are the same image")


def test_a_site_without_images_is_refused_with_advice(user):
    for path in (user.place / "data" / "BMC").iterdir():
        path.unlink()
    words = "data/BMC: the site BMC has no images", "expected ROOT", "list only the other sites in data.sites"
    user.refused_before_training(*words)
    user.goes_on(more=("--set", "data.sites=[HK, UCL]", "--set", "federation.rounds=1"))  # no run is in the way


def test_a_site_with_few_images_trains_and_shares_nothing(user):
    for index in (3, 2, 1):
        user.image("BMC", index).unlink(), user.mask("BMC", index).unlink()
    for path in (user.image(), user.mask()):
        spoil(path, lambda array: array[..., :3])
    user.replace("validation_ratio: 0.2", "validation_ratio: 0, test_ratio: 0")
    user.replace("min_patients: 1", "min_patients: 2")
    summary = user.goes_on("BMC: has 3 training images, fewer than training.batch_size 16; its batches hold 3")
    assert sum("BMC" in output and "shares no frequency windows" in output for output in summary["notices"]) == 1
    ledger = user.rows("ledger.csv")
    assert {r["site"] for r in ledger if r["kind"] == "share" and r["direction"] == "up"} == {"HK"}
    assert {r["site"] for r in ledger if r["kind"] == "train" and r["direction"] == "up"} == {"BMC", "HK"}


def test_notices_of_round_1_are_not_lost_on_resume(user, monkeypatch):
    real = federate

    def impatient(*arguments):
        yield next(real(*arguments))
        raise KeyboardInterrupt

    user.replace("min_patients: 1", "min_patients: 9")
    monkeypatch.setattr("medfed.experiments.training.federate", impatient)
    user.refused(user.train(), "--resume", with_code=130)
    monkeypatch.setattr("medfed.experiments.training.federate", real)
    summary = user.goes_on(more=("--resume",))
    assert sum("shares no frequency windows" in output for output in summary["notices"]) == 2  # one a site


def test_a_federation_with_one_source_site(user):
    user.replace("[BMC, HK, UCL]", "[HK, UCL]")
    summary = user.goes_on("only one site ('HK') trains: this is local training, not a federation")
    assert summary["source_sites"] == ["HK"]


def test_a_batch_size_larger_than_a_site(user):
    user.replace("batch_size: 16", "batch_size: 500")
    user.goes_on("BMC: has 12 training images, fewer than training.batch_size 500; its batches hold 12")


def test_one_image_and_batch_norm(user):
    """A single image is fine as long as BatchNorm has more than one pixel of it, which the image size must allow."""
    for index in (3, 2, 1):
        user.image("BMC", index).unlink(), user.mask("BMC", index).unlink()
    for path in (user.image(), user.mask()):
        spoil(path, lambda array: array[..., 3:4])
    user.replace(SMALL_UNET, UNET.replace("name: unet", "name: unet, norm: batch"))
    user.replace("image_size: 32", "image_size: 16")
    user.refused_before_training("data.image_size is 16", "multiple of 16 that is at least 32")
    user.replace("image_size: 16", "image_size: 32")
    user.goes_on("BMC: 1 of 1 images: only one slice", "BMC: has 1 training image, fewer than training.batch_size 16")


def test_all_missing_files_are_listed_at_once(user):
    missing = [user.image("BMC", 1), user.mask("BMC", 0), user.mask("HK", 2), user.mask("UCL", 3)]
    partners = ["Case01_Segmentation", "Case00.nii.gz", user.image("HK", 2).name, user.image("UCL", 3).name]
    for path in missing:
        path.unlink()
    user.refused_before_training(*partners, "image has no mask; add the mask", "this mask has no image", "and 3 more")
    assert "4 problems" in user.check()[1]


def test_a_broken_symbolic_link(user):
    path = user.image()
    path.unlink()
    path.symlink_to("nowhere.nii.gz")
    user.refused_before_training("Case00.nii.gz: this is a link that leads to no file; expected a file")


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
        lambda image, mask: cut(image, 5000), ("Case00.nii.gz: the file is incomplete", "of 38,752 bytes", "again")),
    "row 19, a truncated header": (
        lambda image, mask: cut(mask, 100), ("Segmentation.nii.gz: this is not a NIfTI file, or it is damaged (100 ",)),
    "row 20, a truncated .nii": (
        lambda image, mask: plain(image, 2000), ("Case00.nii: the file is incomplete: found 2,000 of 38,752", "again")),
    "row 24, a NaN": (
        lambda image, mask: spoil(image, with_value(np.nan)),
        ("Case00.nii.gz: 1 of 9,600 voxels are NaN and 0 are infinite", "expected finite numbers", "repair the file")),
    "row 27, a fourth axis": (
        lambda image, mask: spoil(image, lambda array: np.stack([array, array], -1)),
        ("Case00.nii.gz: the file contains 2 volumes (along its fourth axis), expected 1", "keep only one")),
    "row 30, another shape": (
        lambda image, mask: spoil(mask, lambda array: array[:-1]),
        ("Case00_Segmentation.nii.gz: the mask has 39 x 40 x 6 voxels", "Case00.nii.gz has 40 x 40 x 6", "resample")),
    "row 31, another spacing": (
        lambda image, mask: spoil(mask, affine=lambda matrix: matrix @ np.diag([1, 1, 1.1, 1])),
        ("the mask's voxel size is 3.83216 x 3.83216 x 3.3 mm, not the 3.83216 x 3.83216 x 3 mm of its image", PLACE)),
    "row 32, another place": (
        lambda image, mask: spoil(mask, affine=shifted),
        ("the mask lies up to 34.6 mm away from the position of its image", "resample the mask", PLACE)),
    "row 32, another direction": (
        lambda image, mask: spoil(mask, lambda array: array[::-1], lambda matrix: matrix @ np.diag([-1, 1, 1, 1])),
        ("the mask's axes point to RPS, up to 180 degrees away from the axes LPS of its image", PLACE)),
    "row 33, no affine": (
        lambda image, mask: header(image, **NO_AFFINE),
        ("Case00.nii.gz: the affine in the header is singular (voxel size 0 x 0 x 0 mm)", "expected three axes")),
    "row 33, no voxel size": (
        lambda image, mask: header(image, pixdim=[1, 0, 2, 3, 0, 0, 0, 0]),
        ("Case00.nii.gz: the voxel size in the header is 0 x 2 x 3 mm", "expected sizes above 0", "correct")),
    "row 35, 255 for 1": (
        lambda image, mask: spoil(mask, lambda array: np.uint8(255) * (array > 0)),
        ("the mask has the labels 0, 255; expected 0 (background), 1 (prostate), 2 (prostate)", "again")),
    "row 36, a label without a class": (
        lambda image, mask: spoil(mask, lambda array: 5 * array),
        ("the mask has the labels 0, 5, 10; expected 0 (background), 1 (prostate)", "mask again")),
    "row 37, fractions": (
        lambda image, mask: spoil(mask, lambda array: array.astype(np.float32) / 2),
        ("the mask has fractional labels such as 0.5 in", "expected whole numbers", "nearest-neighbour")),
}  # fmt: skip


@pytest.mark.parametrize("wrong", FILES)
def test_a_wrong_file(user, wrong, monkeypatch):
    logged, handler = [], logging.Handler()
    handler.emit = logged.append
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    spoiling, words = FILES[wrong]
    user.replace("[BMC, HK, UCL]", "[BMC, UCL]")  # fewer files to check
    spoiling(user.image(), user.mask())
    user.refused_before_training(*words)
    code, report = user.check()
    assert code == 2 and user.error_line.removeprefix("medfed.train: ") in report and "1 problem," in report
    assert "nibabel" not in {record.name.partition(".")[0] for record in logged}, "it would be printed on stderr"


@pytest.mark.parametrize("index", range(4))
def test_a_truncated_file_of_any_split_is_reported_before_training(user, index):
    cut(user.image("BMC", index), 5000)
    user.refused_before_training(f"Case0{index}.nii.gz: the file is incomplete")


def test_a_truncated_file_of_the_unseen_site_loses_no_round(user):
    """It is opened by the evaluator alone, after training; once mended, no round is trained again."""
    whole = user.image("UCL").read_bytes()
    cut(user.image("UCL"), 5000)
    user.replace("rounds: 2", "rounds: 1")
    user.refused(user.train(), "UCL/Case01.nii.gz: the file is incomplete", "copy it again")
    user.image("UCL").write_bytes(whole)
    kept = {path: path.stat().st_mtime_ns for path in user.out.glob("states/*")}
    user.goes_on(more=("--resume",))
    assert kept and kept == {path: path.stat().st_mtime_ns for path in user.out.glob("states/*")}


def test_without_a_spacing_distances_are_in_percent_of_the_diagonal_and_labelled_so(eyes):
    summary = eyes.goes_on()
    rows = eyes.rows("cases.csv")
    assert all(row["hd_mm"] == row["hd95_mm"] == row["assd_mm"] == "" for row in rows)
    assert any(row["hd95_percent_of_diagonal"] for row in rows)
    assert summary["unseen"]["mean"]["disc"]["hd95_mm"]["mean"] is None
    assert " % of diagonal" in (output := eyes.capsys.readouterr().out) and "(mm)" not in output


def test_a_grey_level_without_a_class(eyes):
    path = eyes.place / "data" / "south" / "masks" / "a.png"
    Image.fromarray(np.full((40, 40), 7, np.uint8)).save(path)
    eyes.refused_before_training(
        "a.png: the mask has the labels 7; expected 0 (disc and cup), 128 (disc), 255 (background)", "data.mask_values")


def test_labels_stored_as_colours(eyes):
    colours = np.zeros((40, 40, 3), np.uint8)
    colours[:20], colours[20:30] = (255, 0, 0), (0, 255, 0)
    Image.fromarray(colours).save(eyes.place / "data" / "south" / "masks" / "a.png")
    eyes.refused_before_training("masks/a.png: the mask stores its labels as 3 colours; expected one number", "write")


def test_empty_masks_are_counted_and_a_missed_organ_has_the_diagonal_as_distance(user):
    """Nothing is above the threshold: three patients are missed, and of the one without an organ nobody is judged."""
    spoil(user.mask("UCL", 0), lambda array: 0 * array)
    spoil(user.mask("BMC", 0), lambda array: 0 * array)
    always = ("--set", "evaluation.threshold=0.9999999", "--set", "federation.rounds=1")
    summary = user.goes_on("BMC: 1 of 4 images: no prostate in the mask", more=always)
    unseen = {row["patient"]: row for row in user.rows("cases.csv") if row["role"] == "unseen"}
    assert [row["status"] for row in unseen.values()] == ["absent", "missed", "missed", "missed"]
    assert unseen["Case01"]["dice"] == unseen["Case01"]["hd95_mm"] == ""
    image = nib.load(user.image("UCL", 1))
    diagonal_mm = np.linalg.norm(np.multiply(image.shape, image.header.get_zooms()))
    missed = unseen[user.image("UCL", 1).name.partition(".")[0]]
    assert float(missed["dice"]) == 0
    assert float(missed["hd_mm"]) == float(missed["hd95_mm"]) == pytest.approx(diagonal_mm, rel=1e-6)
    result = summary["unseen"]["sites"]["UCL"]["prostate"]
    assert (result["n"], result["n_missed"], result["n_absent"], result["hd95_mm"]["n"]) == (3, 3, 1, 3)


def test_a_cup_outside_the_disc(eyes):
    label = np.full((40, 40), 255, np.uint8)
    label[8:20, 8:20], label[28:36, 28:36] = 128, 0
    Image.fromarray(label).save(eyes.place / "data" / "south" / "masks" / "a.png")
    eyes.goes_on("south: 1 of 3 images: cup with no disc around it")
    assert "south: cup with no disc around it: in 1 of 3 cases, the first is a" in eyes.check()[1]


def test_the_alpha_channel_is_dropped(eyes):
    for path in (eyes.place / "data" / "south" / "images").iterdir():
        Image.open(path).convert("RGBA").save(path)
    eyes.goes_on("south: 3 of 3 images: alpha channel dropped")


def test_a_grey_image_among_colour_images_is_refused_unless_allowed(eyes):
    path = eyes.place / "data" / "south" / "images" / "a.png"
    Image.open(path).convert("L").save(path)
    eyes.refused_before_training("south/images/a.png: the image is grey; expected colour; set data.grey_to_rgb: true")
    eyes.replace("image_size", "grey_to_rgb: true, image_size")
    eyes.goes_on("south: 1 of 3 images: grey repeated as RGB")


def test_a_folder_that_cannot_be_written_is_reported_at_once(user, monkeypatch):
    def read_only(path, mode="r", *more):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("medfed.experiments.run.build_experiment", None)  # nothing is read, let alone trained
    (user.place / "file").write_text("")
    user.refused(user.train("--out", str(user.place / "file" / "run")), "cannot write here (Not a directory)", "--out")
    user.refused(user.evaluate("--out", str(user.place / "file" / "run")), "cannot write here", "--out")
    monkeypatch.setattr("medfed.core.files.open", read_only, raising=False)
    user.refused(user.train(), "run: cannot write here (Read-only file system); choose another folder with --out")


class FullDisk:
    """A disk that is full when it is asked to keep something for the k-th time (k = 0: never), and only then.

    first: which time came first after the run had begun.
    """

    def __init__(self, monkeypatch, out: Path, k: int = 0) -> None:
        self.out, self.k, self.asked, self.first, self.real = out, k, 0, 0, os.fsync
        monkeypatch.setattr(files.os, "fsync", self)

    def __call__(self, file: int) -> None:
        self.asked += 1
        if not self.first and (self.out / "config.yaml").is_file():
            self.first = self.asked
        if self.asked == self.k:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.real(file)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, small_phantom) -> tuple[bytes, FullDisk]:
    """The model of a run on an empty disk, and that disk."""
    place = tmp_path_factory.mktemp("undisturbed")
    (place / "tiny.yaml").write_text(small_yaml(small_phantom))
    with pytest.MonkeyPatch.context() as patch:
        disk = FullDisk(patch, place / "run")
        assert train.main([str(place / "tiny.yaml"), "--out", str(place / "run"), "--quiet", "--device", "cpu"]) == 0
    return (place / "run" / "model.safetensors").read_bytes(), disk


MOMENTS = [0.1, 0.5, 0.8, *(pytest.param(n / 16, marks=pytest.mark.slow) for n in range(1, 17))]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_on_a_full_disk_continues_once_there_is_space(user, undisturbed, monkeypatch, moment):
    model, disk = undisturbed
    with monkeypatch.context() as patch:
        FullDisk(patch, user.out, disk.first + round(moment * (disk.asked - disk.first)))
        user.refused(
            user.train(), "run: No space left on device; free some space and continue with --resume", with_code=1)
    assert not list(user.out.rglob("*unfinished*"))
    user.goes_on(more=("--resume",))
    assert (user.out / "model.safetensors").read_bytes() == model


def test_a_second_run_in_a_locked_folder_is_refused_but_a_dead_process_holds_no_lock(user, monkeypatch):
    monkeypatch.setattr("medfed.experiments.run.build_experiment", None)
    with RunFolder(user.out).locked():
        user.refused(user.train(), f"run: process {os.getpid()} is running here; wait for it", "--out")
    monkeypatch.undo()
    (user.out / "run.lock").write_text("process 1\n")  # of a process that was killed: the text stays, the lock went
    user.goes_on()


def test_a_comparison_skips_a_run_that_another_process_has_locked(user):
    busy = RunFolder(user.out / "fedavg" / "unseen_UCL" / "seed_3")
    some = ("--sites", "UCL", "--set", "federation.rounds=1", "--resume")
    with busy.locked():
        assert user.evaluate(*some) == 1
    assert "1 of 2 runs are locked by another process" in user.capsys.readouterr().out
    assert not busy.is_finished() and RunFolder(user.out / "elcfs" / "unseen_UCL" / "seed_3").is_finished()


def test_a_changed_config_is_shown_and_continues_only_if_accepted(user, undisturbed):
    """One round, then a second under an accepted change, is the run of two rounds."""
    user.goes_on()
    user.refused(
        user.train("--resume"), "run: this run was started with another config (federation.rounds: 1 -> 2)", "undo",
        "--out", "--accept-config-change")
    summary = user.goes_on(more=("--resume", "--accept-config-change"))
    assert summary["rounds"] == summary["selected_round"] == 2
    assert (user.out / "model.safetensors").read_bytes() == undisturbed[0]


def test_another_network_is_refused_even_if_accepted(user):
    user.goes_on()
    before = {path.name: path.read_bytes() for path in user.out.iterdir() if path.is_file() and path.name != "run.lock"}
    other = ("--resume", "--accept-config-change", "--set", "network.features=[8, 8, 8]")
    user.refused(
        user.train(*other), "network.features: [4, 4, 8] -> [8, 8, 8]",
        "would mix the results of two configs", "undo the change", "--out")
    assert all((user.out / name).read_bytes() == content for name, content in before.items())


def test_resume_without_a_checkpoint(user):
    user.refused(user.train("--resume"), "run: no run to resume here; remove --resume to start one")
    user.goes_on()
    (user.out / "summary.json").unlink()
    for path in user.out.glob("states/*"):
        path.unlink()
    user.refused(
        user.train("--resume", "--set", "federation.rounds=1"),
        "run/states: holds no checkpoint, though", "history.csv", "restore the checkpoints")
