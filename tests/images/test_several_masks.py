"""Several masks of an image are joined or show a structure each; each site reads its masks in its own way."""

import nibabel as nib
import numpy as np
import pytest
from folder_layouts import make, save_pixels
from PIL import Image

from medfed.core.errors import UserError
from medfed.datasets.check_groups import format_problems
from medfed.datasets.collections.folder import Folder

LESIONS = {"image": "{site}/{case}.png", "mask": "{site}/{case}_mask{number:.*}.png"}


def write_masks(folder, **places):
    """An image of 4 x 4 pixels, and masks in which one pixel is 255."""
    save_pixels(folder / "a.png", np.full((4, 4), 7))
    for name, place in places.items():
        pixels = np.zeros((4, 4))
        pixels[place] = 255
        save_pixels(folder / f"{name}.png", pixels)


def shown(dataset: Folder, site: str = "n") -> list[list[list[int]]]:
    """Return the pixels of each structure in the mask of the only case of a site."""
    (case,) = dataset.cases(site)
    return [channel[..., 0].nonzero().tolist() for channel in dataset.load(case).mask]


def test_masks_that_differ_in_a_field_or_in_a_list_of_patterns_are_joined(tmp_path):
    write_masks(tmp_path / "n", a_mask=(0, 0), a_mask_1=(1, 2), a_mask_2=(3, 3))
    assert shown(Folder(root=str(tmp_path), **LESIONS)) == [[[0, 0], [1, 2], [3, 3]]]
    listed = {"image": "{site}/a.png", "mask": ("{site}/a_mask_1.png", "{site}/a_mask_2.png")}
    assert shown(Folder(root=str(tmp_path), **listed, ignored_names=("a_mask.png",))) == [[[1, 2], [3, 3]]]


def test_masks_of_structures_are_read_from_their_files_and_may_have_values_of_their_own(tmp_path):
    write_masks(tmp_path / "n", a_sc=(0, 0), a_gm=(1, 2))
    mask = {"cord": "{site}/{case}_sc.png", "grey": "{site}/{case}_gm.png"}
    dataset = Folder(root=str(tmp_path), image="{site}/{case}.png", mask=mask)
    assert dataset.structures == ("cord", "grey") and shown(dataset) == [[[0, 0]], [[1, 2]]]
    save_pixels(tmp_path / "n" / "a_sc.png", np.arange(16).reshape(4, 4))
    values = Folder(root=str(tmp_path), image="{site}/{case}.png", mask=mask, mask_values={"cord": (4, 5)})
    with pytest.raises(UserError, match=r"a_sc.png: .*mask_values"):
        shown(values)
    save_pixels(tmp_path / "n" / "a_sc.png", 4 * np.eye(4))
    assert shown(values) == [[[0, 0], [1, 1], [2, 2], [3, 3]], [[1, 2]]]
    (tmp_path / "n" / "a_gm.png").unlink()
    (problem,) = Folder(root=str(tmp_path), image="{site}/{case}.png", mask=mask).cases_and_problems("n")[1]
    assert "n/a.png: this image has no mask of grey" in str(problem)


def test_each_site_reads_its_masks_in_its_own_way(tmp_path):
    """Zeros and ones, GIF, soft edges, JPEG, and a colour; the same structure at each site."""
    mask = np.zeros((16, 16), np.uint8)
    mask[:8] = 1
    soft = np.where(mask > 0, 200, 90)
    colour = np.zeros((16, 16, 3))
    colour[..., 1] = mask * 255.0
    colour[12:, :, 0] = 255
    for site in ("binary", "gif", "soft", "jpeg", "colour"):
        save_pixels(tmp_path / site / "images" / "a.png", np.arange(256).reshape(16, 16))
    save_pixels(tmp_path / "binary" / "masks" / "a.png", mask)
    save_pixels(tmp_path / "gif" / "masks" / "a.gif", mask * 255)
    save_pixels(tmp_path / "soft" / "masks" / "a.png", soft)
    save_pixels(tmp_path / "jpeg" / "masks" / "a.jpg", mask * 255)
    save_pixels(tmp_path / "colour" / "masks" / "a.png", colour)
    by_site = {
        "soft": {"mask_threshold": 128},
        "jpeg": {"mask_threshold": 128},
        "colour": {"mask_colours": {"foreground": "#00ff00", "background": ["#000000", "#ff0000"]}},
    }
    dataset = Folder(root=str(tmp_path), by_site=by_site)
    expected = [np.argwhere(mask).tolist()]
    assert {site: shown(dataset, site) == expected for site in dataset.site_names()} == dict.fromkeys(
        ("binary", "colour", "gif", "jpeg", "soft"), True
    )
    with pytest.raises(UserError, match=r"soft/masks/a.png: .*values"):
        shown(Folder(root=str(tmp_path)), "soft")


def test_the_masks_of_a_case_are_joined_only_if_they_have_the_same_size(tmp_path):
    write_masks(tmp_path / "n", a_mask_left=(0, 0), a_mask_right=(1, 1))
    Image.new("L", (5, 4)).save(tmp_path / "n" / "a_mask_right.png")
    with pytest.raises(UserError, match="a_mask_right.png: the mask has 4 x 5 pixels"):
        shown(Folder(root=str(tmp_path), **LESIONS))


def test_a_mask_whose_axes_are_reversed_is_turned_unless_the_geometry_of_its_site_is_ignored(tmp_path):
    (tmp_path / "n").mkdir()
    voxels = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    mask = (voxels == 1).astype(np.uint8)
    nib.save(nib.Nifti1Image(voxels, np.eye(4)), tmp_path / "n" / "a.nii")
    reverse = np.diag([-1, 1, 1, 1.0])
    reverse[0, 3] = 1
    nib.save(nib.Nifti1Image(mask[::-1], reverse), tmp_path / "n" / "a_mask.nii")
    settings = {"root": str(tmp_path), "image": "{site}/{case}.nii", "mask": "{site}/{case}_mask.nii"}
    volume = (dataset := Folder(**settings)).load(dataset.cases("n")[0])
    assert volume.image[volume.mask > 0].tolist() == [1]
    assert "axes of the mask reordered as in its image" in volume.notices
    for own in ({"ignore_mask_geometry": True}, {"by_site": {"n": {"ignore_mask_geometry": True}}}):
        ignoring = Folder(**settings, **own).load(dataset.cases("n")[0])
        assert ignoring.image[ignoring.mask > 0].tolist() == [13]
        assert any("not reordered" in notice for notice in ignoring.notices)


def test_each_of_several_masks_is_placed_on_the_grid_of_the_image(tmp_path):
    """The first mask has reversed axes, and the second half the resolution along one axis."""
    (tmp_path / "n").mkdir()
    voxels = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    nib.save(nib.Nifti1Image(voxels, np.eye(4)), tmp_path / "n" / "a.nii")
    reverse = np.diag([-1, 1, 1, 1.0])
    reverse[0, 3] = 1
    nib.save(nib.Nifti1Image((voxels == 1).astype(np.uint8)[::-1], reverse), tmp_path / "n" / "a_mask_1.nii")
    coarse = np.zeros((2, 3, 2), np.uint8)
    coarse[0, 0, 1] = 1
    affine = np.diag([1, 1, 2, 1.0])
    affine[2, 3] = 0.5
    nib.save(nib.Nifti1Image(coarse, affine), tmp_path / "n" / "a_mask_2.nii")
    settings = {"root": str(tmp_path), "image": "{site}/{case}.nii", "mask": "{site}/{case}_mask_{part}.nii"}
    dataset = Folder(**settings, resample_masks=True)
    volume = dataset.load(dataset.cases("n")[0])
    assert volume.image[volume.mask > 0].tolist() == [1, 2, 3]
    assert "mask resampled to the size of its image" in volume.notices
    with pytest.raises(UserError, match="a_mask_2.nii: the mask has 2 x 3 x 2 voxels"):
        Folder(**settings).load(dataset.cases("n")[0])


@pytest.mark.parametrize(
    "files", ["{anna,bert,c7}.{png,jpg}", "{anna,bert,c7}.png", "{anna,bert,c7}_mask.png"], ids=["two", "image", "mask"]
)
def test_problems_of_one_cause_are_one_paragraph_whatever_the_names_of_the_patients(files, tmp_path):
    make(tmp_path, f"{{n,s}}/{files} {{n,s}}/x{{,_mask}}.png")
    dataset = Folder(root=str(tmp_path), image="{site}/{case}.*", mask="{site}/{case}_mask.*")
    problems = [problem for site in "ns" for problem in dataset.cases_and_problems(site)[1]]
    lines = format_problems(problems, str(tmp_path))
    assert lines[0].endswith("(6):") and "n/anna" in lines[1]
