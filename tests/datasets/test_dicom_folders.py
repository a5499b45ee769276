"""DICOM folders as hospitals have them: pairs with masks, DICOM SEG masks, and names that tell nothing."""

import re
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from made_dicom import SAME_UIDS, oblique_affine, volume, write_nifti, write_segmentation, write_series

from medfed.core.errors import UserError
from medfed.datasets import dicom_names
from medfed.datasets.case import Case
from medfed.datasets.checking import check_dataset
from medfed.datasets.collections.folder import Folder
from medfed.datasets.duplicates import find_duplicates
from medfed.datasets.recognition import recognise

MASK = (volume((4, 3, 2)) > 11).astype(np.uint8)
IN_CASE = {"image": "{site}/{case}", "mask": "{site}/{case}/mask.*"}
STUDIES = {"image": "{site}/{study}/{case}", "mask": "{site}/{study}/{case}/mask.*"}


def series(folder, **tags):
    return write_series(folder, volume((4, 3, 2)), **tags)


def nifti_mask(path):
    write_nifti(path, MASK)


def write_case(root, image, mask):
    """Write a series, and its mask as a DICOM SEG object or NIfTI."""
    datasets = series(root / image)
    if mask.endswith(".dcm"):
        write_segmentation(root / mask, datasets, {"x": MASK})
    else:
        nifti_mask(root / mask)


def found(dataset):
    """The pairs of image and mask of the site n, as paths below the root, and the problems."""
    cases, problems = dataset.cases_and_problems("n")
    return {" ".join(str(path.relative_to(dataset.root)) for path in case.files) for case in cases}, list(
        map(str, problems)
    )


class TestLayouts:
    @pytest.mark.parametrize(
        ("slices", "mask", "image_pattern", "mask_pattern"),
        [
            ("n/@", "n/@/mask.nii.gz", "{site}/{case}", "{site}/{case}/mask.*"),
            ("n/@/T2/more", "n/@/seg.dcm", "{site}/{case}", "{site}/{case}/seg.*"),
            ("n/@/T2", "n/@/SEG/1-1.dcm", "{site}/{case}", "{site}/{case}/SEG/*"),
            ("n/@", "n/@_mask.nii.gz", "{site}/{case}", "{site}/{case}_mask.*"),
            ("n/images/@", "n/masks/@.nii.gz", "{site}/images/{case}", "{site}/masks/{case}.*"),
            ("n/images/@", "n/masks/@.dcm", "{site}/images/{case}", "{site}/masks/{case}.*"),
            ("n/DICOM/@", "n/GT/@_mask.nii", "{site}/DICOM/{case}", "{site}/GT/{case}_mask.*"),
            ("n/p/@", "n/p/@/mask.nii.gz", "{site}/{study}/{case}", "{site}/{study}/{case}/mask.*"),
            ("n/p/@", "n/p/@_mask.nii.gz", "{site}/{study}/{case}", "{site}/{study}/{case}_mask.*"),
        ],
    )
    def test_usual_folders_are_recognised(self, tmp_path, slices, mask, image_pattern, mask_pattern):
        pairs = set()
        for case in "ab":
            write_case(tmp_path, slices.replace("@", case), mask.replace("@", case))
            pairs.add(f"{slices.partition('@')[0]}{case} {mask.replace('@', case)}")
        (tmp_path / "DICOMDIR").write_bytes(b"\0" * 128 + b"DICM")
        dataset = recognise(tmp_path)
        assert found(dataset) == (pairs, [])
        assert (dataset.image, dataset.mask) == (image_pattern, mask_pattern)
        report = check_dataset(dataset)
        assert (report.problems, [case.measures.shape for case in report.sites[0].cases]) == ((), [(4, 3, 2)] * 2)

    @pytest.mark.parametrize(
        ("slices", "masks", "patterns"),
        [
            ("n/a/s/T2 n/b/r/T2", "n/a/s/3/1-1.dcm n/b/r/7/1-1.dcm", "{site}/{case}/{s}/T2 {site}/{case}/{s}/*/1-1.*"),
            ("n/scans/a n/scans/b", "n/drawn/a/m.nii n/drawn/b/k.nii", "{site}/scans/{case} {site}/drawn/{case}/*.nii"),
        ],
    )
    def test_other_folders_are_refused_and_found_by_two_lines(self, tmp_path, slices, masks, patterns):
        for image, mask in zip(slices.split(), masks.split()):
            write_case(tmp_path, image, mask)
        with pytest.raises(UserError, match=r"(?s)no usual pattern.*data\.image=.*data\.mask="):
            recognise(tmp_path)
        dataset = Folder(str(tmp_path), **dict(zip(("image", "mask"), patterns.split())))
        assert found(dataset) == ({" ".join(pair) for pair in zip(slices.split(), masks.split())}, [])

    @pytest.mark.parametrize(
        ("slices", "mask"),
        [("n", "n/mask.nii"), ("n/T2", "n/mask.nii"), ("n/images", "n/masks/a.nii"), ("n/a", "m/a.nii")],
    )
    def test_the_folder_of_a_case_is_no_site_and_a_site_has_a_folder_for_each_case(self, tmp_path, slices, mask):
        write_case(tmp_path, slices, mask)
        with pytest.raises(UserError, match="no usual pattern"):
            recognise(tmp_path)

    def test_nifti_cases_beside_dicom_cases(self, tmp_path):
        write_case(tmp_path, "n/a", "n/a/mask.nii.gz")
        for name in ("T2", "mask"):
            nifti_mask(tmp_path / "n" / "b" / f"x_{name}.nii.gz")
        images = ("{site}/{case}/x_T2.*", "{site}/{case}")
        dataset = Folder(str(tmp_path), image=images, mask="{site}/{case}/{any:(x_)?}mask.*")
        assert found(dataset) == ({"n/a n/a/mask.nii.gz", "n/b/x_T2.nii.gz n/b/x_mask.nii.gz"}, [])

    def test_what_has_no_mask_and_what_no_pattern_reads_is_named(self, tmp_path):
        for case in "abc":
            series(tmp_path / "n" / case)
        series(tmp_path / "n" / "more" / "deep" / "d")
        for name in ("b/mask", "c/mask", "c/zone"):
            nifti_mask(tmp_path / "n" / f"{name}.nii.gz")
        dataset = Folder(str(tmp_path), **IN_CASE | {"image": "{site}/{case:[a-c]}"})
        pairs, (problem,) = found(dataset)
        assert pairs == {"n/b n/b/mask.nii.gz", "n/c n/c/mask.nii.gz"}
        assert problem.startswith(f"{tmp_path}/n/a: this image has no mask")
        (unread,) = dataset.contents.unread
        assert "2 files, such as n/c/zone.nii.gz" in unread.found
        without = Folder(str(tmp_path), **IN_CASE, ignored_names=("a", "more", "zone*"))
        assert found(without) == (pairs, []) and without.contents.unread == []

    @pytest.mark.parametrize("settings", [IN_CASE, {"table": "list.csv"}])
    def test_links_to_slices_are_followed(self, tmp_path, settings):
        root = tmp_path / "root"
        series(tmp_path / "elsewhere")
        nifti_mask(root / "n" / "a" / "mask.nii.gz")
        (root / "list.csv").write_text("site,image,mask\nn,n/a,n/a/mask.nii.gz")
        for path in (tmp_path / "elsewhere").iterdir():
            (root / "n" / "a" / path.name).symlink_to(path)
        assert found(Folder(str(root), **settings)) == ({"n/a n/a/mask.nii.gz"}, [])

    def test_the_same_series_in_two_folders_is_found(self, tmp_path):
        for case in "ab":
            series(tmp_path / "n" / case, **SAME_UIDS)
            nifti_mask(tmp_path / "n" / case / "mask.nii.gz")
        for path in (tmp_path / "n" / "a").glob("*.dcm"):
            (tmp_path / "n" / "b" / path.name).write_bytes(path.read_bytes())
        assert len(find_duplicates(Folder(str(tmp_path), **IN_CASE).cases("n"))) == 1


class TestSegmentations:
    """Masks that highdicom has written."""

    def mask(self, root, structures=("gland",), **settings):
        images = ("{site}/{case}/image.*", "{site}/{case}")
        dataset = Folder(str(root), image=images, mask="{site}/{case}/seg*", structure_names=structures, **settings)
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
        numbers = {"a": (1,), "b": (2,)}
        assert np.array_equal(self.mask(tmp_path, ("a", "b"), mask_values=numbers)[0], [first, second])
        with pytest.raises(UserError, match="1 'Prostate', 2 'urethra'.*data.mask_values"):
            self.mask(tmp_path, ("a", "b"))
        one, notices = self.mask(tmp_path, ("prostate",))
        assert np.array_equal(one, [first])
        assert notices == ("segments of the DICOM SEG without a structure of their name are not read",)
        assert np.array_equal(self.mask(tmp_path, mask_values={"gland": (1, 2)})[0], [first + second])
        with pytest.raises(UserError, match="1 'Prostate', 2 'urethra'.*data.mask_values"):
            self.mask(tmp_path)
        with pytest.raises(UserError, match="only numbers in data.mask_values"):
            self.mask(tmp_path, mask_values={"gland": (1,)})
        only_first = {"gland": (1,), "background": (2,)}
        assert np.array_equal(self.mask(tmp_path, mask_values=only_first)[0], [first])

    def test_numbers_that_contradict_the_names_of_segments_are_refused(self, tmp_path):
        first, second = self.sparse(1), self.sparse(2)
        self.make(tmp_path, {"right": first, "left": second})
        assert np.array_equal(self.mask(tmp_path, ("left", "right"))[0], [second, first])
        with pytest.raises(UserError, match="1 'right', 2 'left'.*another number.*so that the names decide"):
            self.mask(tmp_path, ("left", "right"), mask_values={"left": (1,), "right": (2,)})

    def test_a_structure_is_not_empty_because_a_segment_is_spelled_in_another_way(self, tmp_path):
        self.make(tmp_path, {"Liver": self.sparse(1), "Tumor": self.sparse(2)})
        with pytest.raises(UserError, match="1 'Liver', 2 'Tumor'; expected the names liver, tumour"):
            self.mask(tmp_path, ("liver", "tumour"))
        self.make(tmp_path / "word", {"liver": self.sparse(1), "Tumour of segment 4": self.sparse(2)})
        with pytest.raises(UserError, match="2 'Tumour of segment 4'; expected the names liver, tumour"):
            self.mask(tmp_path / "word", ("liver", "tumour"))

    def test_a_patient_may_lack_a_structure_and_have_a_segment_of_another_name(self, tmp_path):
        first = self.sparse(1)
        self.make(tmp_path, {"liver": first, "cyst": self.sparse(2)})
        mask, notices = self.mask(tmp_path, ("liver", "tumour"))
        assert np.array_equal(mask, [first, 0 * first])
        assert "without a structure of their name" in notices[0] and notices[1:] == ("no tumour in the mask",)
        with pytest.raises(UserError, match="1 'liver', 2 'cyst'; expected the names liver, cy"):
            self.mask(tmp_path, ("liver", "cysts"))
        numbers = {"gland": (3,), "background": (1, 2)}
        assert not self.mask(tmp_path, mask_values=numbers)[0].any()

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
        for name, words in {"1": "expected the same scan", "2": "fractional"}.items():
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
    def cases(self, root, patients, settings=IN_CASE):
        for folder, patient in patients.items():
            if not (root / "n" / folder).exists():
                series(root / "n" / folder, PatientID=patient)
                nifti_mask(root / "n" / folder / "mask.nii.gz")
        return {str(case.image.relative_to(root / "n")): case for case in Folder(str(root), **settings).cases("n")}

    @pytest.mark.parametrize(
        ("identifiers", "settings", "patients"),
        [
            ("7 7 8", IN_CASE, "1 1 2"),
            ("7 8 7", STUDIES, "1 2 1"),  # the first folder is a study: PatientID decides
            ("7 8 9", {key: text.replace("study", "patient") for key, text in STUDIES.items()}, "1 1 2"),
            ("7 8 9", {**STUDIES, "patient_pattern": "^(CANARY [0-9])"}, "1 1 2"),
            ("  ", STUDIES, "1 1 2"),  # PatientID is empty: the first folder is the patient
            ("  ", IN_CASE, "1 2 3"),
        ],
    )
    def test_images_of_a_patient_stay_together_and_no_name_tells_who_it_is(
        self, tmp_path, identifiers, settings, patients
    ):
        separator = " " if settings is IN_CASE else "/"
        folders = [f"CANARY {patient}{separator}{study}" for patient, study in ("1a", "1b", "2a")]
        of_folder = self.cases(tmp_path, dict(zip(folders, identifiers.split(" "))), settings)
        cases = [of_folder[folder] for folder in folders]
        numbers = list(dict.fromkeys(case.patient for case in cases))
        assert " ".join(str(1 + numbers.index(case.patient)) for case in cases) == patients
        assert len({case.name for case in cases}) == 3
        for case in cases:
            assert re.fullmatch("p[0-9a-f]{12}", case.patient)
            assert re.fullmatch(f"{case.patient}_[0-9a-f]{{6}}", case.name)

    def test_names_do_not_change_between_runs_and_differ_between_secrets(self, tmp_path):
        first = self.cases(tmp_path, {"a": "7"})["a"]
        assert self.cases(tmp_path, {"a": "7"})["a"] == first
        other = self.cases(tmp_path, {"a": "7"}, {**IN_CASE, "dicom_salt": str(tmp_path / "salt")})["a"]
        assert other.patient != first.patient
        assert {path.name for path in tmp_path.rglob("*salt")} == {dicom_names.SALT_FILE, "salt"}

    def test_a_table_names_folders_of_slices(self, tmp_path):
        for folder, patient in (("CANARY/1", "7"), ("CANARY/2", "7"), ("CANARY/3", "8")):
            series(tmp_path / folder, PatientID=patient)
            nifti_mask(tmp_path / f"{folder}.nii.gz")
        rows = [f"n,CANARY/{index},CANARY/{index}.nii.gz" for index in (1, 2, 3)]
        (tmp_path / "list.csv").write_text("\n".join(["site,image,mask", *rows]))
        dataset = Folder(str(tmp_path), table="list.csv")
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
        assert dicom_names.hide_names(Case("A", "x", Path("x"), (), "7"), b"key").patient == "p1b45a56939cf"
