"""Several masks of an image, files that are no masks, sides and letters: joined, left out, or asked about."""

import nibabel as nib
import numpy as np
import pytest
from folder_layouts import make, save_pixels
from PIL import Image

from medfed.core.errors import UserError
from medfed.datasets.check_groups import format_groups
from medfed.datasets.folder import Folder
from medfed.datasets.name_pairs import belong_to_others, pair_names
from medfed.datasets.recognition import recognise


def write_masks(folder, **places):
    """An image of 4 x 4 pixels, and masks in which one pixel is 255."""
    save_pixels(folder / "a.png", np.full((4, 4), 7))
    for name, place in places.items():
        pixels = np.zeros((4, 4))
        pixels[place] = 255
        save_pixels(folder / f"{name}.png", pixels)


def test_the_lesions_of_an_image_are_joined_if_the_setting_says_so(tmp_path):
    write_masks(tmp_path / "n", a_mask=(0, 0), a_mask_1=(1, 2), a_mask_2=(3, 3))
    with pytest.raises(UserError, match="second mask of the image a; .* data.merge_masks: true to join the masks"):
        Folder(root=str(tmp_path)).cases("n")
    dataset = Folder(root=str(tmp_path), merge_masks=True)
    make(tmp_path, "s/images/{a,b}.png s/masks/{a,b}/{1,2,3}.png")
    assert [case.files[1:] for case in dataset.cases("s")] == [
        tuple(tmp_path / "s" / "masks" / name / f"{number}.png" for number in (1, 2, 3)) for name in "ab"
    ]
    (case,) = dataset.cases("n")
    assert [path.name for path in case.files] == ["a.png", "a_mask.png", "a_mask_1.png", "a_mask_2.png"]
    assert dataset.load(case).mask[0, ..., 0].nonzero().tolist() == [[0, 0], [1, 2], [3, 3]]
    assert dataset.unread([case, *dataset.cases("s")], []) == []


def test_the_masks_of_a_case_are_joined_only_if_they_have_the_same_size(tmp_path):
    for patient in ("p1", "p2"):
        write_masks(tmp_path / "n" / patient, seg_left=(0, 0), seg_right=(1, 1), left_mask=(0, 0), right_mask=(1, 1))
        for name in ("seg_left", "seg_right"):
            (tmp_path / "n" / patient / f"{name}.png").unlink()
    dataset = Folder(root=str(tmp_path), merge_masks=True)
    assert [dataset.load(case).mask.sum() for case in dataset.cases("n")] == [2, 2]
    Image.new("L", (5, 4)).save(tmp_path / "n" / "p1" / "right_mask.png")
    with pytest.raises(UserError, match="right_mask.png: the mask has 4 x 5 x 1 voxels, and left_mask.png of the same"):
        dataset.load(dataset.cases("n")[0])


def test_a_mask_whose_axes_are_reversed_is_turned_unless_the_geometry_is_ignored(tmp_path):
    (tmp_path / "n").mkdir()
    voxels = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    mask = (voxels == 1).astype(np.uint8)
    nib.save(nib.Nifti1Image(voxels, np.eye(4)), tmp_path / "n" / "a.nii")
    reverse = np.diag([-1, 1, 1, 1.0])
    reverse[0, 3] = 1
    nib.save(nib.Nifti1Image(mask[::-1], reverse), tmp_path / "n" / "a_mask.nii")
    volume = (dataset := Folder(root=str(tmp_path))).load(dataset.cases("n")[0])
    assert volume.image[volume.mask > 0].tolist() == [1]
    assert "axes of the mask reordered as in its image" in volume.notices
    ignoring = Folder(root=str(tmp_path), ignore_mask_geometry=True).load(dataset.cases("n")[0])
    assert ignoring.image[ignoring.mask > 0].tolist() == [13]


def test_problems_of_one_cause_are_one_paragraph_whatever_the_names_of_the_patients(tmp_path):
    make(tmp_path, "{n,s}/{anna,bert,c7}{,_mask,_mask_1}.png s/{anna,bert}_mask_2.png")
    for suffix in ("", "_mask", "_mask_1"):
        (tmp_path / "n" / f"c7{suffix}.png").rename(tmp_path / "n" / f"c (7){suffix}.png")
    problems = [text for site in "ns" for text in recognise(tmp_path).cases_and_problems(site)[1]]
    lines = format_groups(problems, str(tmp_path), ["n", "s"])
    assert len(problems) == 8 and lines[0].startswith("  8 files: is a second mask of the image anna;")
    assert "data.ignored_names: ['*_mask_1.*', '*_mask_2.*']" in " ".join(" ".join(lines).split())
    folders = [f"/data/P{n}/x: there is no folder x in /data/P{n}/masks; add it" for n in range(300)]
    folders += [f"/data/x/{name}: there is no folder {name} in /data/masks; add it" for name in ("anna", "bert")]
    assert len(format_groups(folders, "/data", [])) == 3


def test_folders_of_sides_and_findings_are_no_patients(tmp_path):
    make(tmp_path / "a", "{n,s}/{images,masks}/{left,right}/{p1,p2}.png")
    assert [case.patient for case in recognise(tmp_path / "a").cases("n")] == ["p1", "p2", "p1", "p2"]
    make(tmp_path / "b", "{n,s}/{benign,malignant}/{1,2}{,_mask}.png")
    assert len({case.patient for case in recognise(tmp_path / "b").cases("n")}) == 4


def test_a_letter_counts_if_the_name_says_that_it_is_a_mask():
    assert belong_to_others("p0_A", "p0_B_mask") and belong_to_others("a_7", "GT_b_7")
    assert not belong_to_others("p0_A", "p0_B") and not belong_to_others("scan_a", "a_mask")
    assert pair_names(["p0_A", "p1_A"], ["p0_B_mask", "p1_B_mask"]).image_of == {}


def test_a_table_of_classes_in_the_folder_of_a_site_is_named(tmp_path):
    make(tmp_path, "{n,s}/images/{1,2}.png")
    (tmp_path / "n" / "labels.csv").write_text("image;label\nimages/1.png;cat\n")
    _, (problem,) = recognise(tmp_path).cases_and_problems("n")
    assert "if labels.csv names the class of each image, write one table for all sites" in problem
