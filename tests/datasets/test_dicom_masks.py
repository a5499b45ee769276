"""Tests that masks become DICOM SEG objects of their series, and that medfed reads the same masks from them."""

import sys
import warnings

import nibabel as nib
import numpy as np
import pytest
from made_dicom import LPS_TO_RAS, oblique_affine, volume, write_nifti, write_series

from medfed.core.errors import UserError
from medfed.data import main
from medfed.datasets.collections.folder import Folder
from medfed.preparation.dicom_masks import MAY_BE_EMPTY, write_segmentations

SHAPE = (4, 3, 5)
IN_CASE = {"image": "{site}/{case}", "mask": "{site}/{case}/seg.dcm"}
NAME = "Rossi^Anna"
STUDY = {"SeriesInstanceUID": "1.2.3", "StudyInstanceUID": "1.2.4"}


@pytest.fixture
def data(tmp_path):
    """A series with the masks of two structures; one of them is stored with reversed rows, as dcm2niix does."""
    write_series(tmp_path / "data" / "n" / "case_1", volume(SHAPE), PatientID="4711", PatientName=NAME)
    masks = [(volume(SHAPE, seed=seed) % 3 == 0).astype(np.uint8) for seed in (3, 4)]
    write_nifti(tmp_path / "masks" / "case_1_organ.nii.gz", masks[0])
    affine = LPS_TO_RAS @ oblique_affine()
    affine[:3, 3] += affine[:3, 1] * (SHAPE[1] - 1)
    affine[:3, 1] *= -1
    nib.save(nib.Nifti1Image(masks[1][:, ::-1], affine), tmp_path / "masks" / "case_1_tumour zone.nii.gz")
    return tmp_path, masks


def test_the_segments_are_the_masks_voxel_by_voxel_and_belong_to_the_patient(data, capsys):
    highdicom = pytest.importorskip("highdicom")
    folder, masks = data
    assert main(["dicom-seg", *(str(folder / name) for name in ("masks", "data/n")), "--out", str(folder / "seg")]) == 0
    printed = "".join(capsys.readouterr())
    assert "Wrote 1 DICOM SEG object." in printed and "4711" not in printed and NAME not in printed
    (folder / "seg" / "case_1.dcm").rename(folder / "data" / "n" / "case_1" / "seg.dcm")
    dataset = Folder(str(folder / "data"), **IN_CASE, structure_names=("tumour zone", "organ"))
    read = dataset.load(dataset.cases("n")[0])
    assert np.array_equal(read.mask.numpy(), [masks[1], masks[0]]) and masks[0].any() and read.notices == ()
    written = highdicom.seg.segread(folder / "data" / "n" / "case_1" / "seg.dcm")
    assert (written.PatientID, written.PatientName) == ("4711", NAME)
    assert len(written.ReferencedSeriesSequence[0].ReferencedInstanceSequence) == SHAPE[2]


def without_attributes(folder, *keywords):
    import pydicom

    for path in (folder / "data" / "n" / "case_1").iterdir():
        dataset = pydicom.dcmread(path)
        for keyword in keywords:
            delattr(dataset, keyword)
        dataset.save_as(path)


def test_warnings_with_a_patients_name_are_not_printed(data, capfd):
    """highdicom warns with the whole name if it has one part only; pydicom quotes invalid values."""
    pytest.importorskip("highdicom")
    folder, masks = data
    with warnings.catch_warnings(record=True):
        write_series(folder / "s" / "case", volume(SHAPE), PatientName="Anna Rossi", StudyInstanceUID="1.02.Rossi")
    write_nifti(folder / "m" / "case_organ.nii.gz", masks[0])
    capfd.readouterr()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert write_segmentations(folder / "m", folder / "s", folder / "seg") == 1
    assert "Rossi" not in "".join(capfd.readouterr()) + "".join(str(warning.message) for warning in caught)


def test_a_series_without_the_identifiers_becomes_an_object_with_empty_ones_and_other_attributes_are_needed(data):
    highdicom = pytest.importorskip("highdicom")
    folder, _ = data
    without_attributes(folder, *MAY_BE_EMPTY)
    assert write_segmentations(folder / "masks", folder / "data" / "n", folder / "seg") == 1
    written = highdicom.seg.segread(folder / "seg" / "case_1.dcm")
    assert all(not written[keyword].value for keyword in MAY_BE_EMPTY)
    without_attributes(folder, "Modality")
    with pytest.raises(UserError, match=r"\(Modality is missing\); check the series"):
        write_segmentations(folder / "masks", folder / "data" / "n", folder / "other")


def test_names_in_other_alphabets_are_kept(data):
    highdicom = pytest.importorskip("highdicom")
    folder, masks = data
    write_series(folder / "s" / "case", volume(SHAPE), SpecificCharacterSet="ISO_IR 100", PatientName="Müller^Änne")
    write_nifti(folder / "m" / "case_größere Läsion ψ.nii.gz", masks[0])
    assert write_segmentations(folder / "m", folder / "s", folder / "seg") == 1
    written = highdicom.seg.segread(folder / "seg" / "case.dcm")
    assert written.PatientName == "Müller^Änne"
    assert written.SegmentSequence[0].SegmentLabel == "größere Läsion ψ"


def test_an_empty_mask_is_a_segment_without_voxels(data):
    pytest.importorskip("highdicom")
    folder, masks = data
    for file in (folder / "masks").iterdir():
        file.unlink()
    write_nifti(folder / "masks" / "case_1_organ.nii.gz", 0 * masks[0])
    assert write_segmentations(folder / "masks", folder / "data" / "n", folder / "seg") == 1
    (folder / "seg" / "case_1.dcm").rename(folder / "data" / "n" / "case_1" / "seg.dcm")
    dataset = Folder(str(folder / "data"), **IN_CASE, structure_names=("organ",))
    assert not dataset.load(dataset.cases("n")[0]).mask.any()


def several_frames_of_reference(series, mask):
    for index in range(SHAPE[2]):
        write_series(series, volume(SHAPE), slices=[index], PatientID="4711", **STUDY)


ZEROS = np.zeros(SHAPE, np.uint8)
CHANGES = [
    (lambda series, mask: write_nifti(mask, ZEROS, oblique_affine(degrees=25.0)), "has other voxels; .*run the bundle"),
    (lambda series, mask: write_nifti(mask, ZEROS[..., 1:]), "gz: the mask has other voxels; .*4 x 3 x 5"),
    (lambda series, mask: write_nifti(mask, ZEROS + 2), "expected 0 and 1 on"),
    (lambda series, mask: series.rename(series.with_name("case_2")), "belongs to no folder of .*copy the series"),
    (lambda series, mask: [file.unlink() for file in mask.parent.iterdir()], "holds no mask"),
    (lambda series, mask: write_series(series, volume(SHAPE), names="b{}.dcm", PatientID="4711"), "2 DICOM series"),
    (lambda series, mask: mask.rename(mask.with_name("case_1_or\\gan.nii.gz")), "the structure has a backslash"),
    (several_frames_of_reference, "5 values of FrameOfReferenceUID"),
]


@pytest.mark.parametrize(("change", "sentence"), CHANGES)
def test_masks_of_another_series_are_refused_and_nothing_is_written(data, change, sentence):
    folder, _ = data
    change(folder / "data" / "n" / "case_1", folder / "masks" / "case_1_organ.nii.gz")
    with pytest.raises(UserError, match=sentence):
        write_segmentations(folder / "masks", folder / "data" / "n", folder / "seg")
    assert sorted(path.name for path in folder.iterdir()) == ["data", "masks"]


def test_an_existing_folder_and_a_missing_package_are_one_sentence(data, monkeypatch):
    folder, _ = data
    with pytest.raises(UserError, match="masks: exists already"):
        write_segmentations(folder / "masks", folder / "data" / "n", folder / "masks")
    monkeypatch.setitem(sys.modules, "highdicom", None)
    with pytest.raises(UserError, match="highdicom, which is not installed; run pip install 'medfed"):
        write_segmentations(folder / "masks", folder / "data" / "n", folder / "seg")
