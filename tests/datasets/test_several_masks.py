"""Several masks of an image, files that are no masks, sides and letters: joined, left out, or asked about."""

from __future__ import annotations

import re

import nibabel as nib
import numpy as np
import pytest
from folder_layouts import Found, Refused, check_found, check_refused, make, two
from PIL import Image

from medfed.core.errors import UserError
from medfed.datasets.check_groups import format_groups
from medfed.datasets.check_names import suggest_pattern
from medfed.datasets.folder import Folder
from medfed.datasets.name_pairs import belong_to_others, pair_names
from medfed.datasets.recognition import recognise

HIDDEN = "{n,s}/train/{images,masks}/{1,2}.png {n,s}/test/images/{3,4}.png"
FOUND = {
    "overlays beside images and masks": Found(
        two("images/{a,b}.png", "{masks,overlays}/{a,b}.png"), "a n/images/a.png n/masks/a.png"
    ),
    "predictions beside images and masks": Found(
        two("images/{a,b}.png", "{masks,model_predictions}/{a,b}.png"), "a n/images/a.png n/masks/a.png"
    ),
    "overlays as files, left out": Found(
        "{n,s}/{a,b}{,_mask,_overlay}.png", "a n/a.png n/a_mask.png", {"ignored_names": ("*_overlay.*",)}
    ),
    "a test part without masks, left out": Found(
        HIDDEN, "train/1 n/train/images/1.png n/train/masks/1.png", {"ignored_names": ("test",)}
    ),
    "3D Slicer": Found("{n,s}/{p1,p2}/{T2.nrrd,Segmentation.seg.nrrd}", "p1 n/p1/T2.nrrd n/p1/Segmentation.seg.nrrd"),
    "3D Slicer with another format of the image": Found(
        "{n,s}/{p1,p2}/{T2.nii.gz,Segmentation.seg.nrrd}", "p1 n/p1/T2.nii.gz n/p1/Segmentation.seg.nrrd"
    ),
    "a folder of a single mask for each image": Found(
        two("images/{a,b}.png", "masks/{a,b}/lesion.png"), "a n/images/a.png n/masks/a/lesion.png"
    ),
    "letters that say which file is the mask, in folders that say so": Found(
        two("images/p{0,1}_A.png", "masks/p{0,1}_B.png"), "p0_A n/images/p0_A.png n/masks/p0_B.png"
    ),
}
REFUSED = {
    "overlays as files": Refused(
        "{n,s}/{a,b}{,_mask,_overlay}.png",
        ("a_overlay.png: this image has no mask", "data.ignored_names: ['*_overlay.*']"),
    ),
    "a test part without masks": Refused(
        HIDDEN, ("n/test: found only the folder images/", "leave it out with data.ignored_names: [test]")
    ),
    "a test part in the folder of images": Refused(
        two("images/{train,test}/{a,b}.png", "masks/train/{a,b}.png"),
        ("there is no folder test in", "leave it out with data.ignored_names: [test]"),
    ),
    "a test part of images beside masks": Refused(
        "{n,s}/train/{1,2}{,_mask}.png {n,s}/test/{3,4}.png", ("leave it out with data.ignored_names: [test]",)
    ),
    "3D Slicer with two images": Refused(
        "{n,s}/{p1,p2}/{DWI,ADC,Segmentation.seg}.nrrd",
        ("if each folder is a case, set data.image_name: ADC and data.mask_name: Segmentation.seg",),
    ),
    "masks of other letters": Refused(
        "{n,s}/{p0,p1}_{A,B_mask}.png",
        (
            "none of the 2 images (such as p0_A.png)",
            "if p0_A.png belongs to p0_B_mask.png, set data.image_name: '*_A' and data.mask_name: '*_B_mask'",
        ),
    ),
    "two letters in one folder": Refused(
        "{n,s}/{p0,p1}_{A,B}.png", ("set data.mask_name and data.image_name, such as '*_B' and '*_A'",)
    ),
    "two readers": Refused(
        two("images/{1,2,3}.png", "masks/{1,2,3}_reader{1,2}.png"),
        (
            "2_reader2.png: is a second mask of the image 2; 2_reader1.png is also one",
            "data.ignored_names: ['*_reader2.*']",
        ),
    ),
    "a folder of masks for each image": Refused(
        two("images/{a,b}.png", "masks/{a,b}/{1,2}.png"),
        ("n/masks: it holds a folder of masks for each image, such as a/ with 2 masks", "set data.merge_masks: true"),
    ),
    "a folder of masks in each case": Refused(
        "{n,s}/{p1,p2}/{CT,RTSTRUCT/GTV,RTSTRUCT/CTV}.nii",
        ("each with image files such as CT.nii and a folder RTSTRUCT/", "set data.mask_folders: [RTSTRUCT]"),
    ),
    "a folder of masks in each case, set": Refused(
        "{n,s}/{p1,p2}/{CT,RTSTRUCT/GTV,RTSTRUCT/CTV}.nii",
        ("p1/CT.nii: this image has 2 masks, such as CTV.nii and GTV.nii", "data.merge_masks: true"),
        {"mask_folders": ("RTSTRUCT",)},
    ),
    "folders of classes beside an empty folder of masks": Refused(
        "{n,s}/{good/a,bad/b}{1,2}.png {n,s}/masks/.keep",
        ("masks/ holds no image; remove it if the images have classes and no masks",),
    ),
    "masks of one of two folders": Refused(
        two("{normal/normal,tumour/tumour}_{1,2}.png", "tumour_masks/tumour_{1,2}.png"),
        ("data.image_folders and data.mask_folders, such as [tumour] and [tumour_masks]",),
    ),
    "masks with numbers": Refused(
        two("images/{a,b}.png", "masks/{a,b}_{1,2}.png"),
        (
            "a_2.png: is a second mask of the image a; a_1.png is also one",
            "set data.merge_masks: true",
            "data.ignored_names: ['*_2.*']",
        ),
    ),
}


@pytest.mark.parametrize("layout", FOUND.values(), ids=FOUND.keys())
def test_a_layout_is_recognised_with_the_right_pairs(layout, tmp_path):
    check_found(layout, tmp_path)


@pytest.mark.parametrize("layout", REFUSED.values(), ids=REFUSED.keys())
def test_a_layout_is_refused_with_the_setting_that_helps(layout, tmp_path):
    check_refused(layout, tmp_path)


def write_masks(folder, **places):
    """An image of 4 x 4 pixels, and masks in which one pixel is 255."""
    folder.mkdir(parents=True)
    Image.new("L", (4, 4), 7).save(folder / "a.png")
    for name, place in places.items():
        pixels = np.zeros((4, 4), np.uint8)
        pixels[place] = 255
        Image.fromarray(pixels).save(folder / f"{name}.png")


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


@pytest.mark.parametrize(
    ("names", "patients"),
    [
        ("OD_007 OS_007 OD_008 OS_008", "007 007 008 008"),
        ("anna_OD_x anna_OS_y bert_OD_x bert_OS_y", "anna anna bert bert"),
        ("7_L_1 7_R_1 8_L_1 8_R_1 9", "7 7 8 8 9"),
        ("x links", ""),
        ("2019_1 2019_2 2020_1 2020_2", ""),
        ("1 1_aug1 2 2_flip", "1 1 2 2"),
        ("links_a rechts_a links_b rechts_b", "a a b b"),
        ("a_l_1 a_l_2 b_l_1 b_l_2", ""),
    ],
)
def test_sides_within_names_suggest_patients_and_years_do_not(names, patients):
    found = suggest_pattern(names.split())
    assert [re.search(found[0], name)[1] for name in names.split()] == patients.split() if patients else found is None


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
