"""Bad inputs as a user meets them: one line with what is wrong, found, expected and next; nothing half written."""

import errno
import json
import logging
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from conftest import SMALL_UNET, UNET, read_csv, small_yaml
from faulty_disk import FaultyDisk

from medfed import data, evaluate, train
from medfed.core import files
from medfed.federation.rounds import federate
from medfed.outputs.run_folder import CHECKSUMS, RunFolder

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


def spoil(path: Path, voxels=lambda array: array, affine=lambda matrix: matrix) -> None:
    """Write a NIfTI file again with other voxels or in another place."""
    image = nib.load(path)
    nib.save(nib.Nifti1Image(voxels(np.asarray(image.dataobj)), affine(image.affine)), path)


def cut(path: Path, n_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:n_bytes])


@pytest.fixture
def user(tmp_path, small_phantom, capsys) -> User:
    """A user with three sites of four patients each, six slices a patient, to be spoilt."""
    shutil.copytree(small_phantom, tmp_path / "data", ignore=shutil.ignore_patterns("PHANTOM.json"))
    (tmp_path / "tiny.yaml").write_text(small_yaml(tmp_path / "data"))
    return User(tmp_path, capsys)


def test_a_config_that_is_not_a_text_file(user):
    (user.place / "other.yml").write_text(user.config.read_text())
    user.config.write_text("")
    user.refused_before_training("tiny.yaml: expected the blocks data, network and method, got nothing")
    user.config.write_bytes("seed: 3 # \u00e9".encode("latin-1"))
    user.refused_before_training(
        "tiny.yaml: not UTF-8 text ('utf-8' codec can't decode byte 0xe9 in position 10: ", "; save it as UTF-8"
    )
    user.config.unlink()
    user.refused_before_training("tiny.yaml: No such file or directory; expected a YAML file. Did you mean")
    user.config.mkdir()
    user.refused_before_training("tiny.yaml: Is a directory; expected a YAML file")
    user.refused(train.main([str(user.place / "data" / "a.yaml")]), "No such file", "has no YAML file")


def test_results_among_the_images(user):
    folder = user.place / "data" / "BMC" / "out"
    for program in (user.train, user.evaluate):
        user.refused(program("--out", str(folder)), f"{folder}: lies in ", "data.root", "choose a folder outside")
        assert not folder.exists()


def test_restyled_images_in_the_folder_of_the_run(user):
    folder = user.out / "images"
    user.refused(user.train("--set", f"cache.folder={folder}"), f"cache.folder: {folder} lies in ", "must not hold im")
    assert not folder.exists()


def test_an_image_of_the_unseen_site_in_training(user):
    shutil.copy(user.image("UCL"), user.image("BMC"))
    user.refused_before_training("BMC/Case00.nii.gz and", "UCL/Case01.nii.gz: these files are", "remove all but")


def test_an_image_that_occurs_twice_in_a_site_is_refused_unless_allowed(user):
    shutil.copy(user.image(), user.image().with_name("Case99.nii.gz"))
    shutil.copy(user.mask(), user.image().with_name("Case99_segmentation.nii.gz"))
    user.refused_before_training("Case00.nii.gz and", "Case99.nii.gz: these files are", "allow_duplicates: true")
    user.replace("image_size", "allow_duplicates: true, image_size")
    assert user.check()[0] == 0
    user.goes_on("Case99.nii.gz: these files are the same image")


def test_a_site_with_few_images_trains_and_shares_nothing(user):
    for index in (3, 2, 1):
        user.image("BMC", index).unlink(), user.mask("BMC", index).unlink()
    for path in (user.image(), user.mask()):
        spoil(path, lambda array: array[..., :3])
    user.replace("validation_ratio: 0.2", "validation_ratio: 0, test_ratio: 0")
    user.replace("min_patients: 1", "min_patients: 2")
    summary = user.goes_on("BMC: has 3 training images, fewer than training.batch_size 16; its batches hold 3")
    assert sum("BMC" in output and "shares no frequency windows" in output for output in summary["notices"]) == 1
    ledger = read_csv(user.out / "ledger.csv")
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


def test_a_mask_in_another_direction_than_its_image(user, monkeypatch):
    logged, handler = [], logging.Handler()
    handler.emit = logged.append
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    user.replace("[BMC, HK, UCL]", "[BMC, UCL]")  # fewer files to check
    spoil(user.mask(), lambda array: array[::-1], lambda matrix: matrix @ np.diag([-1, 1, 1, 1]))
    user.refused_before_training("3 mm along RPS, lies up to 299 mm away from its image", "3 mm along LPS")
    code, report = user.check()
    assert code == 2 and user.error_line.removeprefix("medfed.train: ") in report and "1 problem," in report
    assert "nibabel" not in {record.name.partition(".")[0] for record in logged}, "it would be printed on stderr"


@pytest.mark.parametrize("index", range(4))
def test_a_truncated_file_of_any_split_is_reported_before_training(user, index):
    cut(user.image("BMC", index), 5000)
    user.refused_before_training(f"Case0{index}.nii.gz: the file is damaged, incomplete")


def test_a_truncated_file_of_the_unseen_site_loses_no_round(user):
    """It is opened by the evaluator alone, after training; once mended, no round is trained again."""
    whole = user.image("UCL").read_bytes()
    cut(user.image("UCL"), 5000)
    user.replace("rounds: 2", "rounds: 1")
    user.refused(user.train(), "UCL/Case01.nii.gz: the file is damaged, incomplete", "copy it again")
    user.image("UCL").write_bytes(whole)
    trained = (user.out / "states" / "round_00001.state").stat().st_mtime_ns
    user.goes_on(more=("--resume",))
    assert trained == (user.out / "states" / "round_00001.state").stat().st_mtime_ns


def test_a_folder_that_cannot_be_written_is_reported_at_once(user, monkeypatch):
    def read_only(path, mode="r", *more):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("medfed.experiments.run.build_experiment", None)  # nothing is read, let alone trained
    (user.place / "file").write_text("")
    user.refused(user.train("--out", str(user.place / "file")), "file: File exists; ", with_code=1)
    user.refused(user.train("--out", str(user.place / "file" / "run")), "run: Not a directory; ", with_code=1)
    user.refused(user.evaluate("--out", str(user.place / "file" / "run")), "run: Not a directory; ", with_code=1)
    monkeypatch.setattr("medfed.core.files.open", read_only, raising=False)
    user.refused(user.train(), "Read-only file system; correct this, or choose another folder", with_code=1)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, small_phantom) -> tuple[bytes, int, int]:
    """The model of a run on a disk without faults; and how many operations it asks of the disk before and in all."""
    place = tmp_path_factory.mktemp("undisturbed")
    (place / "tiny.yaml").write_text(small_yaml(small_phantom))
    command = [str(place / "tiny.yaml"), "--out", str(place / "run"), "--quiet", "--device", "cpu"]
    with pytest.MonkeyPatch.context() as patch, FaultyDisk() as disk:
        replace, first = os.replace, []

        def note_first(*paths) -> None:
            replace(*paths)
            if not first and (place / "run" / "config.yaml").is_file():
                first.append(disk.n_operations)

        patch.setattr(files.os, "replace", note_first)
        assert train.main(command) == 0
    return (place / "run" / "model.safetensors").read_bytes(), first[0], disk.n_operations


MOMENTS = [0.1, 0.5, 0.8, *(pytest.param(n / 16, marks=pytest.mark.slow) for n in range(1, 17))]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_on_a_full_disk_continues_once_there_is_space(user, undisturbed, moment):
    model, first, last = undisturbed
    with FaultyDisk(first + round(moment * (last - first))):
        user.refused(user.train(), "No space left on device; free some space; a run goes on with", with_code=1)
    assert not list(user.out.rglob("*unfinished*"))
    user.goes_on(more=("--resume",))
    assert (user.out / "model.safetensors").read_bytes() == model


def test_a_changed_config_is_shown_and_continues_only_if_accepted(user, undisturbed):
    """One round, then a second under an accepted change, is the run of two rounds."""
    user.goes_on()
    words = "run: this run was started with another config (federation.rounds: 1 -> 2)", "undo", "--out"
    user.refused(user.train("--resume"), *words, "--accept-config-change")
    folder = RunFolder(user.out)
    folder.write_json("environment.json", {**folder.read_json("environment.json"), "monai_core": "1.0"})
    (user.out / CHECKSUMS).unlink()
    summary = user.goes_on(more=("--resume", "--accept-config-change"))
    assert summary["rounds"] == summary["selected_round"] == 2 and RunFolder(user.out).rounds() == [2]
    assert "the config was changed after round 1: federation.rounds: 1 -> 2" in summary["notices"]
    assert "continued after round 1 in another environment, with other monai_core" in summary["notices"]
    assert (user.out / "model.safetensors").read_bytes() == undisturbed[0]


def test_a_refused_change_leaves_a_finished_run_as_it_is(user):
    user.goes_on()

    def files() -> dict:
        return {path: path.read_bytes() for path in user.out.rglob("*.*") if path.name != "run.lock"}

    before = files()
    accepted = ("--resume", "--accept-config-change")
    user.refused(user.train(*accepted, "--set", "federation.quorum=9"), "federation.quorum: is 9, but only 2 sites")
    assert files() == before and RunFolder(user.out).is_finished()
    shutil.rmtree(user.out / "sites")
    user.refused(user.train(*accepted, "--set", "federation.rounds=2"), "is missing; it holds the state of")
    assert RunFolder(user.out).is_finished()
    shutil.rmtree(user.out / "states")
    user.goes_on(more=("--resume", "--set", "federation.rounds=1"))  # nothing is left to do


def test_figures_and_files_of_an_earlier_config_are_deleted(user):
    accepted = ("--resume", "--accept-config-change", "--set")
    user.goes_on(more=("--set", "evaluation.unseen_every=1"))
    assert (user.out / "unseen_rounds.json").is_file()
    user.goes_on(more=(*accepted, "evaluation.unseen_every=0"))
    assert not list(user.out.rglob("unseen_rounds.*"))


def test_resume_without_a_checkpoint(user):
    user.refused(user.train("--resume"), "run: no run to resume here; remove --resume to start one")
    user.goes_on()
    (user.out / "summary.json").unlink()
    for path in user.out.glob("states/*"):
        path.unlink()
    words = "run/states: holds no checkpoint, though", "history.csv", "restore the checkpoints"
    user.refused(user.train("--resume", "--set", "federation.rounds=1"), *words)
