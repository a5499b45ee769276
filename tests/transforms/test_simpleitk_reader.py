import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
import torch
from monai.transforms import LoadImage

from medfed.transforms.simpleitk_reader import SimpleITKReader

SHAPE = (7, 6, 5)


@pytest.fixture
def image() -> sitk.Image:
    """An anisotropic, oblique image off the origin, so that no error can cancel."""
    voxels = np.random.default_rng(0).integers(-300, 900, SHAPE[::-1]).astype(np.int16)
    image = sitk.GetImageFromArray(voxels)
    image.SetSpacing((0.5, 0.625, 3.6))
    image.SetOrigin((-12.5, 30.25, -7.0))
    turn = sitk.Euler3DTransform()
    turn.SetRotation(0.1, -0.2, 0.3)
    image.SetDirection(turn.GetMatrix())
    return image


@pytest.mark.parametrize("name", ["a.mha", "a.mhd", "a.nrrd", "a.nii.gz"])
def test_array_and_affine_are_those_that_nibabel_reads(image, tmp_path, name):
    sitk.WriteImage(image, str(tmp_path / "twin.nii.gz"))
    sitk.WriteImage(image, str(tmp_path / name))
    nifti = nib.load(tmp_path / "twin.nii.gz")
    result = LoadImage(reader=SimpleITKReader(), image_only=True, dtype=None)(tmp_path / name)
    assert result.shape == SHAPE
    np.testing.assert_array_equal(result.numpy(), np.asarray(nifti.dataobj))
    np.testing.assert_allclose(result.affine.numpy(), nifti.affine, atol=1e-5)


def test_colour_comes_last_and_becomes_the_first_axis_on_request(tmp_path):
    values = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(5, 6, 3)
    sitk.WriteImage(sitk.GetImageFromArray(values, isVector=True), str(tmp_path / "a.mha"))
    first = LoadImage(reader=SimpleITKReader(), image_only=True, ensure_channel_first=True)(tmp_path / "a.mha")
    assert first.shape == (3, 6, 5)
    np.testing.assert_array_equal(first.numpy(), values.transpose(2, 1, 0))


def test_several_files_become_channels(image, tmp_path):
    for name, part in (("a.mha", image), ("b.mha", image + 1)):
        sitk.WriteImage(part, str(tmp_path / name))
    both = LoadImage(reader=SimpleITKReader(), image_only=True)([tmp_path / "a.mha", tmp_path / "b.mha"])
    assert both.shape == (2, *SHAPE)
    assert torch.equal(both[1] - both[0], torch.ones(SHAPE))


def test_files_with_different_affines_are_rejected(image):
    moved = sitk.Image(image)
    moved.SetOrigin((0, 0, 0))
    with pytest.raises(ValueError, match="same shape and affine"):
        SimpleITKReader().get_data([image, moved])


def test_supported_suffixes_are_recognised():
    reader = SimpleITKReader()
    assert reader.verify_suffix("A.MHA") and reader.verify_suffix(["a.mhd", "b.nii.gz"])
    assert not reader.verify_suffix(["a.mha", "b.png"])
