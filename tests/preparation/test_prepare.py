"""Original downloads, made small in their own layouts, are written in the layouts that the datasets read."""

import re
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

import made_downloads as made

from medfed.core.errors import UserError
from medfed.data import main
from medfed.datasets.checking import check_dataset
from medfed.datasets.collections.fundus import Fundus
from medfed.datasets.collections.prostate import Prostate
from medfed.preparation import fundus
from medfed.preparation.prepare import prepare
from medfed.preparation.prostate import COLLECTIONS as PROSTATE
from medfed.train import main as train


@pytest.fixture(autouse=True)
def small_squares(monkeypatch) -> None:
    """Photographs are cut to 200 x 200 instead of 800 x 800 pixels, which saves time."""
    monkeypatch.setattr(fundus, "SIDE", 200)


def table(summary) -> dict[str, tuple[int, int]]:
    """(written, left out) of each site."""
    return {
        site: (int((of_site["reason"] == "").sum()), int((of_site["reason"] != "").sum()))
        for site, of_site in summary.groupby("site")
    }


def reasons(summary) -> dict[str, str]:
    return dict(zip(summary["case"], summary["reason"]))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_promise12_is_divided_by_case_number_and_runmc_is_left_out(tmp_path):
    made.promise12(tmp_path / "in" / "TrainingData_Part1", (0, 1, 38, 13), without_mask=(20,))
    summary = prepare(PROSTATE, [tmp_path / "in"], tmp_path / "out")
    assert table(summary) == {"BIDMC": (1, 0), "UCL": (1, 0), "RUNMC": (0, 2), "HK": (1, 0)}
    assert "NCI-ISBI" in reasons(summary)["TrainingData_Part1/Case13"]
    assert "no mask" in reasons(summary)["TrainingData_Part1/Case20"]
    image = nib.load(tmp_path / "out" / "UCL" / "Case01.nii.gz")
    assert np.array_equal(image.get_fdata(), made.noise((4, 16, 16), 1).transpose(2, 1, 0))
    assert image.header.get_zooms() == pytest.approx((0.6, 0.6, 3))
    assert np.allclose(image.affine[:3, 3], (-10, 20, 5))  # NIfTI counts towards right and front
    assert check_dataset(Prostate(root=str(tmp_path / "out"))).problems == ()


def test_nci_isbi_pairs_dicom_with_renamed_masks_and_places_a_short_mask_by_its_position(tmp_path):
    summary = prepare(PROSTATE, [made.nci_isbi(tmp_path / "in")], tmp_path / "out")
    assert table(summary) == {"RUNMC": (1, 0), "BMC": (2, 0)}
    image = nib.load(tmp_path / "out" / "RUNMC" / "Case010001.nii.gz")
    assert np.array_equal(image.get_fdata(), made.noise((6, 16, 16), 0).transpose(2, 1, 0))
    for name in ("Case010006", "Case010055"):  # the second mask has 4 of 6 slices, all that are marked
        mask = nib.load(tmp_path / "out" / "BMC" / f"{name}_segmentation.nii.gz").get_fdata()
        assert np.array_equal(mask, made.gland((6, 16, 16)).transpose(2, 1, 0))
    assert check_dataset(Prostate(root=str(tmp_path / "out"))).problems == ()


def test_a_mask_that_leaves_its_image_is_left_out(tmp_path):
    source = made.nci_isbi(tmp_path / "in")
    path = source / "Training" / "ProstateDx-01-0055.nrrd"
    made.sitk.WriteImage(made.volume(made.gland((6, 16, 16)), origin=(10.0, -20.0, 14.0)), path)
    summary = prepare(PROSTATE, [source], tmp_path / "out")
    assert "50% of its volume" in reasons(summary)["ProstateDx-01-0055"]  # 2 of 4 marked slices


def test_i2cvb_takes_siemens_and_leaves_out_a_mask_with_a_missing_slice(tmp_path):
    summary = prepare(PROSTATE, [made.i2cvb(tmp_path / "in")], tmp_path / "out")
    assert table(summary) == {"I2CVB": (1, 2)}
    assert "add missing slices" in reasons(summary)["Siemens/Patient 428260"]
    assert "GE" in reasons(summary)["GE/Patient 100001"]
    mask = nib.load(tmp_path / "out" / "I2CVB" / "Case383121_segmentation.nii.gz").get_fdata()
    assert np.array_equal(mask, made.gland((5, 16, 16)).transpose(2, 1, 0))
    assert check_dataset(Prostate(root=str(tmp_path / "out"))).problems == ()


def test_drishti_gs_masks_are_the_majority_of_the_experts_around_the_disc(tmp_path):
    summary = prepare(fundus.COLLECTIONS, [made.drishti_gs(tmp_path / "in")], tmp_path / "out")
    assert table(summary) == {"DRISHTI-GS": (2, 0)}
    mask = np.asarray(Image.open(tmp_path / "out" / "DRISHTI-GS" / "masks" / "drishtiGS_002.png"))
    disc, cup = made.disc_and_cup(250, 300, 125, 90)  # the soft map of the disc also has pixels of one expert
    expected = np.where(cup, 0, np.where(disc, 128, 255))[25:225, 0:200]
    assert np.array_equal(mask, expected)
    image = np.asarray(Image.open(tmp_path / "out" / "DRISHTI-GS" / "images" / "drishtiGS_002.png"))
    assert np.array_equal(image, np.asarray(made.photo(250, 300, 0))[25:225, 0:200])
    assert check_dataset(Fundus(root=str(tmp_path / "out"))).problems == ()


def test_rim_one_uses_the_left_half_and_names_the_eye(tmp_path):
    summary = prepare(fundus.COLLECTIONS, [made.rim_one(tmp_path / "in")], tmp_path / "out")
    assert table(summary) == {"RIM-ONE-r3": (1, 1)}
    assert "cup" in reasons(summary)["G-2-R"]
    image = Image.open(tmp_path / "out" / "RIM-ONE-r3" / "images" / "N-1-L.png")
    assert image.size == (200, 200)
    cases, _ = Fundus(root=str(tmp_path / "out")).cases_and_problems("RIM-ONE-r3")
    assert [case.patient for case in cases] == ["N-1"]
    assert check_dataset(Fundus(root=str(tmp_path / "out"))).problems == ()


def test_refuge_has_two_sites_and_an_inverted_mask_is_left_out(tmp_path):
    summary = prepare(fundus.COLLECTIONS, [made.refuge(tmp_path / "in")], tmp_path / "out")
    assert table(summary) == {"REFUGE-train": (2, 0), "REFUGE-val": (1, 1)}
    assert "expected 0 in the cup" in reasons(summary)["V0002"]
    mask = np.asarray(Image.open(tmp_path / "out" / "REFUGE-val" / "masks" / "v0001.png"))
    disc, cup = made.disc_and_cup(250, 300, 70, 230)  # near a corner: the square is moved into the photograph
    assert np.array_equal(mask, np.where(cup, 0, np.where(disc, 128, 255))[0:200, 100:300])
    assert check_dataset(Fundus(root=str(tmp_path / "out"))).problems == ()


def test_two_downloads_fill_one_new_folder_and_a_second_case_of_a_name_is_left_out(tmp_path):
    made.promise12(tmp_path / "in" / "promise", (1, 38))
    made.nci_isbi(tmp_path / "in" / "nci")
    copy = made.promise12(tmp_path / "in" / "copy", (1,))
    sources = [tmp_path / "in" / "promise", tmp_path / "in" / "nci", copy]
    summary = prepare(PROSTATE, sources, tmp_path / "out")
    before = content(tmp_path / "out")
    assert len(before) == 10 and table(summary)["UCL"] == (1, 1)
    assert reasons(summary)["copy/Case01"] == "another case has the same name"
    with pytest.raises(UserError, match="out: exists already; remove it, or choose another output folder"):
        prepare(PROSTATE, sources, tmp_path / "out")
    prepare(PROSTATE, sources, tmp_path / "again")
    assert content(tmp_path / "again") == before == content(tmp_path / "out")


def test_nothing_is_written_if_the_preparation_is_stopped(tmp_path):
    def stop_at_the_second(cases):
        yield next(iter(cases))
        raise KeyboardInterrupt

    made.promise12(tmp_path / "in", (1, 38))
    with pytest.raises(KeyboardInterrupt):
        prepare(PROSTATE, [tmp_path / "in"], tmp_path / "out", stop_at_the_second)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_source_without_a_known_download_says_what_was_found_and_expected(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "siemens-3t.tar.gz.aa").write_bytes(b"")
    with pytest.raises(UserError, match=r"found siemens-3t\.tar\.gz\.aa; expected .*PROMISE12: CaseNN\.mhd .*; unpack"):
        prepare(PROSTATE, [tmp_path / "in"], tmp_path / "out")
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(UserError, match="there is no such folder; expected a folder with an unpacked download"):
        prepare(PROSTATE, [tmp_path / "a.zip"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_program_prints_the_table_the_reasons_and_the_check(tmp_path, capsys):
    made.promise12(tmp_path / "in", (1, 13, 14, 15))
    assert main(["prepare", "prostate", str(tmp_path / "in"), str(tmp_path / "out"), "--quiet"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"PROMISE12 +UCL +1 +0\n", output)
    assert "left out: RUNMC: 3 x overlaps with the NCI-ISBI challenge" in output and output.count("left out:") == 1
    assert f"python -m medfed.data check {tmp_path / 'out'} --dataset prostate" in output


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prostate", "fundus"])
def test_prepared_downloads_train(tmp_path, name):
    """Three sites are prepared, each with some cases, pass the check, and train one round."""
    if name == "prostate":
        made.promise12(tmp_path / "in", (1, 26, 27, 28, 0, 2, 3, 4, 38, 39, 40, 41))
        unseen = "HK"
    else:
        made.drishti_gs(tmp_path / "in" / "a")
        made.rim_one(tmp_path / "in" / "b")
        made.refuge(tmp_path / "in" / "c")
        unseen = "REFUGE-train"
    prepare(PROSTATE if name == "prostate" else fundus.COLLECTIONS, [tmp_path / "in"], tmp_path / "out")
    assert main(["check", str(tmp_path / "out"), "--dataset", name, "--quiet"]) == 0
    (tmp_path / "c.yaml").write_text(
        f"data: {{name: {name}, root: {tmp_path / 'out'}, image_size: 32, validation_ratio: 0, test_ratio: 0}}\n"
        "network: {name: unet, features: [4, 4, 4, 4, 4, 4]}\nmethod: {name: fedavg}\ntraining: {batch_size: 2}\n"
        f"federation: {{unseen_site: {unseen}, rounds: 1, selection: last}}\n"
    )
    assert train(["--quiet", "--out", str(tmp_path / "run"), "--jobs", "1", str(tmp_path / "c.yaml")]) == 0
    assert (tmp_path / "run" / "model.safetensors").is_file()
