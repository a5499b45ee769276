"""Folders of DICOM patients are never taken for sites, and a site is not silently taken for one patient."""

import csv
import re
import stat

import numpy as np
import pytest
from made_dicom import volume, write_nifti, write_series

from medfed import data, init
from medfed.core.errors import UserError
from medfed.datasets import dicom_names
from medfed.datasets.case import Case
from medfed.datasets.checking import check_dataset
from medfed.datasets.collections.folder import Folder
from medfed.datasets.recognition import recognise

MASK = (volume((4, 3, 2)) > 11).astype(np.uint8)
STUDY = {"image": "{site}/{case}", "mask": "{site}/{case}/mask.*"}


def study(folder, patient, **tags):
    """One series of two slices in the folder of a study, with its mask."""
    write_series(folder / "series", volume((4, 3, 2)), PatientID=patient, **tags)
    write_nifti(folder / "mask.nii.gz", MASK)


class TestPatientsAreNoSites:
    def test_folders_of_patients_are_refused_before_a_file_is_written_and_without_their_names(self, tmp_path, capfd):
        for patient in "ABC":
            for visit in (1, 2):
                study(tmp_path / f"CANARY {patient}" / f"study{visit}", f"canary{patient}", PatientName="CANARY^Jane")
        assert data.main(["check", str(tmp_path)]) == 2
        assert data.main(["check", str(tmp_path), "--set", "data.image_size=64"]) == 2
        assert init.main([str(tmp_path), "--out", str(tmp_path / "my.yaml")]) == 2
        printed = capfd.readouterr()
        assert "canary" not in (printed.out + printed.err).lower()
        assert printed.err.count("each of its 3 sites with DICOM files holds the images of one patient") == 3
        assert printed.err.count("put a folder for each hospital above the patients") == 3
        assert not list(tmp_path.rglob(dicom_names.SALT_FILE)) and not (tmp_path / "my.yaml").exists()

    def test_a_hospital_has_folders_of_patients(self, tmp_path):
        for path in ("BMC/A", "HK/B", "HK/C"):
            study(tmp_path / "patients" / path / "study", path[-1])
        assert recognise(tmp_path / "patients").site_names() == ["BMC", "HK"]

    def test_hospitals_of_one_patient_each_are_confirmed_by_naming_them_and_a_single_folder_is_a_site(self, tmp_path):
        study(tmp_path / "BMC" / "case", "BMC")
        assert Folder(str(tmp_path), **STUDY).site_names() == ["BMC"]
        study(tmp_path / "HK" / "case", "HK")
        with pytest.raises(UserError, match="if each folder is a hospital, list the folders in data.sites"):
            recognise(tmp_path).site_names()
        assert len(Folder(str(tmp_path), **STUDY, sites=("BMC", "HK")).cases("HK")) == 1


def test_a_site_of_one_identifier_is_named_with_the_cure(tmp_path):
    for case in "abc":
        study(tmp_path / "BMC" / case, "ANON")
    (warning,) = [str(one) for one in check_dataset(Folder(str(tmp_path), **STUDY)).warnings if "test part" in one.kind]
    assert warning.startswith("BMC: none of the 1 patients is in the test part") and "ANON" not in warning
    pattern = re.search(r"set data\.patient_pattern, such as '(.*?)'", warning)[1]
    cured = Folder(str(tmp_path), **STUDY, patient_pattern=pattern)
    assert len({case.patient for case in cured.cases("BMC")}) == 3


class TestTheTableOfTheSite:
    def test_it_leads_from_the_names_in_a_result_to_the_folders(self, tmp_path, capsys):
        for case, patient in (("a", "7"), ("b", "7"), ("c", "8")):
            study(tmp_path / "sites" / "BMC" / case, patient)
        path = tmp_path / "private" / "patients.csv"
        root = tmp_path / "sites"
        assert data.main(["check", str(root), "--quiet", "--patients", str(path)]) == 0
        rows = list(csv.DictReader(path.open()))
        salt = dicom_names.read_salt(root / dicom_names.SALT_FILE)
        keys = {name: dicom_names.hide_names(Case("BMC", "x", root, (), name), salt).patient for name in "78"}
        assert {(row["site"], row["patient"], row["image"]) for row in rows} == {
            ("BMC", keys[patient], str(root / "BMC" / case)) for case, patient in (("a", "7"), ("b", "7"), ("c", "8"))
        }
        cases = Folder(str(root), **STUDY).cases("BMC")
        assert {row["case"]: row["mask"] for row in rows} == {case.name: str(case.mask_path) for case in cases}
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        printed = capsys.readouterr().out
        assert keys["7"] not in printed and "BMC/a" not in printed

    def test_it_is_never_written_into_a_run_folder_nor_over_another_file(self, tmp_path, capsys):
        for case in "ab":
            study(tmp_path / "sites" / "BMC" / case, case)
        (tmp_path / "run" / "tables").mkdir(parents=True)
        (tmp_path / "run" / "environment.json").write_text("{}")
        (tmp_path / "mine.csv").write_text("mine")
        for name, words in (("run/tables/p.csv", "lies in a run folder"), ("mine.csv", "exists already")):
            assert data.main(["check", str(tmp_path / "sites"), "--quiet", "--patients", str(tmp_path / name)]) == 2
            assert words in capsys.readouterr().err
        assert not list((tmp_path / "run").rglob("*.csv")) and (tmp_path / "mine.csv").read_text() == "mine"
