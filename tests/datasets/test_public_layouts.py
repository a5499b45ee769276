"""Folders as public challenges distribute them: recognised with the right pairs, or asked about with what helps."""

from __future__ import annotations

import numpy as np
import pytest
from folder_layouts import Found, Refused, check_found, check_refused, make, two
from PIL import Image

from medfed.core.errors import UserError
from medfed.datasets.folder import Folder
from medfed.datasets.folder_classes import FolderClasses
from medfed.datasets.recognition import recognise

MONTGOMERY = "{n,s}/CXR_png/{1,2}.png {n,s}/ManualMask/{leftMask,rightMask}/{1,2}.png"
IDRID = (
    "{n,s}/{1_Original_Images}/{a_Training,b_Testing}/{1,2}.png "
    "{n,s}/{2_Groundtruths}/{a_Training,b_Testing}/{MA,HE}/{1,2}.png"
)
ORGANS = "{n,s}/{p1,p2}/ct.nii {n,s}/{p1,p2}/segmentations/{heart,liver,lung}.nii"
PH2 = "{n,s}/{P1/P1,P2/P2}_photo/x.png {n,s}/{P1/P1,P2/P2}_lesion/y.png"

FOUND = {
    "all files of one folder are masks by their names": Found(
        two("Training_Input/{a,b}.jpg", "Training_Part/{a,b}_segmentation.png"),
        "a n/Training_Input/a.jpg n/Training_Part/a_segmentation.png",
    ),
    "LiTS": Found(two("volume-{1,2}.nii", "segmentation-{1,2}.nii"), "volume-1 n/volume-1.nii n/segmentation-1.nii"),
    "KiTS": Found(
        "{n,s}/case_{1,2}/{imaging,segmentation}.nii.gz", "case_1 n/case_1/imaging.nii.gz n/case_1/segmentation.nii.gz"
    ),
    "one of two readers is set": Found(
        two("images/{a,b}.png", "masks/{reader1,reader2}/{a,b}.png"),
        "a n/images/a.png n/masks/reader2/a.png",
        {"mask_folders": ("reader2",)},
    ),
    "the only folder in a folder of masks": Found(
        two("images/{a,b}.png", "masks/reader1/{a,b}.png"), "a n/images/a.png n/masks/reader1/a.png"
    ),
    "one of two sequences is set": Found(
        two("images/{T1,T2}/{a,b}.png", "masks/{a,b}.png"),
        "a n/images/T2/a.png n/masks/a.png",
        {"image_folders": ("T2",)},
    ),
    "a reader with folders of patients": Found(
        two("images/{P1,P2}/{a,b}.png", "masks/{r1,r2}/{P1,P2}/{a,b}.png"),
        "P1/a n/images/P1/a.png n/masks/r1/P1/a.png",
        {"mask_folders": ("r1",)},
    ),
    "folders of one lung each, set": Found(
        MONTGOMERY,
        "1 n/CXR_png/1.png n/ManualMask/leftMask/1.png",
        {"image_folders": ("CXR_png",), "mask_folders": ("ManualMask", "leftMask")},
    ),
    "folders of parts with folders of lesions, set": Found(
        IDRID,
        "a_Training/1 n/1_Original_Images/a_Training/1.png n/2_Groundtruths/a_Training/MA/1.png",
        {"image_folders": ("1_Original_Images",), "mask_folders": ("2_Groundtruths", "MA")},
    ),
    "a pattern of folder names": Found(
        PH2,
        "P1 n/P1/P1_photo/x.png n/P1/P1_lesion/y.png",
        {"image_folders": ("*_photo",), "mask_folders": ("*_lesion",)},
    ),
    "one of three organs": Found(
        ORGANS, "p1 n/p1/ct.nii n/p1/segmentations/liver.nii", {"ignored_names": ("heart.*", "lung.*")}
    ),
}
REFUSED = {
    "a folder of masks for each reader": Refused(
        two("images/{a,b}.png", "masks/{reader1,reader2}/{a,b}.png"),
        (
            "n/masks: found reader1/ and reader2/; which holds the masks? set data.mask_folders, such as [reader1]",
            "data.mask_values",
        ),
    ),
    "a folder of images for each sequence": Refused(
        two("images/{T1,T2}/{a,b}.png", "masks/{a,b}.png"),
        ("n/images: found T1/ and T2/; which holds the images? set data.image_folders, such as [T1]",),
    ),
    "folders of one lung each": Refused(
        MONTGOMERY, ("n: found CXR_png/ (2 images) and ManualMask/ (4 images)", "such as [CXR_png] and [ManualMask]")
    ),
    "folders of one lung each, half set": Refused(
        MONTGOMERY,
        ("found leftMask/ and rightMask/; which holds the masks", "[ManualMask, leftMask]"),
        {"image_folders": ("CXR_png",), "mask_folders": ("ManualMask",)},
    ),
    "folders of parts with folders of lesions": Refused(
        IDRID, ("such as [1_Original_Images] and [2_Groundtruths]", "data.datalist")
    ),
    "folders with the name of their case": Refused(PH2, ('such as ["*_photo"] and ["*_lesion"]',)),
    "organs in files of their own": Refused(
        ORGANS,
        (
            "p1/ct.nii: this image has 3 masks, such as heart.nii and liver.nii",
            "data.mask_values",
            "data.ignored_names, such as ['liver.nii', 'lung.nii']",
        ),
    ),
    "organs beside their image": Refused(
        "{n,s}/{p1,p2}{,_liver,_spleen}.png",
        ("set data.mask_name, such as '*_liver', and data.ignored_names: ['*_spleen.*']", "data.mask_values"),
    ),
    "images and masks for each part": Refused(
        "{n,s}/{test,trainval}-{image,mask}/{1,2}.png", ("such as [test-image] and [test-mask]", "data.datalist")
    ),
    "case folders with two names that are no known words": Refused(
        "{n,s}/{p1,p2}/{scan,tumour}.nii",
        ("if each folder is a case, set data.image_name and data.mask_name, such as scan and tumour",),
    ),
    "the masks of vessels cannot be read": Refused(
        "{n,s}/images/2{1,2}_training.tif {n,s}/1st_manual/2{1,2}_manual1.gif {n,s}/mask/2{1,2}_training_mask.png",
        ("found mask/ and 1st_manual/; which holds the masks?", ".gif files in 1st_manual/ cannot be read; convert"),
    ),
    "no file can be read": Refused(
        two("stare-images/im{1,2}.ppm", "labels-ah/im{1,2}.ah.ppm"),
        ("im1.ppm: this file format is not supported", "convert", "data.ignored_names: ['*.ppm']"),
    ),
    "outlines in a folder": Refused(
        two("images/{a,b}.png", "annotations/all.json"),
        ("n/annotations: found no image file, only 1 .json file; expected a mask for each of the 2 images", "draw"),
    ),
    "outlines beside the images": Refused(
        "{n,s}/{a,b}.{png,json}", ("2 .json files in this folder are not read: draw the outlines",)
    ),
    "an empty folder of masks": Refused(
        two("images/{a,b}.png", "masks/.keep"), ("n/masks: found no image file; expected a mask for each",)
    ),
    "sites two folders deeper": Refused(
        "data/train/{n,s}/{1,2}{,_mask}.png", ("n and s in data/train look like sites", "data/train instead")
    ),
    "sites of case folders one folder deeper": Refused(
        "all/{n,s}/{p1,p2}/{t2,seg}.nii", ("n and s in all look like sites", "all instead", "data.sites: [all]")
    ),
    "sites deeper, beside documents": Refused(
        "all/{n,s}/{1,2}{,_mask}.png code/run.txt LICENSE", ("n and s in all look like sites",)
    ),
    "parts of a split deeper, with the sites inside": Refused(
        "data/{train,test}/{n,s}/{images,masks}/{1,2}.png", ("found the folders test and train, which look like",)
    ),
    "parts of a split with classes": Refused(
        "train/{dog,cat}/{1,2}a.png test/{dog,cat}/{1,2}b.png train/dog/3.png",
        ("found the folders test and train, which look like parts of a split", "data.sites: [test, train]"),
    ),
    "two folders for each site": Refused(
        "{Nord,Sued}_{images,masks}/{1,2}.png",
        ("found Nord_images/ and Nord_masks/, which look like the images and masks of a site", "Nord/images"),
    ),
    "figures beside the sites": Refused(
        "{n,s}/{images,masks}/{1,2}.png plots/{x,y}.png",
        ("plots: found 2 image files", "if this folder holds no cases, leave it out with data.ignored_names: [plots]"),
    ),
    "a single site by the names of its files": Refused(
        "Input/{a,b}.png Truth/{a,b}_mask.png", ("holds the folders Input and Truth, so it looks like a single site",)
    ),
}


@pytest.mark.parametrize("layout", FOUND.values(), ids=FOUND.keys())
def test_a_layout_is_recognised_with_the_right_pairs(layout, tmp_path):
    check_found(layout, tmp_path)


@pytest.mark.parametrize("layout", REFUSED.values(), ids=REFUSED.keys())
def test_a_layout_is_refused_with_what_was_found_and_what_helps(layout, tmp_path):
    check_refused(layout, tmp_path)


def test_one_folder_with_a_single_site_of_parts_or_batches_is_a_site(tmp_path):
    for name, layout in (
        ("parts", "n/{train,test}/{images,masks}/{1,2}.png"),
        ("batch", "n/batch_1/{1,2}{,_mask}.png"),
        ("cases", "n/{p1,p2}/{t2,seg}.nii"),
    ):
        dataset = recognise(make(tmp_path / name, layout))
        assert dataset.site_names() == ["n"] and dataset.cases_and_problems("n")[1] == []


def test_folders_of_which_one_holds_two_valued_images_are_not_taken_for_classes(tmp_path):
    """Masks with other file names than their images look like a second class."""
    for site in "ns":
        for folder, high in (("scans", 255), ("drawn", 2)):
            for number in range(2):
                path = tmp_path / site / folder / f"{folder[0]}{number}{site}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = np.random.default_rng(number).integers(0, high, (8, 8))
                Image.fromarray(pixels.astype(np.uint8)).save(path)
    dataset = recognise(tmp_path)
    assert isinstance(dataset, Folder)
    (problem,) = dataset.cases_and_problems("n")[1]
    assert "found drawn/ (2 images) and scans/ (2 images); which holds the images and which the masks?" in problem
    (tmp_path / "list.csv").write_text("image,mask\nn/scans/s0n.png,n/drawn/d0n.png\n")
    with pytest.raises(UserError, match="list.csv: there is no column 'site'"):
        recognise(tmp_path)


def jpegs(folder, image):
    """Three JPEG files of an image, whose names begin with the folder's first character and its site."""
    folder.mkdir(parents=True)
    for number in range(3):
        Image.fromarray(image).save(folder / f"{folder.name[0]}{folder.parent.name}{number}.jpg")


DISC = np.where(np.hypot(*np.mgrid[-1:1:96j, -1:1:96j]) < 0.4, 255, 0).astype(np.uint8)
PHOTOGRAPH = np.linspace(30, 220, 96 * 96).reshape(96, 96).astype(np.uint8)


def test_masks_stored_as_jpeg_beside_photographs_are_not_taken_for_a_class(tmp_path):
    for site in "ns":
        jpegs(tmp_path / site / "scans", PHOTOGRAPH)
        jpegs(tmp_path / site / "drawn", DISC)
    assert len(np.unique(np.asarray(Image.open(tmp_path / "n" / "drawn" / "dn0.jpg")))) > 3
    dataset = recognise(tmp_path)
    assert isinstance(dataset, Folder)
    (problem,) = dataset.cases_and_problems("n")[1]
    assert "found drawn/ (3 images) and scans/ (3 images); which holds the images and which the masks?" in problem


def test_classes_of_drawings_are_classes_also_beside_a_site_of_photographs(tmp_path):
    """All classes of the site s are black on white; in the site m, one photograph among drawings is one, too."""
    for name in ("cats", "dogs"):
        jpegs(tmp_path / "n" / name, PHOTOGRAPH)
        jpegs(tmp_path / "s" / name, DISC)
    assert isinstance(recognise(tmp_path), FolderClasses)
    jpegs(tmp_path / "m" / "dogs", PHOTOGRAPH)
    jpegs(tmp_path / "m" / "cats", DISC)
    Image.fromarray(PHOTOGRAPH).save(tmp_path / "m" / "cats" / "cm1.jpg")
    assert isinstance(recognise(tmp_path), FolderClasses)


def test_two_files_of_one_name_at_a_site_of_one_case_are_a_problem_of_this_site(tmp_path):
    make(tmp_path, "p1/{t2.nii,t2.nii.gz,seg.nii} p2/{t2.nii,seg.nii}")
    dataset = Folder(root=str(tmp_path), image_name="t2", mask_name="seg", one_site_per_case=True)
    cases, (problem,) = dataset.cases_and_problems("p1")
    assert cases == [] and "p1/t2.nii.gz: another file has the same name: t2.nii" in problem
    assert len(dataset.cases("p2")) == 1
