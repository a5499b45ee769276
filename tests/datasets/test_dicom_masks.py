"""Tests that masks become DICOM SEG objects of their series, and that medfed reads the same masks from them."""

import sys

import nibabel as nib
import numpy as np
import pytest
from made_dicom import LPS_TO_RAS, oblique_affine, volume, write_nifti, write_series

from medfed.core.errors import UserError
from medfed.data import main
from medfed.datasets.folder import Folder
from medfed.preparation.dicom_masks import write_segmentations

SHAPE = (4, 3, 5)
NAME = "Rossi^Anna"


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
    dataset = Folder(str(folder / "data"), structure_names=("tumour zone", "organ"))
    read = dataset.load(dataset.cases("n")[0])
    assert np.array_equal(read.mask.numpy(), [masks[1], masks[0]]) and masks[0].any() and read.notices == ()
    written = highdicom.seg.segread(folder / "data" / "n" / "case_1" / "seg.dcm")
    assert (written.PatientID, written.PatientName) == ("4711", NAME)
    assert len(written.ReferencedSeriesSequence[0].ReferencedInstanceSequence) == SHAPE[2]


def test_an_empty_mask_is_a_segment_without_voxels(data):
    pytest.importorskip("highdicom")
    folder, masks = data
    for file in (folder / "masks").iterdir():
        file.unlink()
    write_nifti(folder / "masks" / "case_1_organ.nii.gz", 0 * masks[0])
    assert write_segmentations(folder / "masks", folder / "data" / "n", folder / "seg") == 1
    (folder / "seg" / "case_1.dcm").rename(folder / "data" / "n" / "case_1" / "seg.dcm")
    dataset = Folder(str(folder / "data"), structure_names=("organ",))
    assert not dataset.load(dataset.cases("n")[0]).mask.any()


def other_voxels(folder):
    write_nifti(folder / "masks" / "case_1_organ.nii.gz", np.zeros(SHAPE, np.uint8), oblique_affine(degrees=25.0))


def fewer_slices(folder):
    write_nifti(folder / "masks" / "case_1_organ.nii.gz", np.zeros((4, 3, 4), np.uint8))


def label_map(folder):
    write_nifti(folder / "masks" / "case_1_organ.nii.gz", np.full(SHAPE, 2, np.uint8))


def moved_series(folder):
    (folder / "data" / "n" / "case_1").rename(folder / "data" / "n" / "case_2")


def several_frames_of_reference(folder):
    for index in range(SHAPE[2]):
        write_series(folder / "data" / "n" / "case_1", volume(SHAPE), slices=[index], PatientID="4711",
                     SeriesInstanceUID="1.2.3", StudyInstanceUID="1.2.4")  # fmt: skip


def no_masks(folder):
    for file in (folder / "masks").iterdir():
        file.unlink()


@pytest.mark.parametrize(("change", "sentence"), [
    (other_voxels, "case_1_organ.nii.gz: has other voxels than the series .*run the bundle again"),
    (fewer_slices, "has other voxels than the series .*4 x 3 x 5"),
    (label_map, "has other values than 0 and 1"),
    (moved_series, "belongs to no folder of .*copy it there again"),
    (no_masks, "holds no mask"),
    (several_frames_of_reference, "5 values of FrameOfReferenceUID"),
])  # fmt: skip
def test_masks_of_another_series_are_refused_and_nothing_is_written(data, change, sentence):
    folder, _ = data
    change(folder)
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
