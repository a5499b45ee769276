"""DICOM folders as hospitals have them: pairs with masks, DICOM SEG masks, and names that tell nothing."""

import re
import stat
import sys
from collections import Counter

import numpy as np
import pytest
from made_dicom import SAME_UIDS, oblique_affine, volume, write_nifti, write_segmentation, write_series

from medfed.core.errors import UserError
from medfed.datasets import dicom_names
from medfed.datasets.checking import check_dataset, find_duplicates
from medfed.datasets.folder import Folder
from medfed.datasets.recognition import recognise

MASK = (volume((4, 3, 2)) > 11).astype(np.uint8)


def series(folder, **tags):
    return write_series(folder, volume((4, 3, 2)), **tags)


def nifti_mask(path):
    write_nifti(path, MASK)


def found(root, **settings):
    """The pairs of image and mask of the site n, relative to it, and the problems."""
    cases, problems = Folder(str(root), **settings).cases_and_problems("n")
    pairs = {" ".join(str(path.relative_to(root)) for path in (case.image, case.mask)) for case in cases}
    return pairs, problems


class TestLayouts:
    def test_slices_and_mask_in_one_folder(self, tmp_path):
        for case in "ab":
            series(tmp_path / "n" / case, names="I{}", PatientID=case)
            nifti_mask(tmp_path / "n" / case / "mask.nii.gz")
        (tmp_path / "n" / "DICOMDIR").write_bytes(b"\0" * 128 + b"DICM")
        assert found(tmp_path) == ({"n/a n/a/mask.nii.gz", "n/b n/b/mask.nii.gz"}, [])
        report = check_dataset(recognise(tmp_path))
        assert (report.problems, report.warnings) == ((), ())
        assert [case.shape for case in report.sites[0].cases] == [(4, 3, 2)] * 2

    def test_folders_of_studies_and_series(self, tmp_path):
        for study in ("p1/s1", "p1/s2", "p2/s1"):
            datasets = series(tmp_path / "n" / study / "T2" / "more")
            write_segmentation(tmp_path / "n" / study / "SEG" / "1-1.dcm", datasets, {"x": MASK})
        nifti_mask(tmp_path / "n" / "p3" / "m.mha.nii")
        series(tmp_path / "n" / "p3" / "DICOM")
        pairs = {f"n/{study}/T2/more n/{study}/SEG/1-1.dcm" for study in ("p1/s1", "p1/s2", "p2/s1")}
        assert found(tmp_path) == (pairs | {"n/p3/DICOM n/p3/m.mha.nii"}, [])

    @pytest.mark.parametrize(
        "folders, masks",
        [
            ("n/images/a n/images/b", "n/masks/a_mask n/masks/b/m"),
            ("n/DICOM/a n/DICOM/b", "n/GT/a_mask n/GT/b/m"),
            ("n/scans/a n/scans/b", "n/drawn/a_mask n/drawn/b/m"),
            ("n/a n/b n/c", "n/a_mask n/b_mask n/c/x"),
        ],
    )
    def test_masks_in_a_folder_of_their_own_beside_or_among_the_slices(self, tmp_path, folders, masks):
        pairs = set()
        for folder, mask in zip(folders.split(), masks.split()):
            series(tmp_path / folder)
            nifti_mask(tmp_path / f"{mask}.nii.gz")
            pairs.add(f"{folder} {mask}.nii.gz")
        assert found(tmp_path) == (pairs, [])

    def test_sites_inside_folders_of_images_and_masks(self, tmp_path):
        for site in "nm":
            series(tmp_path / "images" / site / "a")
            nifti_mask(tmp_path / "masks" / site / "a.nii.gz")
        assert found(tmp_path, sites=("n", "m")) == ({"images/n/a masks/n/a.nii.gz"}, [])

    def test_equal_names_of_series_with_masks_beside_them_are_kept_apart_by_patient(self, tmp_path):
        for patient in "ab":
            for time in ("pre", "post"):
                series(tmp_path / "n" / patient / time, PatientID=patient)
                nifti_mask(tmp_path / "n" / patient / f"{time}_mask.nii.gz")
        pairs, problems = found(tmp_path)
        assert pairs == {f"n/{p}/{time} n/{p}/{time}_mask.nii.gz" for p in "ab" for time in ("pre", "post")}
        assert problems == []
        assert sorted(Counter(case.patient for case in Folder(str(tmp_path)).cases("n")).values()) == [2, 2]

    def test_the_folder_of_a_case_is_not_taken_for_a_site_nor_a_case_for_the_folder_of_the_sites(self, tmp_path):
        for folder in ("case/n", "sites/n/T2"):
            series(tmp_path / folder)
            nifti_mask(tmp_path / folder.removesuffix("/T2") / "mask.nii.gz")
        assert "directly in the folder of the site" in found(tmp_path / "case")[1][0]
        pairs, (problem,) = found(tmp_path / "sites")
        assert not pairs
        assert problem.endswith(f"if this folder is a case, give the folder {tmp_path} instead")

    def test_nifti_cases_beside_dicom_cases(self, tmp_path):
        series(tmp_path / "n" / "a")
        nifti_mask(tmp_path / "n" / "a" / "mask.nii.gz")
        nifti_mask(tmp_path / "n" / "b" / "x_T2.nii.gz")
        nifti_mask(tmp_path / "n" / "b" / "x_seg.nii.gz")
        assert found(tmp_path) == ({"n/a n/a/mask.nii.gz", "n/b/x_T2.nii.gz n/b/x_seg.nii.gz"}, [])

    def test_what_has_no_mask_or_several_is_named(self, tmp_path):
        for case in "abc":
            series(tmp_path / "n" / case)
        for name in ("gland", "zone"):
            nifti_mask(tmp_path / "n" / "b" / f"{name}.nii.gz")
        nifti_mask(tmp_path / "n" / "c" / "mask.nii.gz")
        pairs, (none, several) = found(tmp_path)
        assert pairs == {"n/c n/c/mask.nii.gz"}
        assert none.startswith(f"{tmp_path}/n/a: this case of DICOM images has no mask")
        assert "gland.nii.gz, zone.nii.gz; expected one" in several
        assert found(tmp_path, ignored_names=("a", "zone*"))[1] == []

    def test_a_link_to_a_slice_outside_the_root_is_refused(self, tmp_path):
        series(tmp_path / "elsewhere")
        (tmp_path / "root" / "n" / "a").mkdir(parents=True)
        for path in (tmp_path / "elsewhere").iterdir():
            (tmp_path / "root" / "n" / "a" / path.name).symlink_to(path)
        nifti_mask(tmp_path / "root" / "n" / "a" / "mask.nii.gz")
        assert "data.follow_symlinks" in found(tmp_path / "root")[1][0]
        assert found(tmp_path / "root", follow_symlinks=True)[1] == []

    def test_the_same_series_in_two_folders_is_found(self, tmp_path):
        for case in "ab":
            series(tmp_path / "n" / case, **SAME_UIDS)
            nifti_mask(tmp_path / "n" / case / "mask.nii.gz")
        first = sorted((tmp_path / "n" / "a").glob("*.dcm"))
        for path in first:
            (tmp_path / "n" / "b" / path.name).write_bytes(path.read_bytes())
        assert len(find_duplicates(Folder(str(tmp_path)).cases("n"))) == 1


class TestSegmentations:
    """Masks that highdicom has written."""

    def mask(self, root, structures=("gland",), **settings):
        dataset = Folder(str(root), structure_names=structures, **settings)
        volume_ = dataset.load(dataset.cases("n")[0])
        return volume_.mask.numpy(), volume_.notices

    def make(self, root, masks, affine=None, **options):
        datasets = write_series(root / "n" / "a", volume((4, 3, 5)), affine)
        write_segmentation(root / "n" / "a" / "seg", options.pop("datasets", datasets), masks, **options)

    def sparse(self, *slices):
        mask = (volume((4, 3, 5), seed=3) % 2).astype(np.uint8)
        mask[..., [index for index in range(5) if index not in slices]] = 0
        return mask

    @pytest.mark.parametrize("kind", ["BINARY", "LABELMAP"])
    def test_frames_of_some_slices_lie_on_their_slices(self, tmp_path, kind):
        first, second = self.sparse(1, 4), self.sparse(0)
        self.make(tmp_path, {"Gland": first, "zone": second}, segmentation_type=kind)
        mask, notices = self.mask(tmp_path, ("zone", "gland"))
        assert np.array_equal(mask, [second, first]) and first.any()
        assert notices == ()

    def test_segments_belong_to_structures_by_name_number_or_setting(self, tmp_path):
        first, second = self.sparse(1), self.sparse(2)
        self.make(tmp_path, {"Prostate": first, "urethra": second})
        assert np.array_equal(self.mask(tmp_path, ("a", "b"))[0], [first, second])
        one, notices = self.mask(tmp_path, ("prostate",))
        assert np.array_equal(one, [first])
        assert notices == ("segments of the DICOM SEG without a structure of their name are not read",)
        assert np.array_equal(self.mask(tmp_path, mask_values={"gland": (1, 2)})[0], [first + second])
        with pytest.raises(UserError, match="1 'Prostate', 2 'urethra'.*data.mask_values"):
            self.mask(tmp_path)
        with pytest.raises(UserError, match="only the numbers in data.mask_values"):
            self.mask(tmp_path, mask_values={"gland": (1,)})

    def test_a_segmentation_of_another_grid_is_refused(self, tmp_path):
        frame, affine = {"FrameOfReferenceUID": "1.2.6"}, oblique_affine((0.6, 0.7, 3.0))
        other = write_series(tmp_path / ".other", volume((4, 3, 5)), affine, **frame)
        datasets = write_series(tmp_path / "n" / "a", volume((4, 3, 5)), **frame)
        write_segmentation(tmp_path / "n" / "a" / "seg", other, {"x": self.sparse(0, 1)})
        with pytest.raises(UserError, match="does not lie on the voxels"):
            self.mask(tmp_path)
        write_segmentation(tmp_path / "n" / "a" / "seg", datasets, {"x": self.sparse(0, 1)})
        assert np.array_equal(self.mask(tmp_path)[0], [self.sparse(0, 1)])

    def test_a_segmentation_of_another_scan_and_fractions_are_refused(self, tmp_path):
        other = write_series(tmp_path / ".other", volume((4, 3, 5)))
        self.make(tmp_path / "1", {"x": self.sparse(0)}, datasets=other)
        self.make(tmp_path / "2", {"x": self.sparse(0)}, segmentation_type="FRACTIONAL")
        for name, words in {"1": "another frame of reference", "2": "fractional"}.items():
            with pytest.raises(UserError, match=words):
                self.mask(tmp_path / name)

    def test_without_highdicom_the_message_names_the_extra(self, tmp_path, monkeypatch):
        self.make(tmp_path, {"x": self.sparse(0)})
        monkeypatch.setitem(sys.modules, "highdicom", None)
        with pytest.raises(UserError, match=re.escape("pip install 'medfed[dicom]'")):
            self.mask(tmp_path)

    def test_a_nifti_image_may_have_such_a_mask(self, tmp_path):
        datasets = write_series(tmp_path / ".other", volume((4, 3, 5)))
        write_nifti(tmp_path / "n" / "a" / "image.nii.gz", volume((4, 3, 5)))
        write_segmentation(tmp_path / "n" / "a" / "seg.dcm", datasets, {"x": self.sparse(2)})
        assert np.array_equal(self.mask(tmp_path)[0], [self.sparse(2)])


class TestNames:
    def cases(self, root, patients, **settings):
        for folder, patient in patients.items():
            series(root / "n" / folder, PatientID=patient)
            nifti_mask(root / "n" / folder / "mask.nii.gz")
        return {str(case.image.relative_to(root / "n")): case for case in Folder(str(root), **settings).cases("n")}

    def test_two_studies_of_a_patient_have_the_same_patient_and_different_names(self, tmp_path):
        cases = self.cases(tmp_path, {"a": "CANARY", "b": "CANARY", "c": "other"})
        assert cases["a"].patient == cases["b"].patient != cases["c"].patient
        assert len({case.name for case in cases.values()}) == 3
        for case in cases.values():
            assert re.fullmatch("p[0-9a-f]{12}", case.patient) and case.name.startswith(case.patient + "_")

    def test_names_do_not_change_between_runs_and_differ_between_secrets(self, tmp_path):
        first = self.cases(tmp_path, {"a": "7"})["a"]
        assert Folder(str(tmp_path)).cases("n") == [first]
        other = Folder(str(tmp_path), dicom_salt=str(tmp_path / "salt")).cases("n")[0]
        assert other.patient != first.patient

    def test_without_an_identifier_the_folder_is_the_patient(self, tmp_path):
        cases = self.cases(tmp_path, {"Doe^Jane/s1": "", "Doe^Jane/s2": "", "Roe": ""})
        assert cases["Doe^Jane/s1"].patient == cases["Doe^Jane/s2"].patient != cases["Roe"].patient
        assert "oe" not in "".join(case.name + case.patient for case in cases.values())

    def test_a_pattern_comes_before_the_identifier(self, tmp_path):
        cases = self.cases(tmp_path, {"x1_a": "7", "x1_b": "8", "x2_a": "7"}, patient_pattern="^(x[0-9])")
        assert cases["x1_a"].patient == cases["x1_b"].patient != cases["x2_a"].patient
        assert "x1" not in cases["x1_a"].patient

    def test_a_table_names_folders_of_slices(self, tmp_path):
        for folder, patient in (("CANARY/1", "7"), ("CANARY/2", "7"), ("CANARY/3", "8")):
            series(tmp_path / folder, PatientID=patient)
            nifti_mask(tmp_path / f"{folder}.nii.gz")
        rows = [f"n,CANARY/{index},CANARY/{index}.nii.gz" for index in (1, 2, 3)]
        (tmp_path / "list.csv").write_text("\n".join(["site,image,mask", *rows]))
        dataset = Folder(str(tmp_path), datalist="list.csv")
        cases = {case.image.name: case for case in dataset.cases("n")}
        assert cases["1"].patient == cases["2"].patient != cases["3"].patient
        assert "CANARY" not in "".join(case.name + case.patient for case in cases.values())
        assert dataset.load(cases["1"]).image.shape == (1, 4, 3, 2)

    def test_the_secret_can_be_read_by_its_owner_only_and_is_refused_with_the_setting_if_not_stored(self, tmp_path):
        salt = dicom_names.read_salt(tmp_path / "salt")
        assert len(salt) == 32 and salt == dicom_names.read_salt(tmp_path / "salt")
        assert stat.S_IMODE((tmp_path / "salt").stat().st_mode) == 0o600
        assert dicom_names.read_salt(tmp_path / "other") != salt
        with pytest.raises(UserError, match="data.dicom_salt"):
            dicom_names.read_salt(tmp_path / "salt" / "salt")

    def test_the_hash_is_hmac_sha256(self):
        # printf 'patient:7' | openssl dgst -sha256 -hmac key
        assert dicom_names.patient_key(b"key", "7") == "p1b45a56939cf"
